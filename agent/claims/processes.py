"""Reads `/proc/<pid>/cgroup` of the processes that use a GPU.

Needs the host's pid namespace to find them; a process that has ended, or that we may
not see, belongs to no pod that we know.
"""

from pathlib import Path

from agent.claims.cgroup import MAX_BYTES, pod_uid


class ProcessPods:
    """Pod UIDs by process id."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    def __call__(self, pid: int) -> str | None:
        """The UID of the pod that process `pid` runs in, if it can be told."""
        try:
            with (self._proc / str(pid) / "cgroup").open("rb") as file:
                return pod_uid(file.read(MAX_BYTES + 1).decode("ascii", "replace"))
        except OSError:
            return None
