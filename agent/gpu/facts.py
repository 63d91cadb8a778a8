"""Everything one pass over NVML found out, fact by fact, before anything is concluded.

Values only; `survey` fills them, `inventory` draws the conclusions.
"""

from dataclasses import dataclass

from agent.gpu.outcome import Failed, Outcome
from gpuwarden.evidence.model import Fabric, MigDevice, NvLink


@dataclass(frozen=True, slots=True)
class PciAddress:
    """Where a GPU sits and what it says it is."""

    bus_id: str
    """As the driver writes it: `00000000:1B:00.0`."""
    pci: str
    """`vendor:device`, four lower-case hex digits each."""
    subsystem: str


@dataclass(frozen=True, slots=True)
class MigState:
    """MIG mode and devices of one GPU."""

    mode: Outcome[bool]
    devices: tuple[MigDevice, ...]
    failures: tuple[Failed, ...]
    """Reads of MIG devices that failed."""


@dataclass(frozen=True, slots=True)
class LinkState:
    """NVLinks of one GPU."""

    links: tuple[NvLink, ...]
    switched: bool
    """An active link ends at a switch."""
    failures: tuple[Failed, ...]


@dataclass(frozen=True, slots=True)
class Platform:
    """Place of the GPU in its chassis."""

    chassis_serial: str | None
    module_id: int | None


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """All facts about one GPU that answers, beside its place and UUID."""

    serial: Outcome[str]
    board_part_number: Outcome[str]
    product: Outcome[str]
    vbios: Outcome[str]
    gsp: Outcome[str]
    memory_bytes: Outcome[int]
    ecc: Outcome[bool]
    mig: MigState
    virt: Outcome[str]
    compute_capability: Outcome[str]
    architecture: Outcome[str]
    compute_mode: Outcome[str]
    persistence_mode: Outcome[bool]
    links: LinkState
    fabric: Outcome[Fabric]
    platform: Outcome[Platform]
    module_id: Outcome[int]
    pids: Outcome[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class DeviceSurvey:
    """What was found behind one NVML index."""

    index: int
    pci: Outcome[PciAddress]
    uuid: Outcome[str]
    facts: GpuFacts | None
    """Null where the GPU is lost, or its place or UUID could not be read."""
    lost: Failed | None


@dataclass(frozen=True, slots=True)
class Survey:
    """One pass over NVML."""

    driver: Outcome[str]
    cuda: Outcome[str]
    cc: Outcome[str]
    devices: tuple[DeviceSurvey, ...]
    count: Outcome[int]
    """How many GPUs NVML says there are."""
