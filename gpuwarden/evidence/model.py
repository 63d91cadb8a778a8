"""The documents that travel inside signed bytes: Hello, Challenge, evidence, failure notices.

Shapes only; what makes a document acceptable is decided by the Verifier. All of
them are RFC 8785 JSON with camelCase keys, hold strings, booleans and small
integers only, and refuse unknown fields. 64-bit values are decimal strings.
A fact that does not exist according to NVML is null; a read that failed is null too and
listed in `failedReads` under the name of the fact.

This module must not decode bytes (see `strict_json`) nor compute digests.
"""

from typing import Final

import msgspec

PROTOCOL: Final = 1

TYPE_CHALLENGE: Final = "application/vnd.gpuwarden.challenge.v1+json"
TYPE_EVIDENCE: Final = "application/vnd.gpuwarden.evidence.v1+json"
TYPE_EVIDENCE_WITH_PODS: Final = "application/vnd.gpuwarden.evidence.v2+json"
TYPE_FAILURE_NOTICE: Final = "application/vnd.gpuwarden.bad-news.v1+json"
TYPE_FAILURES: Final = "application/vnd.gpuwarden.failure-notice.v2+json"
FAILURE_TYPES: Final = frozenset({TYPE_FAILURE_NOTICE, TYPE_FAILURES})
"""Of what is sent unasked, under the spare nonce."""

WANT_PODS: Final = "pods"
"""In a challenge: answer with evidence that lists the running pods, if you can."""

WANT_FAILURES: Final = "failures"
"""In a challenge: send failure notices that name several failures and when they happened."""

MAX_FAILURES: Final = 64
"""Of one failure notice; the others follow with the next."""

ZERO_DIGEST: Final = "0" * 64
"""`prev` of the first evidence of a stream and of the first audit record."""


class Document(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True
):
    """Parent of every document below: immutable, strict, camelCase on the wire."""


class WitnessedCheckpoint(Document, frozen=True):
    """The last audit checkpoint an agent has seen from one log origin."""

    origin: str
    checkpoint: str
    """C2SP checkpoint text."""


class WitnessedLog(WitnessedCheckpoint, frozen=True):
    """The same, with the key of the log: what an agent remembers."""

    key: str
    """C2SP verifier key."""


class LogAlarm(Document, frozen=True):
    """A witness accuses an audit log; part of evidence for as long as the witness remembers."""

    code: str
    """CHECKPOINT_INCONSISTENT or LOG_RESET."""
    origin: str
    detail: str
    known: str
    """Checkpoint that the log had shown before; empty where there was none."""
    seen: str
    """Checkpoint that it showed then."""
    wall_ms: str
    """Wall time of the node when it happened."""


class Hello(Document, frozen=True):
    """First message of a stream, agent to controller; only its digest gets signed (Challenge)."""

    protocol: int
    agent_version: str
    instance_id: str
    """32 lower-case hex digits, drawn once per process."""
    boot_id: str
    node_name: str
    checkpoints: tuple[WitnessedCheckpoint, ...]


class Challenge(Document, frozen=True):
    """Signed by the controller's SVID; the agent answers it with evidence within `ttl_ms`."""

    protocol: int
    controller: str
    """SPIFFE ID of the controller: the audience of the evidence."""
    cluster: str
    trust_domain: str
    stream_id: str
    """32 lower-case hex digits."""
    challenge_id: str
    """32 lower-case hex digits."""
    nonce: str
    """64 lower-case hex digits."""
    spare_nonce: str
    """64 lower-case hex digits: the one nonce that failure notices may use."""
    hello_sha256: str
    """SHA-256 of the bytes of the Hello."""
    leaf_sha256: str
    """SHA-256 of the DER of the agent's leaf on this TLS session."""
    want: tuple[str, ...]
    """What is asked for: `inventory`, `pods`, later `hardware-report`; others are skipped."""
    ttl_ms: int
    """Time to answer."""
    interval_ms: int
    """Longest time until the next challenge."""
    checkpoint: str | None
    """The last signed one of the controller's audit log."""
    consistency_proof: tuple[str, ...]
    """From the checkpoint of this origin that the agent last sent on this stream, in base64."""
    wall_ms: str
    """Controller wall time, milliseconds since the epoch; informative."""
    log_key: str | None
    """C2SP verifier key that signed the checkpoint."""
    log_key_changes: tuple[str, ...]
    """Statements that lead from earlier keys to this one, oldest first."""


class MigDevice(Document, frozen=True):
    """One MIG device of a physical GPU; carries its parent by position."""

    uuid: str
    profile: str | None
    """For example `1g.10gb`."""
    memory_mib: int | None = msgspec.field(name="memoryMiB")


class NvLink(Document, frozen=True):
    """State of one NVLink of a GPU."""

    link: int
    active: bool
    peer: str | None
    """PCI bus id of the other end."""


