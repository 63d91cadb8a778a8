"""Nodes of a verified fleet as views, made from a few words."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from controller.fleet.view import Acceptance, FleetSnapshot, GpuView, NodeView, PastRefusal
from controller.policy import Level, NodeMode
from gpuwarden.evidence.model import Host, LostGpu, MigDevice, NvLink
from gpuwarden.reasons import EFFECT_OF, Effect, ReasonCode

SECOND_NS = 1_000_000_000
LEASE_NS = 90 * SECOND_NS
NOW_NS = 1_000 * SECOND_NS
"""Controller CLOCK_BOOTTIME of most tests; `acceptance` issued its challenge at it."""


def hash_of(letter: str) -> str:
    """A class hash that is easy to tell from others: `hash_of("a")`."""
    return "v1:sha256:" + letter * 64


def gpu(
    index: int,
    uuid: str = "",
    *,
    product: str | None = "NVIDIA H100 80GB HBM3",
    memory_mib: int | None = 81559,
    mig: bool | None = False,
    mig_devices: Iterable[MigDevice] = (),
    lost: bool = False,
    unhealthy: str | None = None,
    peers: Iterable[str] = (),
) -> GpuView:
    """One GPU; `peers` are the far ends of its active NVLinks."""
    bus = f"00000000:{index:02X}:00.0"
    uuid = uuid or f"GPU-{index}"
    return GpuView(
        index=index,
        uuid=uuid,
        serial=f"16500000{index}",
        board_part_number=None,
        product=product,
        pci_bus_id=bus,
        pci="10de:2330",
        subsystem="10de:16c1",
        vbios="96.00.74.00.11",
        gsp="570.86.10",
        memory_mib=memory_mib,
        ecc=True,
        mig=mig,
        mig_devices=tuple(mig_devices),
        virt="none",
        compute_capability="9.0",
        architecture="hopper",
        compute_mode="default",
        persistence_mode=True,
        nvlinks=tuple(NvLink(i, active=True, peer=peer) for i, peer in enumerate(peers)),
        fabric_kind="nvswitch",
        chassis_serial=None,
        module_id=index,
        lost=LostGpu(uuid, index, bus, "GPU_IS_LOST") if lost else None,
        unhealthy=unhealthy,
    )


def mig_slice(uuid: str, profile: str = "1g.10gb", memory_mib: int = 9856) -> MigDevice:
    return MigDevice(uuid=uuid, profile=profile, memory_mib=memory_mib)


def acceptance(
    attestation_hash: str = hash_of("a"),
    gpus: Iterable[GpuView] = (),
    *,
    level: Level = Level.L0,
    issued_ns: int = NOW_NS,
    lease_ns: int = LEASE_NS,
    driver: str | None = "570.86.10",
    cuda: str | None = "12.8",
    cc: str | None = "off",
    processes: Mapping[str, int] = MappingProxyType({}),
) -> Acceptance:
    return Acceptance(
        attestation_hash=attestation_hash,
        level=level,
        host=Host(driver=driver, cuda=cuda, cc=cc, arch="x86_64", system_uuid=None),
        gpus=tuple(gpus),
        evidence_digest="e" * 64,
        identity_digest="i" * 64,
        identity_document=b"{}",
        class_document=b"{}",
        instance_id="1" * 32,
        boot_id="boot",
        agent_version="0.1.0",
        challenge_issued_ns=issued_ns,
        fresh_until_ns=issued_ns + lease_ns,
        accepted_wall_ns=0,
        processes_by_gpu=processes,
    )


def past(code: ReasonCode) -> PastRefusal:
    return PastRefusal(0, code, 0, EFFECT_OF.get(code, Effect.TRANSIENT), "", 1)


def node(
    name: str,
    accepted: Acceptance | None = None,
    *,
    blocked: ReasonCode | None = None,
    refused: ReasonCode | None = None,
    mode: NodeMode = NodeMode.ENV,
) -> NodeView:
    refusals = tuple(past(code) for code in (blocked, refused) if code is not None)
    block = None if blocked is None else past(blocked)
    return NodeView(name, accepted, block, refusals, mode)


def healthy(name: str, letter: str = "a", gpus: int = 8, **changes: object) -> NodeView:
    """A fresh `env` node with equal GPUs; `changes` go to the NodeView."""
    views = tuple(gpu(index, f"GPU-{name}-{index}") for index in range(gpus))
    return replace(node(name, acceptance(hash_of(letter), views)), **changes)  # type: ignore[arg-type] # fields by name


def fleet(*nodes: NodeView) -> FleetSnapshot:
    by_hash: dict[str, set[str]] = {}
    for each in nodes:
        if each.acceptance is not None:
            by_hash.setdefault(each.acceptance.attestation_hash, set()).add(each.name)
    return FleetSnapshot(
        nodes=MappingProxyType({each.name: each for each in nodes}),
        nodes_by_hash=MappingProxyType({text: frozenset(names) for text, names in by_hash.items()}),
        version=1,
    )
