"""Copies of durable records on standard output, for log collectors.

A collector that reads slowly, or not at all, must not hold up the log: copies wait in
a bounded queue of their own, and what does not fit is counted as lost.
"""

import os
import threading
from collections import deque
from collections.abc import Callable

MAX_WAITING = 4 << 20
"""Bytes of copies that may wait."""


class Copies:
    """Writes blocks of whole lines to a file descriptor from a thread of its own."""

    def __init__(self, descriptor: int, lost: Callable[[int], None]) -> None:
        self._descriptor = descriptor
        self._lost = lost
        self._blocks: deque[tuple[bytes, int]] = deque()
        self._waiting = 0
        self._closing = False
        self._torn = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="audit-copies", daemon=True)
        self._thread.start()

    def put(self, block: bytes, records: int) -> None:
        """Queue a block of `records` lines; never waits."""
        with self._changed:
            if self._waiting + len(block) > MAX_WAITING or self._closing:
                self._lost(records)
                return
            self._blocks.append((block, records))
            self._waiting += len(block)
            self._changed.notify()

    def close(self, timeout: float) -> None:
        """Write what waits, for at most `timeout` seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout)

    def _run(self) -> None:
        while (item := self._next()) is not None:
            block, records = item
            if not self._write(block):
                self._lost(records)
            with self._changed:
                self._waiting -= len(block)

    def _next(self) -> tuple[bytes, int] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._blocks or self._closing)
            return self._blocks.popleft() if self._blocks else None

    def _write(self, block: bytes) -> bool:
        view = memoryview(b"\n" + block if self._torn else block)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            self._torn = True
            return False
        self._torn = False
        return True
