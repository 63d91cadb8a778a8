"""What tables of nodes, GPUs and classes show. Pure: protobuf messages in, columns out."""

from collections.abc import Iterable
from typing import Final

from gpuwarden.cli.terminal import Column
from gpuwarden.wire.v1 import fleet_pb2 as pb

_PREFIX: Final = "v1:sha256:"
_SHORT: Final = 12
_MIB_PER_GIB: Final = 1024


def short_hash(text: str) -> str:
    """The first digits of a class hash: enough to name it on a command line."""
    return text.removeprefix(_PREFIX)[:_SHORT] if text.startswith(_PREFIX) else text


def duration(milliseconds: int) -> str:
    """Whole seconds, rounded down; empty for none."""
    return f"{milliseconds // 1000}s" if milliseconds else ""


def memory(mebibytes: int) -> str:
    """Memory as selectors name it, with one decimal."""
    return f"{mebibytes / _MIB_PER_GIB:.1f}Gi" if mebibytes else ""


def gpu_count(node: pb.Node) -> str:
    """GPUs that answer, of all where some are lost."""
    if node.lost_gpu_count:
        return f"{node.gpu_count - node.lost_gpu_count}/{node.gpu_count}"
    return str(node.gpu_count)


def guarantee(node: pb.Node) -> str:
    """The most that a pod is promised of the node's GPUs, and why no more."""
    if not node.guarantee_limit:
        return node.guarantee
    return f"{node.guarantee}, no more: {node.guarantee_limit}"


def joined(parts: Iterable[str]) -> str:
    """A list in one cell."""
    return ",".join(parts)


def nvlinks(gpu: pb.Gpu) -> str:
    """Links that are up, of all links."""
    return f"{gpu.nvlinks_active}/{gpu.nvlinks_total}" if gpu.nvlinks_total else ""


NODES: Final[tuple[Column[pb.Node], ...]] = (
    Column("NAME", lambda x: x.name),
    Column("STATE", lambda x: x.state),
    Column("LEVEL", lambda x: x.level),
    Column("GPUS", gpu_count),
    Column("PRODUCTS", lambda x: joined(x.products)),
    Column("CLASS", lambda x: short_hash(x.attestation_hash)),
    Column("FRESH", lambda x: duration(x.fresh_for_ms)),
    Column("REASON", lambda x: x.code),
    Column("DRIVER", lambda x: x.driver, wide=True),
    Column("CUDA", lambda x: x.cuda, wide=True),
    Column("CC", lambda x: x.cc, wide=True),
    Column("ARCH", lambda x: x.arch, wide=True),
    Column("MODE", lambda x: x.mode, wide=True),
    Column("GUARANTEE", guarantee, wide=True),
    Column("AGENT", lambda x: x.agent_version, wide=True),
    Column("EVIDENCE", lambda x: x.evidence_digest[:_SHORT], wide=True),
    Column("DETAIL", lambda x: x.detail, wide=True),
)

GPUS: Final[tuple[Column[pb.Gpu], ...]] = (
    Column("NODE", lambda x: x.node),
    Column("INDEX", lambda x: str(x.index)),
    Column("UUID", lambda x: x.uuid),
    Column("SERIAL", lambda x: x.serial),
    Column("PRODUCT", lambda x: x.product),
    Column("MEMORY", lambda x: memory(x.memory_mib)),
    Column("MIG", lambda x: x.mig),
    Column("HEALTH", lambda x: x.health),
    Column("BUS-ID", lambda x: x.pci_bus_id, wide=True),
    Column("PCI", lambda x: x.pci, wide=True),
    Column("SUBSYSTEM", lambda x: x.subsystem, wide=True),
    Column("VBIOS", lambda x: x.vbios, wide=True),
    Column("GSP", lambda x: x.gsp, wide=True),
    Column("ECC", lambda x: x.ecc, wide=True),
    Column("VIRT", lambda x: x.virt, wide=True),
    Column("COMPUTE", lambda x: x.compute_capability, wide=True),
    Column("FABRIC", lambda x: x.fabric, wide=True),
    Column("NVLINKS", nvlinks, wide=True),
    Column("PART", lambda x: x.board_part_number, wide=True),
    Column("LABELS", lambda x: joined(x.labels), wide=True),
)

MIG_DEVICES: Final[tuple[Column[tuple[pb.Gpu, pb.MigDevice]], ...]] = (
    Column("NODE", lambda x: x[0].node),
    Column("GPU", lambda x: str(x[0].index)),
    Column("MIG DEVICE", lambda x: x[1].uuid),
    Column("PROFILE", lambda x: x[1].profile),
    Column("MEMORY", lambda x: memory(x[1].memory_mib)),
)

ALLOCATIONS: Final[tuple[Column[pb.Allocation], ...]] = (
    Column("NAMESPACE", lambda x: x.namespace),
    Column("POD", lambda x: x.pod),
    Column("CONTAINER", lambda x: x.container),
    Column("RESOURCE", lambda x: x.resource),
    Column("DEVICE", lambda x: x.device),
)

PROCESSES: Final[tuple[Column[pb.GpuProcess], ...]] = (
    Column("PROCESS", lambda x: str(x.pid)),
    Column("GPU", lambda x: x.gpu),
    Column("POD UID", lambda x: x.pod_uid),
)

CLASSES: Final[tuple[Column[pb.Class], ...]] = (
    Column("CLASS", lambda x: short_hash(x.attestation_hash) or joined(x.names)),
    Column("NAMES", lambda x: joined(x.names)),
    Column("LEVEL", lambda x: x.level),
    Column("NODES", lambda x: str(len(x.nodes))),
    Column("GPUS", lambda x: str(x.gpu_count)),
    Column("HASHES", lambda x: joined((x.attestation_hash, *x.hashes)).strip(","), wide=True),
    Column("ON", lambda x: joined(x.nodes), wide=True),
)

FITS: Final[tuple[Column[pb.Fit], ...]] = (
    Column("NODE", lambda x: x.node),
    Column("FITS", lambda x: "yes" if x.passes else "no"),
    Column("SCORE", lambda x: str(x.score) if x.passes else ""),
    Column("GUARANTEE", lambda x: x.guarantee),
    Column("REASON", lambda x: x.code),
    Column("DETAIL", lambda x: x.detail),
)

REFUSALS: Final[tuple[Column[pb.PastRefusal], ...]] = (
    Column("AT", lambda x: x.at),
    Column("STEP", lambda x: str(x.step) if x.step else ""),
    Column("CODE", lambda x: x.code),
    Column("COUNT", lambda x: str(x.count)),
    Column("DETAIL", lambda x: x.detail),
)
