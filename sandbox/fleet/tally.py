"""What a simulated fleet has seen so far: counts and latencies, addable over processes.

Values only. A latency is the time from a challenge's arrival at a node to its verdict.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

_KEPT = 4096
"""Latencies kept between two reports; enough for percentiles, whatever the fleet's size."""


@dataclass(slots=True)
class Tally:
    """Counts since the start; `latencies_ms` since the last `take`."""

    streams: int = 0
    """Open now."""
    opened: int = 0
    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """By reason code."""
    ends: Counter[str] = field(default_factory=Counter)
    """Streams that ended, by reason."""
    happened: Counter[str] = field(default_factory=Counter)
    """Drops, restarts, rotations and upgrades carried out."""
    alarms: Counter[str] = field(default_factory=Counter)
    """Accusations of the audit log, by code."""
    lost_rounds: int = 0
    latencies_ms: list[float] = field(default_factory=list)

    def judged(self, code: str, latency_ms: float | None) -> None:
        """Count a verdict."""
        if code == "ACCEPTED":
            self.accepted += 1
        else:
            self.refused[code] += 1
        if latency_ms is not None and len(self.latencies_ms) < _KEPT:
            self.latencies_ms.append(latency_ms)

    def take(self) -> "Tally":
        """A copy; the latencies move into it."""
        copy = Tally(
            self.streams,
            self.opened,
            self.accepted,
            self.refused.copy(),
            self.ends.copy(),
            self.happened.copy(),
            self.alarms.copy(),
            self.lost_rounds,
            self.latencies_ms,
        )
        self.latencies_ms = []
        return copy


def total(tallies: Sequence[Tally]) -> Tally:
    """The sum over several processes."""
    result = Tally()
    for one in tallies:
        result.streams += one.streams
        result.opened += one.opened
        result.accepted += one.accepted
        result.lost_rounds += one.lost_rounds
        result.refused += one.refused
        result.ends += one.ends
        result.happened += one.happened
        result.alarms += one.alarms
        result.latencies_ms += one.latencies_ms
    return result


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that `share` of all do not exceed; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
