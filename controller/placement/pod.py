"""Pod.

Holds: pod, gpu map, ordinal, place, device count, reserved keys.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from controller.placement.texts import (
    GPU_COUNT,
    LABEL_PREFIXES,
    MAP,
    ORDINAL,
    PREFIX,
    RequirementRules,
    RequirementTextError,
    parse_count,
    shown,
)
from gpuwarden.finding import Finding
from gpuwarden.identity.spiffe_id import is_node_name

# --- pod
# The parts of a v1 Pod that placement reads, decoded from JSON into typed values. Pure.
#
# Unknown fields are skipped: the API server owns the schema, and a newer one must
# not stop us. What we read has exactly the API's types.

_MAX_BYTES = 4 * 1024 * 1024
_ENDED = frozenset({"Succeeded", "Failed"})


class PodDecodeError(ValueError):
    """The bytes are no Pod; says what is wrong and where."""


class _Object(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Parent of the structs below."""


class OwnerReference(_Object, frozen=True, gc=False):
    """metadata.ownerReferences[]."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class Metadata(_Object, frozen=True, gc=False):
    """ObjectMeta; every field may be absent or null."""

    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None


class Resources(_Object, frozen=True, gc=False):
    """ResourceRequirements; quantities as the API writes them, or as YAML numbers."""

    requests: dict[str, str | int | float] | None = None
    limits: dict[str, str | int | float] | None = None


class Container(_Object, frozen=True, gc=False):
    """One container or init container."""

    name: str = ""
    resources: Resources | None = None
    restart_policy: str | None = None
    """`Always` on an init container makes it a sidecar (KEP-753)."""


class ResourceClaim(_Object, frozen=True, gc=False):
    """PodResourceClaim, or a container's use of one: that it is there is all that is read.

    No msgspec.Raw: that would keep the whole message alive.
    """


class PodSpec(_Object, frozen=True, gc=False):
    """PodSpec."""

    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    resources: Resources | None = None
    """Pod-level resources (KEP-2837)."""
    resource_claims: tuple[ResourceClaim, ...] | None = None
    node_name: str | None = None


class PodStatus(_Object, frozen=True, gc=False):
    """PodStatus."""

    phase: str = ""


class Pod(_Object, frozen=True, gc=False):
    """A Pod."""

    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def annotations(self) -> dict[str, str]:
        """Annotations, empty where there are none."""
        return self.metadata.annotations or {}

    @property
    def labels(self) -> dict[str, str]:
        """Labels, empty where there are none."""
        return self.metadata.labels or {}

    @property
    def has_ended(self) -> bool:
        """Whether no container of it will ever run again."""
        return self.status.phase in _ENDED


class _Template(msgspec.Struct, frozen=True):
    spec: dict[str, msgspec.Raw] | None = None


_POD = msgspec.json.Decoder(Pod)
_TEMPLATE = msgspec.json.Decoder(_Template)
_MAX_NESTING = 3


def decode_pod(data: bytes | bytearray | memoryview | msgspec.Raw) -> Pod:
    """Decode a Pod; raises PodDecodeError."""
    try:
        return _POD.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PodDecodeError(f"not a Pod: {error}") from None


def find_pod(data: bytes) -> Pod:
    """Decode a Pod, or the pod template inside a Deployment, StatefulSet, Job, CronJob and so on.

    A template has no name, so a map's ordinal stays undecided. Raises PodDecodeError.
    """
    if len(data) > _MAX_BYTES:
        raise PodDecodeError(f"more than {_MAX_BYTES} bytes")
    inner: bytes | msgspec.Raw = data
    for _ in range(_MAX_NESTING):
        try:
            spec = _TEMPLATE.decode(inner).spec or {}
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise PodDecodeError(f"not a Pod: {error}") from None
        below = spec.get("template") or spec.get("jobTemplate")
        if below is None or "containers" in spec:
            break
        inner = below
    pod = decode_pod(inner)
    if not pod.spec.containers:
        raise PodDecodeError("not a Pod: spec.containers is missing or empty")
    return pod


def device_requests(pod: Pod, resources: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Effective request per managed resource, those above 0 only.

    max(sum of containers and sidecars, largest init step), where an init step runs
    beside the sidecars before it (k8s component-helpers, `PodRequests`); never less
    than a pod-level request. Raises RequirementTextError for a quantity that is no count.
    """
    pairs = ((resource, _effective(pod.spec, resource)) for resource in resources)
    return tuple((resource, count) for resource, count in pairs if count)


