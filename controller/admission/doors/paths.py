"""Which paths of a node, and of a container, lead to GPUs. Pure, on text alone.

A symbolic link on the node is not seen: where people may write to the node's disk, shut host
paths in whole (Pod Security "baseline").
"""

import posixpath
from typing import Final

_VAR_RUN: Final = "/var/run"
_DEVICE_LIST_NAME: Final = "nvidia-container-devices"
DEVICE_LIST: Final = f"/run/{_DEVICE_LIST_NAME}"
"""What is mounted below it names a device to the container toolkit."""

_SUBTREES: Final = (
    "/dev/char",
    "/dev/dri",
    "/dev/mem",
    "/dev/vfio",
    "/etc/cdi",
    "/etc/containerd",
    "/etc/crio",
    "/etc/kubernetes",
    "/etc/nri",
    "/opt/nri",
    "/proc",
    "/run/cdi",
    "/run/containerd",
    "/run/cri-dockerd.sock",
    "/run/crio",
    "/run/docker.sock",
    "/run/gpuwarden",
    "/run/k3s",
    "/run/nri",
    "/run/spire",
    "/sys",
    "/var/lib/containerd",
    "/var/lib/gpuwarden",
    "/var/lib/kubelet",
)
"""Devices, sockets of runtime, kubelet, SPIRE and ours, CDI and NRI files, static pods."""
_BEGINNINGS: Final = ("/dev/nvidia", "/run/nvidia")
"""Device files; the driver's root, its daemons' sockets, device lists."""


def opens_node(path: str) -> bool:
    """Whether a host path is, holds or lies below one that leads to GPUs."""
    clean = _plain(path)
    below = clean if clean.endswith("/") else f"{clean}/"
    return clean.startswith(_BEGINNINGS) or any(
        below.startswith(f"{each}/") or f"{each}/".startswith(below)
        for each in (*_SUBTREES, *_BEGINNINGS)
    )


def is_device_list(mount_path: str) -> bool:
    """Whether a mount there names a device to the toolkit."""
    if _DEVICE_LIST_NAME not in mount_path:
        return False  # no way of writing a path leaves out a folder's name
    return f"{_plain(mount_path)}/".startswith(f"{DEVICE_LIST}/")


def _plain(path: str) -> str:
    """Without `.`, `..`, doubled slashes, and the link /var/run."""
    clean = posixpath.normpath(f"/{path}")
    clean = f"/{clean.lstrip('/')}"
    if clean == _VAR_RUN or clean.startswith(f"{_VAR_RUN}/"):
        return clean.removeprefix("/var")
    return clean
