"""Archives evidence beside the log, by its digest: the folder `evidence`.

Kept are first, changed and refused evidence, and what a node reported against itself. A thread of
its own writes it, without sync: a slow disk holds nobody up, and a power cut may cost the evidence
of the last seconds, never its record. Bounded in age and bytes; the oldest goes first.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpuwarden.audit.archived_evidence import FOLDER, ArchivedEvidence

MAX_WAITING = 32 << 20
"""Bytes of payloads that may wait."""
_SLACK = 16
"""When it is full, a sixteenth is made free at once."""


class EvidenceStore:
    """The folder `evidence` in the log's folder."""

    def __init__(
        self,
        folder: Path,
        *,
        limit_bytes: int,
        retention: timedelta,
        kept: Callable[[int], None],
        lost: Callable[[int], None],
    ) -> None:
        """Begin; with a limit of 0 nothing is kept. `kept` and `lost` count, on any thread."""
        self._folder = folder / FOLDER
        self._limit = limit_bytes
        self._retention = retention
        self._kept = kept
        self._lost = lost
        self._waiting: deque[ArchivedEvidence] = deque()
        self._waiting_bytes = 0
        self._bytes: int
        """What the folder holds; counted when a day begins."""
        self._day: str | None = None
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="audit-evidence", daemon=True)
        self._thread.start()

    def put(self, archived_evidence: ArchivedEvidence) -> None:
        """Queue a piece of evidence; never waits."""
        if not self._limit:
            return
        with self._changed:
            size = len(archived_evidence.payload)
            if self._closing or self._waiting_bytes + size > MAX_WAITING:
                self._lost(1)
                return
            self._waiting.append(archived_evidence)
            self._waiting_bytes += size
            self._changed.notify()

    def close(self, timeout: float) -> None:
        """Write what waits, for at most `timeout` seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout)

    def _run(self) -> None:
        while (archived_evidence := self._next()) is not None:
            try:
                self._keep(archived_evidence)
            except OSError:
                self._lost(1)
            with self._changed:
                self._waiting_bytes -= len(archived_evidence.payload)

    def _next(self) -> ArchivedEvidence | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            return self._waiting.popleft() if self._waiting else None

    def _keep(self, archived_evidence: ArchivedEvidence) -> None:
        received = datetime.fromtimestamp(archived_evidence.received_ms / 1000, UTC)
        day = f"{received:%Y%m%d}"
        if day != self._day:
            self._begin(day, received)
        data = archived_evidence.encoded()
        if len(data) > self._limit:
            self._lost(1)
            return
        path = self._folder / day / f"{archived_evidence.digest}.json"
        _write(path, data)
        self._bytes += len(data)
        self._kept(1)
        if self._bytes > self._limit:
            self._free(self._limit - self._limit // _SLACK, spare=path)

    def _begin(self, day: str, now: datetime) -> None:
        """Begin a day: what is too old goes, what is left is counted."""
        oldest = f"{now - self._retention:%Y%m%d}"
        (self._folder / day).mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in self._days():
            if folder.name < oldest:
                _remove(folder)
        self._bytes = sum(_size(path) for folder in self._days() for path in folder.iterdir())
        self._day = day

    def _free(self, goal: int, *, spare: Path) -> None:
        """Delete the oldest until `goal` is met, but not what has just come."""
        for folder in self._days():
            for path in sorted(set(folder.iterdir()) - {spare}, key=_age):
                if self._bytes <= goal:
                    return
                self._bytes -= _size(path)
                path.unlink()
            if folder != spare.parent:
                folder.rmdir()

    def _days(self) -> list[Path]:
        return sorted(path for path in self._folder.iterdir() if path.is_dir())


def _write(path: Path, data: bytes) -> None:
    """Write all of it or nothing: a full disk keeps no part of what did not fit."""
    fresh = path.with_suffix(".new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(fresh, flags, 0o600), "wb") as file:
            file.write(data)
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def _remove(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def _size(path: Path) -> int:
    return path.stat().st_size


def _age(path: Path) -> int:
    return path.stat().st_mtime_ns
