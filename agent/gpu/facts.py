"""What one pass over NVML found out, fact by fact, before anything is concluded. Pure.

Each fact is a value, "does not exist" or a failure. What each return of each call means is
decided in `consequences`. `survey` fills the facts, `inventory` draws the conclusions.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from gpuwarden.evidence.model import Fabric, MigDevice, NvLink

# --- outcomes of one read

T = TypeVar("T")

ABSENT: Final = frozenset({"NOT_SUPPORTED", "FUNCTION_NOT_FOUND"})
"""The fact does not exist here: null, not a failure."""

LOST: Final = frozenset({"GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND"})
"""The GPU itself no longer answers."""

DRIVER_GONE: Final = frozenset({"DRIVER_NOT_LOADED", "LIB_RM_VERSION_MISMATCH"})
"""The kernel driver is not there, or not the one that this library belongs to."""

NO_VALUE: Final = "INVALID_VALUE"
"""gpuwarden's own name for an answer that cannot be read as what it should be."""

TIMED_OUT: Final = "TIMEOUT"
"""The call did not come back within its deadline."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A read that failed otherwise than by "does not exist"."""

    call: str
    """The NVML function."""
    error: str
    """Name of the return, for example `NO_PERMISSION`."""


Outcome: TypeAlias = T | Failed | None
"""Null means "does not exist"."""


class NvmlUnavailableError(Exception):
    """There is no library or no driver to ask."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(f"{failed.call}: {failed.error}")
        self.failed = failed


class DriverReloadedError(NvmlUnavailableError):
    """The driver went away or changed under this process, which cannot read again: it must end."""


class DeviceLostError(Exception):
    """The GPU that was asked no longer answers."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(f"{failed.call}: {failed.error}")
        self.failed = failed


# --- facts of one pass


@dataclass(frozen=True, slots=True)
class PciAddress:
    """Where a GPU sits and what it reports to be."""

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
    pid_failures: tuple[Failed, ...] = ()
    """Lists of processes that held what is no process."""


@dataclass(frozen=True, slots=True)
class DeviceSurvey:
    """What was found behind one NVML index."""

    index: int
    pci: Outcome[PciAddress]
    uuid: Outcome[str]
    facts: GpuFacts | None
    """Null where the GPU is lost."""
    lost: Failed | None
    """Why nothing can be had of it, or nothing by which it can be named."""


@dataclass(frozen=True, slots=True)
class Survey:
    """One pass over NVML."""

    driver: Outcome[str]
    cuda: Outcome[str]
    cc: Outcome[str]
    devices: tuple[DeviceSurvey, ...]
    count: Outcome[int]
    """How many GPUs NVML counts."""
