"""The three calls to a disk that can fail half-way, behind a seam for tests."""

import os
from typing import Protocol


class Disk(Protocol):
    """What the log needs of a disk; every call may raise OSError."""

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write some of `data`, return how much."""

    def sync(self, descriptor: int) -> None:
        """Return when what was written is on the disk."""

    def reserve(self, descriptor: int, size: int) -> None:
        """Make sure that the file can have `size` bytes."""


class SystemDisk:
    """This machine's disk."""

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write some of `data`, return how much."""
        return os.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        """Return when what was written is on the disk (fdatasync)."""
        os.fdatasync(descriptor)

    def reserve(self, descriptor: int, size: int) -> None:
        """Allocate `size` bytes (posix_fallocate)."""
        os.posix_fallocate(descriptor, 0, size)
