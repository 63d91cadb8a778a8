"""Which NVML call a thread is in, and since when: written by the thread, read by the event loop.

One attribute is swapped as a whole, so no lock is needed.
"""

import time
from types import TracebackType
from typing import NamedTuple, Self


class CallRecord(NamedTuple):
    """A call that has not returned yet."""

    name: str
    started: float
    """`time.monotonic()` seconds."""


class PassAbandonedError(Exception):
    """The pass that this thread still works on has been given up."""


class CallWatch:
    """The call in progress on one thread."""

    def __init__(self) -> None:
        self._current: CallRecord | None = None
        self._abandoned = False

    @property
    def current(self) -> CallRecord | None:
        """The call that is in progress, if one is."""
        return self._current

    def calling(self, name: str) -> Self:
        """Mark a call, as `with watch.calling(name):`, at some hundreds in each pass.

        Raises PassAbandonedError instead of starting one nobody waits for.
        """
        if self._abandoned:
            raise PassAbandonedError
        self._current = CallRecord(name, time.monotonic())
        return self

    def __enter__(self) -> None:
        """Nothing: the call is marked."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._current = None

    def abandon(self) -> None:
        """Let the pass in progress end before its next call."""
        self._abandoned = True

    def renew(self) -> None:
        """A new pass begins."""
        self._abandoned = False

    def overdue(self, limit_s: float, now: float) -> CallRecord | None:
        """The call in progress, if it has taken longer than `limit_s`."""
        record = self._current
        return record if record and now - record.started > limit_s else None