def requested(resources: Resources | None, resource: str) -> int:
    """What one container asks of `resource`; a limit counts where there is no request.

    Raises RequirementTextError for a quantity that is no count.
    """
    if resources is None:
        return 0
    for amounts in (resources.requests, resources.limits):
        if amounts is not None and resource in amounts:
            return parse_count(str(amounts[resource]))
    return 0


def _effective(spec: PodSpec, resource: str) -> int:
    total = sum(requested(container.resources, resource) for container in spec.containers or ())
    sidecars = largest_step = 0
    for container in spec.init_containers or ():
        count = requested(container.resources, resource)
        if container.restart_policy == "Always":
            sidecars += count
            total += count
            largest_step = max(largest_step, sidecars)
        else:
            largest_step = max(largest_step, count + sidecars)
    return max(total, largest_step, requested(spec.resources, resource))


# --- gpu map
# The `gpu-scheduling-map`: one `ordinal=node:devices` per line (formats design, section 5). Pure.
#
# One wrong line makes the whole map wrong: a map that is half read would send pods
# elsewhere than its author meant. Every wrong line is reported, with its number.

_MAX_CHARS = 64 * 1024
_MAX_LINES = 4096
_MAX_DEVICES = 64
_ORDINAL = re.compile(r"[0-9]{1,18}")
_INDEX = re.compile(r"[0-9]{1,3}")
_UUID = re.compile(
    r"(?:GPU|MIG)-[0-9A-Za-z-]{1,64}|MIG-GPU-[0-9A-Za-z-]{1,64}/[0-9]{1,3}/[0-9]{1,3}"
)

MIG_ALONE: Final = "a MIG device alone: CUDA shows a process one of them and nothing else"


@dataclass(frozen=True, slots=True)
class Place:
    """Where one ordinal goes. A device is an index (position in PCI bus order) or a UUID."""

    node: str
    devices: tuple[int | str, ...]


def is_device_uuid(text: str) -> bool:
    """Whether `text` is spelled like the UUID of a GPU or MIG device (legacy form included)."""
    return _UUID.fullmatch(text) is not None


def is_too_much(devices: Sequence[int | str]) -> bool:
    """Whether a container would be given more than CUDA shows it: a MIG device and another."""
    return len(devices) > 1 and any(str(x).startswith("MIG-") for x in devices)


def parse_ordinal(text: str) -> int:
    """Read an ordinal; leading zeros do not count; raises RequirementTextError."""
    if not _ORDINAL.fullmatch(text):
        raise RequirementTextError("a whole number, 0 or more")
    return int(text)


