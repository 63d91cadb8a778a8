"""What can come out of asking for one fact: a value, "does not exist", or a failure.

Which NVML returns mean which is decided here, and nowhere else. Pure.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

T = TypeVar("T")

ABSENT: Final = frozenset({"NOT_SUPPORTED", "FUNCTION_NOT_FOUND"})
"""The fact does not exist here: null, not a failure."""

LOST: Final = frozenset({"GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND"})
"""The GPU itself no longer answers."""

DRIVER_GONE: Final = frozenset({"DRIVER_NOT_LOADED", "LIB_RM_VERSION_MISMATCH"})
"""The kernel driver is not there, or not the one that this library belongs to."""

UNAVAILABLE: Final = DRIVER_GONE | {"LIBRARY_NOT_FOUND"}
"""NVML cannot be had at all."""

NO_VALUE: Final = "INVALID_VALUE"
"""Our own name for an answer that cannot be read as what it should be."""

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
"""Null stands for "does not exist"."""


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
