"""Which paths of a container name devices to its runtime. Pure, on text alone."""

import posixpath
from typing import Final

_VAR_RUN: Final = "/var/run"
_DEVICE_LIST_NAME: Final = "nvidia-container-devices"
DEVICE_LIST: Final = f"/run/{_DEVICE_LIST_NAME}"
"""What is mounted below it names a device to the container toolkit."""


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
