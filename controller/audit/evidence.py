"""Archives evidence beside the log, by its digest: the folders `evidence` and `evidence-cited`.

Kept in the first are first, changed and refused evidence, and what a node reported against itself;
in the second, unchanged evidence that something was granted by. Each has a store of its own, so
that many grants push no refused evidence out. A thread of its own writes it, without sync: a slow
disk holds nobody up, and a power cut may cost the evidence of the last seconds, never its record.
Bounded in age and bytes; the oldest goes first.

Folders are named by the wall clock, and old by the age of the log: the file `ages` says how old the
log was when each was last begun. A wall clock that jumps makes nothing old.
"""

import json
import re
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from gpuwarden.audit.archived_evidence import FOLDER, ArchivedEvidence
from gpuwarden.regular_file import open_new, open_to_read, private_folder

MAX_WAITING = 32 << 20
"""Bytes of payloads that may wait."""
_SLACK = 16
"""When it is full, a sixteenth is made free at once."""
AGES: Final = "ages"
DAY_S: Final = 86_400
_DAY: Final = re.compile(r"[0-9]{8}")
_MAX_AGES: Final = 1 << 20


class EvidenceStore:
    """One of the two folders in the log's folder."""

    def __init__(
        self,
        folder: Path,
        *,
        name: str = FOLDER,
        limit_bytes: int,
        retention: timedelta,
        age: Callable[[], int | None],
        kept: Callable[[int], None],
        lost: Callable[[int], None],
    ) -> None:
        """Begin; with a limit of 0 nothing is kept. `kept` and `lost` count, on any thread.

        `age` is that of the log, in seconds; None while it is not known, and nothing is too old.
        """
        self._folder = folder / name
        self._limit = limit_bytes
        self._retention_s = int(retention.total_seconds())
        self._age = age
        self._kept = kept
        self._lost = lost
        self._waiting: deque[ArchivedEvidence] = deque()
        self._waiting_bytes = 0
        self._bytes: int
        """What the folder holds; counted when a day begins."""
        self._day: str | None = None
        self._begun = 0
        """Age of the log when the day began here."""
        self._ages: dict[str, int] = {}
        """Day -> age of the log when it was last begun."""
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
        day, age = f"{received:%Y%m%d}", self._age()
        if day != self._day or (age is not None and age - self._begun >= DAY_S):
            self._begin(day, age)
        data = archived_evidence.encoded()
        if len(data) > self._limit:
            self._lost(1)
            return
        path = self._folder / day / f"{archived_evidence.digest}.json"
        before = _size(path) if path.exists() else 0
        _write(path, data)
        self._bytes += len(data) - before
        self._kept(1)
        if self._bytes > self._limit:
            self._free(self._limit - self._limit // _SLACK, spare=path)

    def _begin(self, day: str, age: int | None) -> None:
        """Begin a day: what is too old goes, what is left is counted.

        Nothing is written before that: on a full disk it makes the room.
        """
        private_folder(self._folder)
        if age is not None:
            self._ages = self._known_ages(age) | {day: age}
        for folder in self._days():
            private_folder(folder)
            if age is not None and age - self._ages[folder.name] > self._retention_s + DAY_S:
                _remove_day(folder)
        private_folder(self._folder / day)
        if age is not None:
            self._write_ages()
        self._bytes = sum(_size(path) for folder in self._days() for path in _files(folder))
        self._day, self._begun = day, age or 0

    def _known_ages(self, age: int) -> dict[str, int]:
        """A day of which nothing is known, or nothing that can be true, counts from now."""
        known = _read_ages(self._folder / AGES)
        return {x.name: min(known.get(x.name, age), age) for x in self._days()}

    def _write_ages(self) -> None:
        fresh = self._folder / f"{AGES}.new"
        with open_new(fresh) as file:
            file.write(json.dumps(self._ages).encode())
        fresh.replace(self._folder / AGES)

    def _free(self, goal: int, *, spare: Path) -> None:
        """Delete the oldest until `goal` is met, but not what has just come."""
        for folder in self._days():
            for path in sorted(set(_files(folder)) - {spare}, key=_changed):
                if self._bytes <= goal:
                    return
                self._bytes -= _size(path)
                path.unlink()
            _remove_if_empty(folder)

    def _days(self) -> list[Path]:
        """The folders of days, the oldest first; what else lies there is left alone."""
        found = (path for path in self._folder.iterdir() if _DAY.fullmatch(path.name))
        days = [path for path in found if path.is_dir() and not path.is_symlink()]
        return sorted(days, key=lambda path: (self._ages.get(path.name, 0), path.name))


def _read_ages(path: Path) -> dict[str, int]:
    found: object = None
    with suppress(OSError, ValueError, RecursionError), open_to_read(path) as file:
        found = json.loads(file.read(_MAX_AGES))
    if not isinstance(found, dict):
        return {}
    return {day: age for day, age in found.items() if type(age) is int}


def _write(path: Path, data: bytes) -> None:
    """Write all of it or nothing: a full disk keeps no part of what did not fit."""
    fresh = path.with_suffix(".new")
    try:
        with open_new(fresh) as file:
            file.write(data)
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def _files(folder: Path) -> list[Path]:
    """All but folders, which are not ours."""
    return [path for path in folder.iterdir() if path.is_symlink() or not path.is_dir()]


def _remove_day(folder: Path) -> None:
    for path in _files(folder):
        path.unlink()
    _remove_if_empty(folder)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # something that is not ours lies in it
        folder.rmdir()


def _size(path: Path) -> int:
    return path.lstat().st_size


def _changed(path: Path) -> int:
    return path.lstat().st_mtime_ns
