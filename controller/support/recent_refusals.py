"""The last refusals of this controller, for people who look for a cause: codes, never texts.

A refusal that repeats is counted. Bounded, whatever callers do: the one that was seen
longest ago goes first. One event loop; must not wait.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from gpuwarden.reasons import ReasonCode

KEPT: Final = 256


@dataclass(frozen=True, slots=True)
class RecentRefusal:
    """What was refused to whom; times are nanoseconds since the Unix epoch."""

    what: str
    """`evidence`, or the full name of a gRPC method, `unknown` for one that is not ours."""
    subject: str | None
    """Node that evidence was about, or kind of caller; None where nobody was recognised."""
    code: ReasonCode
    step: int | None
    """Of verification."""
    first_ns: int
    last_ns: int
    count: int = 1


class RecentRefusals:
    """One for the process."""

    def __init__(self, wall_ns: Callable[[], int], kept: int = KEPT) -> None:
        self._wall_ns = wall_ns
        self._kept = kept
        self._entries: OrderedDict[tuple[str, str | None, str, int | None], RecentRefusal] = (
            OrderedDict()
        )

    def note(
        self, what: str, subject: str | None, code: ReasonCode, step: int | None = None
    ) -> None:
        """Take note of a refusal."""
        now_ns, key = self._wall_ns(), (what, subject, code.value, step)
        known = self._entries.pop(key, None)
        self._entries[key] = (
            RecentRefusal(what, subject, code, step, now_ns, now_ns)
            if known is None
            else replace(known, last_ns=now_ns, count=known.count + 1)
        )
        if len(self._entries) > self._kept:
            self._entries.popitem(last=False)

    def newest_first(self) -> tuple[RecentRefusal, ...]:
        """All that are kept."""
        return tuple(reversed(self._entries.values()))
