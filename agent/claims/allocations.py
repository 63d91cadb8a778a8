"""What kubelet says it has given to containers, as it goes into evidence. Values only."""

from dataclasses import dataclass
from typing import Final

from gpuwarden.evidence.model import Allocation, FailedRead


@dataclass(frozen=True, slots=True)
class AllocationReading:
    """One look at kubelet's allocations."""

    allocations: tuple[Allocation, ...] | None
    """Sorted; null where kubelet was not asked or gave no answer."""
    failed_reads: tuple[FailedRead, ...] = ()
    """At most one: why there is no answer, or that not all of it is here."""
    detail: str = ""
    """For people and the log: what failed, one line."""


NOT_ASKED: Final = AllocationReading(None)
"""This agent is not to ask kubelet."""