def parse_gpu_map(text: str) -> Mapping[int, Place] | tuple[Finding, ...]:
    """The places by ordinal, or every fault."""
    if len(text) > _MAX_CHARS:
        return (Finding(MAP, f"{len(text)} characters", f"at most {_MAX_CHARS}"),)
    lines = text.split("\n")
    if len(lines) > _MAX_LINES:
        return (Finding(MAP, f"{len(lines)} lines", f"at most {_MAX_LINES}"),)
    places: dict[int, Place] = {}
    findings: list[Finding] = []
    for number, raw in enumerate(lines, 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        try:
            ordinal, place = _line(line)
        except RequirementTextError as error:
            findings.append(Finding(f"{MAP} line {number}", shown(line), str(error)))
            continue
        if ordinal in places:
            findings.append(Finding(f"{MAP} line {number}", shown(line), "each ordinal once"))
        places[ordinal] = place
    if not places and not findings:
        findings.append(Finding(MAP, shown(text), "at least one line ordinal=node:devices"))
    return tuple(findings) or places


def _line(line: str) -> tuple[int, Place]:
    left, equals, right = line.partition("=")
    node, colon, devices = (part.strip() for part in right.partition(":"))
    if not equals or not colon:
        raise RequirementTextError("ordinal=node:devices, such as 0=node1:0,1")
    ordinal = parse_ordinal(left.strip())
    if not is_node_name(node):
        raise RequirementTextError(f"a node name (RFC 1123 subdomain), not {shown(node)}")
    return ordinal, Place(node, _devices(devices))


def _devices(text: str) -> tuple[int | str, ...]:
    devices = tuple(_device(part.strip()) for part in text.split(","))
    if len(devices) > _MAX_DEVICES:
        raise RequirementTextError(f"at most {_MAX_DEVICES} devices")
    if len(set(devices)) != len(devices):
        raise RequirementTextError("each device once")
    if is_too_much(devices):
        raise RequirementTextError(MIG_ALONE)
    return devices


def _device(text: str) -> int | str:
    if _INDEX.fullmatch(text):
        return int(text)
    if is_device_uuid(text):
        return text
    raise RequirementTextError(f"devices as indices or GPU-/MIG- UUIDs, not {shown(text)}")


# --- ordinal
# Which line of a map is this pod's (placement design, section 1). Pure.
#
# In order: the annotation `gpuwarden.dev/ordinal`, the label
# `apps.kubernetes.io/pod-index`, `batch.kubernetes.io/job-completion-index` (label or
# annotation), a StatefulSet's name suffix, a bare pod's `name-N`. A ReplicaSet's
# random suffix is never one, even when it happens to be all digits.

_POD_INDEX = "apps.kubernetes.io/pod-index"
_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
ORDINAL_KEYS: Final = (ORDINAL, _POD_INDEX, _COMPLETION_INDEX)
"""Keys that can hold an ordinal, first of all first."""
_TEMPLATE_HASH = "pod-template-hash"
_NAME = re.compile(r".+-([0-9]{1,18})")


def pod_ordinal(pod: Pod) -> int | Finding | None:
    """The ordinal, what is wrong with the one that is given, or None where there is none."""
    for key, texts in (
        (ORDINAL, pod.annotations),
        (_POD_INDEX, pod.labels),
        (_COMPLETION_INDEX, pod.labels),
        (_COMPLETION_INDEX, pod.annotations),
    ):
        if key in texts:
            try:
                return parse_ordinal(texts[key])
            except RequirementTextError as error:
                return Finding(key, shown(texts[key]), str(error))
    return _from_name(pod)


def _from_name(pod: Pod) -> int | None:
    owners = pod.metadata.owner_references or ()
    owner = next((owner for owner in owners if owner.controller), None)
    name = pod.metadata.name or ""
    match = _NAME.fullmatch(name)
    if match is None or _TEMPLATE_HASH in pod.labels:
        return None
    if owner is not None and owner.kind == "StatefulSet":
        return int(match[1]) if name == f"{owner.name}-{match[1]}" else None
    return None if owners else int(match[1])


# --- place
# This pod's line of the `gpu-scheduling-map`. Pure.


def read_place(pod: Pod, findings: list[Finding]) -> tuple[Place | None, bool]:
    """The pod's place, and whether other lines of the map name the same place.

    None without a map, with a fault, or while the pod's name is not final. A pod that has its
    name but no ordinal, or an ordinal without a line, is a fault.
    """
    text = pod.annotations.get(MAP)
    if text is None:
        if ORDINAL in pod.annotations:
            findings.append(Finding(ORDINAL, shown(pod.annotations[ORDINAL]), f"{MAP} beside it"))
        return None, False
    places, ordinal = parse_gpu_map(text), pod_ordinal(pod)
    if isinstance(ordinal, Finding):
        findings.append(ordinal)
    if isinstance(places, tuple):
        findings.extend(places)
        return None, False
    if isinstance(ordinal, int) and ordinal not in places:
        findings.append(Finding(MAP, f"ordinal {ordinal}", "a line for this pod's ordinal"))
    if ordinal is None and pod.metadata.name:
        findings.append(
            Finding(MAP, shown(pod.metadata.name), f"a pod with an ordinal (see {ORDINAL})")
        )
    place = places.get(ordinal) if isinstance(ordinal, int) else None
    return place, place is not None and list(places.values()).count(place) > 1


# --- device count
# How many devices a pod needs (placement design, section 1). Pure.
#
# What kubelet is asked for wins; without such a request the devices that the requirement
# names, else `gpuwarden.dev/gpu-count`, else 1 for a requirement about GPUs and 0 for a requirement
# about the node alone. Numbers that contradict each other are a fault.

_MAX_COUNT = 1024


def device_count(
    requested: int, named: int, given: int | None, *, asks_gpus: bool
) -> int | Finding:
    """The count; `named` is 0 where no devices are named, `given` is the annotation's number."""
    count = requested or named or given or (1 if asks_gpus else 0)
    source = "the pod requests" if requested else "devices are named"
    if named and named != count:
        return Finding("named devices", str(named), f"as many as {source}: {count}")
    if given is not None and given != count:
        return Finding(GPU_COUNT, str(given), f"as many as {source}: {count}")
    return count


def read_count(annotations: Mapping[str, str], findings: list[Finding]) -> int | None:
    """The number in `gpuwarden.dev/gpu-count`, None where there is none or a wrong one."""
    text = annotations.get(GPU_COUNT)
    if text is None:
        return None
    try:
        count = parse_count(text)
    except RequirementTextError:
        count = 0
    if 1 <= count <= _MAX_COUNT:
        return count
    findings.append(Finding(GPU_COUNT, shown(text), f"a whole number from 1 to {_MAX_COUNT}"))
    return None


# --- reserved keys
# Keys on pods that belong to gpuwarden, from the one value that configures them. Pure.
#
# The policies in deploy/policy hold the same keys as the defaults here (tests compare them),
# and the webhooks ask here. Must not judge pods: who may write a key, and when, is admission's
# business.

MANAGED_TAINT: Final = "gpuwarden.dev/managed"
"""Key of the taint of managed nodes, where the installation protects them."""
MANAGED_EFFECT: Final = "NoExecute"
"""Its effect: the only one whose toleration admission injects."""

RUNTIME_DEVICE_PREFIXES: Final = (
    "cdi.k8s.io/",
    "nvidia.cdi.k8s.io",
    "cdi-devices.nri.io",
    "cdi-devices.noderesource.dev",
    "cdi.nri.io",
    "devices.nri.io",
    "devices.noderesource.dev",
    "devices.gke.io",
    "mounts.nri.io",
    "mounts.noderesource.dev",
    "io.kubernetes.cri-o.Devices",
    "devices.crio.io",
    "io.kubernetes.cri-o.PlatformRuntimePath",
    "platform-runtime-path.crio.io",
    "org.systemd.property.",
)
"""Annotations by which container runtimes and their NRI plugins give a container devices.

Read when a container is created, so long after admission: CDI (containerd, CRI-O), NVIDIA's
toolkit and NRI's device injector under its old and new names, GKE's, CRI-O's own under its old and
new names, and systemd's properties of the container's unit (`DeviceAllow`), which runc and crun set
from annotations. CRI-O also keeps in one of them which program the runtime is.
"""


@dataclass(frozen=True, slots=True)
class ReservedKeys:
    """Annotations and labels alike: a key of ours has no meaning as the other of both."""

    prefixes: tuple[str, ...]
    """Everything that begins so is ours."""
    names: tuple[str, ...]
    """Ours besides, whole."""
    ordinals: tuple[str, ...]
    """Others' keys that say which line of a map is the pod's, on pods with a map."""

    def is_ours(self, key: str) -> bool:
        """Whether nobody else gives `key` a meaning."""
        return key.startswith(self.prefixes) or key in self.names


def reserved_keys(rules: RequirementRules) -> ReservedKeys:
    """The keys of an installation."""
    prefixes = (PREFIX, *(x for x in LABEL_PREFIXES if not x.startswith(PREFIX)))
    names = (*rules.hash_keys, MAP)
    return ReservedKeys(
        prefixes,
        tuple(sorted({x for x in names if not x.startswith(prefixes)})),
        tuple(x for x in ORDINAL_KEYS if not x.startswith(prefixes)),
    )
