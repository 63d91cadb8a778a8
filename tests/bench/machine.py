"""The machine of a run, in words that name no host and no path."""

import os
import platform
import re
import sys
from pathlib import Path

from tests.go_toolchain import find_go, go_version

_GIB = 1 << 20


def describe(cache: Path) -> dict[str, str]:
    """Cores, CPU family, memory, kernel series and the versions that matter."""
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "CPU": _cpu(),
        "memory": f"{int(memory[1]) / _GIB:.0f} GiB" if memory else "unknown",
        "system": f"Linux {'.'.join(platform.release().split('.')[:2])}",
        "Python": sys.version.split()[0],
        "Go": go_version(find_go(cache)),
    }


def _cpu() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1].strip() if found else platform.machine()
