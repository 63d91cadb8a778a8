"""Which pods use GPUs and which run: from the cgroups of processes below `/proc`.

Needs the host's pid namespace. A reader without it sees its own pod alone, which would prove
anything: then nothing was read. A look at all processes takes about 10 microseconds each, and is
taken when a controller asks for it.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.claims.cgroup import MAX_BYTES, pod_uid
from agent.detached import detached
from gpuwarden.evidence.model import WANT_PODS, FailedRead
from gpuwarden.evidence.use_rules import MAX_PODS

# --- pods that use a GPU


class ProcessPods:
    """Pod UIDs by process id."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    def __call__(self, pid: int) -> str | None:
        """The UID of the pod that process `pid` runs in, if that is known."""
        try:
            with (self._proc / str(pid) / "cgroup").open("rb") as file:
                return pod_uid(file.read(MAX_BYTES + 1).decode("ascii", "replace"))
        except OSError:
            return None


# --- pods that run

MAX_PROCESSES: Final = 200_000
"""On a node with more nothing is concluded."""
LOOK_S: Final = 5.0
"""Well below the time to live of a challenge."""
_CALL: Final = "/proc/PID/cgroup"
_INIT: Final = "1"


@dataclass(frozen=True, slots=True)
class PodsReading:
    """One look at the processes."""

    pods: tuple[str, ...] | None
    """UIDs of the pods that run, sorted; None where nobody looked or it could not be read."""
    failed_reads: tuple[FailedRead, ...] = ()
    """At most one: why it could not be read."""


NOT_LOOKED: Final = PodsReading(None)
"""Nobody asked, or this agent does not look."""


class UnreadableProcessesError(Exception):
    """The processes of the node cannot be read; the message is the reason in one word."""


class RunningPods:
    """Asked once per challenge that wants it."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    async def __call__(self) -> PodsReading:
        """Look now, beside the event loop; ends within `LOOK_S`."""
        try:
            found = await detached(lambda: pods_in(self._proc), deadline_s=LOOK_S, name="pods")
        except UnreadableProcessesError as error:
            return _unread(str(error))
        except OSError as error:
            return _unread(type(error).__name__)
        except TimeoutError:
            return _unread("TIMEOUT")
        return PodsReading(tuple(sorted(found)))


def pods_in(proc: Path) -> frozenset[str]:
    """UIDs of all pods of which a process runs. Raises UnreadableProcessesError or OSError."""
    folder = os.open(proc, os.O_RDONLY | os.O_DIRECTORY)
    try:
        first = _cgroup(folder, _INIT)
        if first is None or _pod(first) is not None or os.getpid() == int(_INIT):
            raise UnreadableProcessesError("NOT_THE_HOSTS")
        found = {pod for text in set(_cgroups(folder)) if (pod := _pod(text)) is not None}
    finally:
        os.close(folder)
    if len(found) > MAX_PODS:
        raise UnreadableProcessesError("TOO_MANY")
    return frozenset(found)


def _cgroups(folder: int) -> Iterator[bytes]:
    pids = [name for name in os.listdir(folder) if name.isdecimal()]
    if len(pids) > MAX_PROCESSES:
        raise UnreadableProcessesError("TOO_MANY")
    for pid in pids:
        text = _cgroup(folder, pid)
        if text is not None:
            yield text


def _cgroup(folder: int, pid: str) -> bytes | None:
    """None where the process has ended meanwhile."""
    try:
        file = os.open(f"{pid}/cgroup", os.O_RDONLY, dir_fd=folder)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        return os.read(file, MAX_BYTES + 1)
    except ProcessLookupError:
        return None
    finally:
        os.close(file)


def _pod(text: bytes) -> str | None:
    return pod_uid(text.decode("ascii", "replace"))


def _unread(error: str) -> PodsReading:
    return PodsReading(None, (FailedRead(fact=WANT_PODS, gpu=None, call=_CALL, error=error),))