class Fabric(Document, frozen=True):
    """NVLink fabric membership as the driver reports it."""

    kind: str
    """none, nvlink, nvswitch or mnnvl."""
    cluster_uuid: str | None
    clique: int | None


class Gpu(Document, frozen=True):
    """One physical GPU that answers. Keyed by UUID; the serial belongs to the board."""

    index: int
    """Position in PCI bus order among the node's physical GPUs, lost ones included, from 0."""
    uuid: str
    serial: str | None
    board_part_number: str | None
    product: str | None
    pci_bus_id: str
    pci: str | None
    """`vendor:device`, four lower-case hex digits each; null only where the read failed."""
    subsystem: str | None
    """As `pci`; no subsystem is `0000:0000`."""
    vbios: str | None
    gsp: str | None
    memory_bytes: str | None
    ecc: bool | None
    mig: bool | None
    mig_devices: tuple[MigDevice, ...]
    virt: str | None
    """none, passthrough, vgpu, host-vgpu or host-vsga."""
    compute_capability: str | None
    architecture: str | None
    compute_mode: str | None
    persistence_mode: bool | None
    nvlinks: tuple[NvLink, ...]
    fabric: Fabric | None
    chassis_serial: str | None
    module_id: int | None


class LostGpu(Document, frozen=True):
    """A GPU that was there and no longer answers; reported by its last UUID."""

    uuid: str
    index: int
    pci_bus_id: str
    error: str
    """Name of the NVML return, for example `GPU_IS_LOST`."""


class Host(Document, frozen=True):
    """Facts about the node that are not about one GPU."""

    driver: str | None
    cuda: str | None
    cc: str | None
    """devtools, ppcie, nvle, on or off; null where not supported."""
    arch: str
    system_uuid: str | None


class Inventory(Document, frozen=True):
    """Everything the node reports to have."""

    host: Host
    gpus: tuple[Gpu, ...]
    lost: tuple[LostGpu, ...]


class FailedRead(Document, frozen=True):
    """One NVML read that failed otherwise than by 'does not exist'."""

    fact: str
    """Field of `Gpu`, `Host` or `Inventory` in wire spelling, for example `memoryBytes`."""
    gpu: str | None
    """UUID of the GPU, its PCI bus id where even that is unknown, null for host facts."""
    call: str
    error: str


class Allocation(Document, frozen=True):
    """One device that kubelet gave to a container (PodResources)."""

    namespace: str
    pod: str
    container: str
    resource: str
    device: str


class GpuProcess(Document, frozen=True):
    """A process that uses a GPU, with the pod its cgroup names."""

    gpu: str
    pid: int
    pod_uid: str | None


class HardwareReport(Document, frozen=True):
    """Seam for L2: one NVML attestation report (base64) and its certificate chain."""

    gpu: str
    report: str
    chain: str


class EvidenceHeader(Document, frozen=True):
    """What binds a payload to one challenge of one stream of one process."""

    protocol: int
    audience: str
    trust_domain: str
    node_name: str
    stream_id: str
    challenge_id: str
    nonce: str
    challenge_sha256: str
    seq: int
    prev: str
    instance_id: str
    boot_id: str
    wall_ms: str
    boottime_ms: str
    """The node's CLOCK_BOOTTIME in milliseconds."""


class Evidence(EvidenceHeader, frozen=True):
    """Answer to a challenge: the whole inventory."""

    checkpoints: tuple[WitnessedCheckpoint, ...]
    inventory: Inventory
    allocations: tuple[Allocation, ...] | None
    """Null where kubelet's PodResources are not read."""
    processes: tuple[GpuProcess, ...] | None
    hardware_reports: tuple[HardwareReport, ...]
    failed_reads: tuple[FailedRead, ...]
    log_alarms: tuple[LogAlarm, ...]


class EvidenceWithPods(Evidence, frozen=True):
    """The same, in answer to a challenge that wants `pods`."""

    pods: tuple[str, ...] | None
    """UIDs of the pods in whose cgroups a process runs, sorted; null where that was not read."""


class FailureNotice(EvidenceHeader, frozen=True):
    """A failure, sent unasked under the spare nonce; can only take trust away."""

    kind: str
    """xid, gpu-lost, driver-reload or nvml-unavailable."""
    gpu: str | None
    xid: int | None
    detail: str


class Failure(Document, frozen=True):
    """One failure of a notice that names several."""

    kind: str
    """As `FailureNotice.kind`."""
    gpu: str | None
    xid: int | None
    detail: str
    happened_ms: str
    """The node's CLOCK_BOOTTIME in milliseconds when the agent heard of it; with the boot ID, GPU
    and XID it tells a repeat from the same failure reported again."""
    count: int
    """How often it happened, where an agent could not report each time."""


class FailureNotices(EvidenceHeader, frozen=True):
    """The same for several failures, in answer to a challenge that wants `failures`."""

    failures: tuple[Failure, ...]
    """At least 1, at most 64, oldest first."""
