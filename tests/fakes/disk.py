"""A disk that fails on command, around the real one: bytes that were written are there."""

import errno
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from controller.audit.files import Disk
from tests.hang import HANG_S


@dataclass
class FaultyDisk(Disk):
    """`room` bytes can be written before ENOSPC, the last write being cut; None = endless."""

    room: int | None = None
    write_errno: int = errno.ENOSPC
    sync_errno: int | None = None
    reserve_errno: int | None = None
    binding_webhook: threading.Event = field(default_factory=threading.Event)
    """A sync waits for it."""
    syncs: int = 0
    full_while: Callable[[], bool] = lambda: False
    """ENOSPC as long as it says so."""

    def __post_init__(self) -> None:
        self.binding_webhook.set()

    def write(self, descriptor: int, data: memoryview) -> int:
        if self.full_while():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.room is not None:
            if self.room == 0:
                raise OSError(self.write_errno, os.strerror(self.write_errno))
            data = data[: self.room]
            self.room -= len(data)
        return super().write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        self.binding_webhook.wait(HANG_S)
        self.syncs += 1
        if self.sync_errno is not None:
            raise OSError(self.sync_errno, os.strerror(self.sync_errno))
        super().sync(descriptor)

    def reserve(self, descriptor: int, size: int) -> None:
        if self.reserve_errno is not None:
            raise OSError(self.reserve_errno, os.strerror(self.reserve_errno))
        super().reserve(descriptor, size)
