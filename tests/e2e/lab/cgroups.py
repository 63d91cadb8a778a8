"""The control group of a lab's node, in every hierarchy of this machine (v1) or the one (v2)."""

import os
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_CPUSET = ("cpuset.cpus", "cpuset.mems")
_EMPTY_S = 5.0
_POLL_S = 0.05


def is_v2(root: Path = ROOT) -> bool:
    """Whether this machine has the unified hierarchy alone."""
    return (root / "cgroup.controllers").exists()


def hierarchies(root: Path = ROOT) -> list[Path]:
    """The folders below which a group has to be made; v1 may have v2's one beside its own."""
    if is_v2(root):
        return [root]
    return sorted({path.resolve() for path in root.iterdir() if (path / "cgroup.procs").exists()})


def create(name: str, root: Path = ROOT) -> None:
    """An empty group of that name in which the kubelet can make its own."""
    for hierarchy in hierarchies(root):
        group = hierarchy / name
        if is_v2(root):
            _delegate(hierarchy)
        group.mkdir(exist_ok=True)
        if is_v2(root):
            _delegate(group)
        for setting in _CPUSET:  # v1 leaves them empty, and then no process may enter
            if not is_v2(root) and (hierarchy / setting).exists():
                (group / setting).write_text((hierarchy / setting).read_text())


def remove(name: str, root: Path = ROOT) -> None:
    """The group and all below it; their processes have been ended but may still be leaving."""
    if not root.is_dir():
        return
    deadline = time.monotonic() + _EMPTY_S
    for group in (hierarchy / name for hierarchy in hierarchies(root)):
        while group.exists():
            for path in sorted(_folders(group), reverse=True):
                _remove_empty(path)
            if time.monotonic() > deadline:
                raise RuntimeError(f"cgroup {group} still has processes")
            if group.exists():
                time.sleep(_POLL_S)


def _folders(group: Path) -> list[Path]:
    return [Path(folder) for folder, _, _ in os.walk(group)]  # they may go meanwhile


def _remove_empty(path: Path) -> None:
    try:
        path.rmdir()
    except OSError:  # not empty yet
        return


def _delegate(group: Path) -> None:
    controllers = (group / "cgroup.controllers").read_text().split()
    (group / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))
