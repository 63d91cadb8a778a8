"""What the controller of a simulated fleet says about itself, and what the kernel says of it."""

import asyncio
import http.client
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

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
