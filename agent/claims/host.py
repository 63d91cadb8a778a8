"""Facts about the host that stand in the evidence beside the GPUs: read once, at start.

The root of the file tree is an argument, so a container can read the host's mounted
elsewhere. Small files only; nothing here is trusted, all of it is claimed.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_BOOT_ID: Final = "proc/sys/kernel/random/boot_id"
_SYSTEM_UUID: Final = "sys/class/dmi/id/product_uuid"
_MAX_BYTES: Final = 256
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_PLACEHOLDERS: Final = frozenset({"0", "f"})
"""A UUID of only this digit was never set by the maker."""


class HostUnreadableError(Exception):
    """The kernel gives no boot id; evidence without one would show nothing about restarts."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What does not change while the host is up."""

    arch: str
    """`uname -m`."""
    boot_id: str
    """The kernel's UUID of this boot."""
    system_uuid: str | None
    """SMBIOS product UUID in lower case; null where it is missing, unset or not readable."""


def read_host(root: Path = Path("/")) -> HostFacts:
    """Read the facts. Raises HostUnreadableError."""
    boot_id = _uuid(root / _BOOT_ID)
    if boot_id is None:
        raise HostUnreadableError(f"{root / _BOOT_ID}: no UUID to be read there")
    system_uuid = _uuid(root / _SYSTEM_UUID)
    if system_uuid and set(system_uuid) - {"-"} in ({digit} for digit in _PLACEHOLDERS):
        system_uuid = None
    return HostFacts(arch=os.uname().machine, boot_id=boot_id, system_uuid=system_uuid)


def _uuid(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES).decode("ascii", "replace").strip().lower()
    except OSError:
        return None
    return text if _UUID.fullmatch(text) else None
