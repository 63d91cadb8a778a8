"""Where a request's body is put together: one buffer, written once.

A body of whole nodes has tens of megabytes. Taking that much new memory page by page costs
more than decrypting what is put there, so a large body moves to huge pages, where the
kernel gives any. It does so only once much of it has come: what a client announces
takes no memory.
"""

import mmap
from contextlib import suppress
from typing import Final

LARGE: Final = 4 << 20
"""Bytes after which a body of known length moves."""


class BodyBuffer:
    """Grows by what is appended, up to `expected` bytes where that is known."""

    __slots__ = ("_at", "_expected", "_small", "_view")

    def __init__(self, expected: int | None) -> None:
        """`expected` is the Content-Length, None for a chunked body."""
        self._expected = expected or 0
        self._small = bytearray()
        self._view: memoryview | None = None
        self._at = 0

    def __len__(self) -> int:
        return self._at

    def append(self, chunk: bytes) -> None:
        """Add what came; raises ValueError beyond `expected`."""
        end = self._at + len(chunk)
        if self._view is None and LARGE <= end <= self._expected:
            self._view = _huge(self._expected)
            self._view[: self._at] = self._small
            self._small = bytearray()
        if self._view is None:
            self._small += chunk
        else:
            self._view[self._at : end] = chunk
        self._at = end

    def whole(self) -> bytearray | memoryview:
        """All that came, without a copy."""
        return self._small if self._view is None else self._view[: self._at]


def _huge(size: int) -> memoryview:
    """Fresh memory, given back when the last view of it goes."""
    space = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        space.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(space)
