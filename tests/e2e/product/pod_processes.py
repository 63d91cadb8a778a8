"""Processes of pods on the real node, found by their cgroups as the agent does."""

from pathlib import Path

from agent.claims.pods import ProcessPods


def process_of(uid: str) -> int:
    """The first process of a pod's container, by the number that it has on this machine."""
    pods = ProcessPods()
    found = [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal() and pods(int(entry.name)) == uid
    ]
    return max(found)


def pid_in_node(pid: int) -> int:
    """The number that the process has in the node's namespace of processes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (numbers,) = (line.split()[1:] for line in lines if line.startswith("NSpid:"))
    return int(numbers[1])
