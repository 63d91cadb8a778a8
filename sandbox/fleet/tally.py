"""What is seen of a simulated fleet: counts and latencies of its agents, and its controller.

A latency is the time from a challenge's arrival at a node to its verdict.
"""

import asyncio
import http.client
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

# --- the agents


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


# --- the controller


_NODES: Final = re.compile(r'^gpuwarden_nodes\{state="([a-z]+)"\} ([0-9.e+]+)$', re.MULTILINE)
_WAIT_S: Final = 5.0
_KIB: Final = 1024


@dataclass(frozen=True, slots=True)
class ControllerLook:
    """One look at the controller."""

    states: dict[str, int] = field(default_factory=dict)
    """Nodes by state."""
    cpu_s: float = 0.0
    rss_mib: float = 0.0


async def look_at(ops: str, pid: int) -> ControllerLook:
    """Ask `/metrics` at `ops`, and /proc; an empty look where it does not answer in time."""
    try:
        text = await asyncio.to_thread(metrics_of, ops)
    except (OSError, http.client.HTTPException):
        return ControllerLook()
    return ControllerLook(states_of(text), cpu_seconds(pid), rss_mib(pid))


def states_of(metrics: str) -> dict[str, int]:
    """Nodes by state, out of the text of `/metrics`."""
    return {state: int(float(count)) for state, count in _NODES.findall(metrics)}


def cpu_seconds(pid: int) -> float:
    """User and system time that the process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int, field: str = "VmRSS") -> float:
    """Resident memory, or with `VmHWM` its highest value."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / _KIB
    return 0.0


def metrics_of(ops: str) -> str:
    """The text of `/metrics` at this address."""
    connection = http.client.HTTPConnection(ops, timeout=_WAIT_S)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()
