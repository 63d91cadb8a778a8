"""Decides when the watch on the Workload API is built, doubted, probed and built again.

Known silent deaths of the watch (spiffe 0.3.2): it closes for good after one
malformed or empty answer or CANCELLED; its thread dies after 1,024 retries; it
keeps an SVID that was redacted or has expired; its connection backs off for
minutes after the agent has returned. None of them is reported by the library, so
the watch is asked (closed?), compared with a fresh fetch (probe), and distrusted
when a renewal is overdue.

Pure: times are seconds of CLOCK_BOOTTIME that the caller passes in; each event
returns the next state.
"""

from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import Self

_MAX_DOUBLINGS = 16
_DENIALS_TO_WITHDRAW = 2


@dataclass(frozen=True, slots=True)
class Limits:
    """Timings of the watchdog in seconds, and the longest lifetime an SVID may have."""

    fetch_timeout: float = 5.0
    first_update_timeout: float = 10.0
    tick: float = 5.0
    """How soon a closed watch is noticed."""
    probe_every: float = 60.0
    confirm_after: float = 5.0
    """A denied or contradicting probe is repeated once, so late, before it counts."""
    backoff_base: float = 0.2
    backoff_cap: float = 5.0
    overdue_retry: float = 60.0
    """Between rebuilds of a watch that answers and still has no new SVID."""
    max_lifetime: timedelta = timedelta(hours=24)


class Step(StrEnum):
    """What to do now."""

    BUILD = "build"
    PROBE = "probe"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Watchdog:
    """State of the watch. `overdue` arguments: the watch has no SVID that is good for long."""

    limits: Limits = field(default_factory=Limits)
    watching: bool = False
    failures: int = 0
    """Consecutive ones; decides the backoff."""
    build_at: float = 0.0
    probe_at: float = 0.0
    denials: int = 0
    doubted: bool = False

    def step(self, now: float, *, overdue: bool) -> Step:
        """What is due at `now`."""
        if (overdue or not self.watching) and now >= self.build_at:
            return Step.BUILD
        if self.watching and now >= self.probe_at:
            return Step.PROBE
        return Step.WAIT

    def wait_seconds(self, now: float, *, overdue: bool) -> float:
        """How long nothing is due, at most one tick."""
        waits = [self.limits.tick]
        if overdue or not self.watching:
            waits.append(self.build_at - now)
        if self.watching:
            waits.append(self.probe_at - now)
        return max(0.0, min(waits))

    @property
    def withdrawn(self) -> bool:
        """Whether the Workload API has said twice that this process has no identity."""
        return self.denials >= _DENIALS_TO_WITHDRAW

    def built(self, now: float, overdue_retry: float) -> Self:
        """A new watch has had its first update; if that is no better, build again so late."""
        return replace(
            self,
            watching=True,
            failures=0,
            denials=0,
            doubted=False,
            build_at=now + min(overdue_retry, self.limits.overdue_retry),
            probe_at=now + self.limits.probe_every,
        )

    def ended(self) -> Self:
        """The watch was given up so that a new one can be built."""
        return replace(self, watching=False)

    def failed(self, now: float, jitter: float) -> Self:
        """The watch is gone or could not be built; `jitter` in [0, 1) spreads the next attempt."""
        doublings = min(self.failures, _MAX_DOUBLINGS)
        ceiling = min(self.limits.backoff_cap, self.limits.backoff_base * 2**doublings)
        return replace(
            self,
            watching=False,
            failures=self.failures + 1,
            doubted=False,
            build_at=now + jitter * ceiling,
        )

    def denied(self, now: float, jitter: float) -> Self:
        """PERMISSION_DENIED: the first time it is asked again soon, the second time it counts."""
        again = now + self.limits.confirm_after
        heard = replace(self, denials=self.denials + 1, probe_at=again, build_at=again)
        return heard.failed(now, jitter) if heard.withdrawn else heard

    def probed(self, now: float, *, behind: bool) -> Self:
        """A fetch was answered; a watch that is behind twice in a row is built again at once."""
        if not behind:
            return replace(self, denials=0, doubted=False, probe_at=now + self.limits.probe_every)
        if not self.doubted:
            return replace(self, denials=0, doubted=True, probe_at=now + self.limits.confirm_after)
        return replace(self, watching=False, denials=0, doubted=False, build_at=now)
