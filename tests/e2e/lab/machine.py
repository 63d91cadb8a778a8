"""What the lab needs from this machine, what of it is missing, and how to get it.

Looks only; installs nothing.
"""

import ctypes.util
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
BINFMT = Path("/proc/sys/fs/binfmt_misc")
"""Programs of other machines, and what the kernel starts them with."""


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that a part of the lab needs."""

    name: str
    is_met: Callable[[], bool]
    remedy: str


def _on_path(program: str) -> Callable[[], bool]:
    return lambda: shutil.which(program) is not None


def _has_seccomp() -> bool:
    headers = Path("/usr/include/seccomp.h")
    return headers.exists() and ctypes.util.find_library("seccomp") is not None


def _has_cgroups() -> bool:
    return os.access(CGROUPS, os.W_OK) and any(
        (CGROUPS / name).exists() for name in ("cgroup.controllers", "memory")
    )


def runs(machine: str, folder: Path = BINFMT) -> bool:
    """Whether programs of another machine run here, in a container that lacks qemu, too (`F`)."""
    try:
        first, *facts = (folder / f"qemu-{machine}").read_text().splitlines()
    except OSError:
        return False
    flags = "".join(x.partition(": ")[2] for x in facts if x.startswith("flags: "))
    return first == "enabled" and "F" in flags


def _emulated(machine: str) -> Need:
    name = f"qemu-{machine}"
    return Need(
        name,
        lambda: runs(machine),
        f"Debian: apt-get install qemu-user-static, and where no init registers it:"
        f" mount -t binfmt_misc none {BINFMT};"
        f" cat /usr/lib/binfmt.d/{name}.conf > {BINFMT}/register",
    )


NEEDS = {
    need.name: need
    for need in (
        Need("root", lambda: os.geteuid() == 0, "run as root (the node makes namespaces)"),
        Need("gcc", _on_path("gcc"), "Debian: apt-get install gcc libc6-dev"),
        Need("pkg-config", _on_path("pkg-config"), "Debian: apt-get install pkg-config"),
        Need("libseccomp", _has_seccomp, "Debian: apt-get install libseccomp-dev"),
        Need("iptables", _on_path("iptables"), "Debian: apt-get install iptables"),
        Need("conntrack", _on_path("conntrack"), "Debian: apt-get install conntrack"),
        Need("unshare", _on_path("unshare"), "Debian: apt-get install util-linux"),
        Need("nsenter", _on_path("nsenter"), "Debian: apt-get install util-linux"),
        Need("ip", _on_path("ip"), "Debian: apt-get install iproute2"),
        Need("buildah", _on_path("buildah"), "Debian: apt-get install buildah"),
        Need("debootstrap", _on_path("debootstrap"), "Debian: apt-get install debootstrap"),
        Need(
            "docker-registry",
            _on_path("docker-registry"),
            "Debian: apt-get install docker-registry",
        ),
        _emulated("x86_64"),
        _emulated("aarch64"),
        Need("syft", Path(sys.executable).with_name("syft").exists, "make images installs it"),
        Need("cgroups", _has_cgroups, "mount cgroups (v1 or v2) writable at /sys/fs/cgroup"),
        Need(
            "overlayfs",
            lambda: "\toverlay\n" in Path("/proc/filesystems").read_text(),
            "load the kernel module: modprobe overlay",
        ),
    )
}
NODE_NEEDS = ("root", "cgroups", "overlayfs", "unshare", "nsenter", "ip", "iptables", "conntrack")


def missing(names: Iterable[str]) -> list[str]:
    """One line for each need that is not met, with its remedy."""
    needs = [NEEDS[name] for name in names]
    return [f"{need.name}: {need.remedy}" for need in needs if not need.is_met()]
