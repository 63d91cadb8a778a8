"""Disk space kept for grants: a file of nothing beside the log that shrinks when space runs out.

Other programs can fill the volume at any time, so a limit on ourselves reserves
nothing; blocks that are allocated do.
"""

import os
from contextlib import suppress
from pathlib import Path

from controller.audit.disk import Disk

STEP_BYTES = 1 << 20
"""What one shortage releases."""
NAME = "reserve"


class Reserve:
    """Holds `size` bytes of the folder's file system; only the writer's thread calls it."""

    def __init__(self, folder: Path, size: int, disk: Disk) -> None:
        self._path = folder / NAME
        self._size = size
        self._disk = disk
        self._held = 0

    @property
    def complete(self) -> bool:
        """Whether everything that was asked for is held."""
        return self._held >= self._size

    def fill(self) -> None:
        """Take up what is missing, if the file system has more than that to spare."""
        if self.complete:
            return
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        with suppress(OSError):
            descriptor = os.open(self._path, flags, 0o600)
            try:
                self._fill(descriptor)
            finally:
                os.close(descriptor)

    def _fill(self, descriptor: int) -> None:
        self._held = min(os.fstat(descriptor).st_blocks * 512, self._size)
        space = os.fstatvfs(descriptor)
        if space.f_bavail * space.f_frsize <= 2 * (self._size - self._held):
            return
        try:
            self._disk.reserve(descriptor, self._size)
        except OSError:
            os.ftruncate(descriptor, self._held)
            raise
        self._held = self._size

    def release(self) -> bool:
        """Give back one step; False when nothing is left."""
        if self._held == 0:
            return False
        self._held = max(0, self._held - STEP_BYTES)
        try:
            os.truncate(self._path, self._held)
        except OSError:
            self._held = 0
            return False
        return True
