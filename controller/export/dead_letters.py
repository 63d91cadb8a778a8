"""Records that could not be delivered: one bounded file per exporter, and what replays it.

`gpuwarden export replay` leaves a request beside the file. The controller takes the file up then,
so one process only ever writes these files. A record is one line of JSON with the reason.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from controller.export.records import ExportRecord, RecordTextError, as_dict, read_json
from gpuwarden.dead_letter_files import LETTERS, REPLAYING, REQUEST, Request, read_request
from gpuwarden.regular_file import open_to_read, private_folder, require_regular

_MODE = 0o600


@dataclass(frozen=True, slots=True)
class Replay:
    """What is to be delivered again."""

    records: tuple[ExportRecord, ...]
    unreadable: int
    """Lines that are no records, such as a last one that a crash cut off."""


class DeadLetters:
    """The files of one exporter; every call blocks for the disk and may raise OSError."""

    def __init__(self, folder: Path, exporter: str, most_bytes: int) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._letters = folder / LETTERS.format(exporter=exporter)
        self._replaying = folder / REPLAYING.format(exporter=exporter)
        self._request = folder / REQUEST.format(exporter=exporter)

    def append(self, records: tuple[ExportRecord, ...], reason: str, at: str) -> bool:
        """Keep records, on the disk when this returns; False where there is no room for all."""
        lines = (
            json.dumps({**as_dict(x), "reason": reason, "failed": at}, separators=(",", ":"))
            for x in records
        )
        data = "".join(f"{line}\n" for line in lines).encode()
        private_folder(self._folder)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(self._letters, flags, _MODE)
        with os.fdopen(descriptor, "ab") as file:
            require_regular(descriptor, self._letters)
            if _is_torn(descriptor, file.tell()):
                data = b"\n" + data
            if file.tell() + self._size(self._replaying) + len(data) > self._most_bytes:
                return False
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        return True

    def count(self) -> int:
        """How many records are in both files."""
        return sum(1 for path in (self._letters, self._replaying) for _ in _lines(path))

    def requested(self) -> Request | None:
        """Who wants a replay, once: takes the file up for it. None where nobody does."""
        try:
            with open_to_read(self._request) as file:
                request = read_request(file.read())
        except FileNotFoundError:
            return None
        if not self._replaying.exists() and self._letters.exists():
            self._letters.rename(self._replaying)
        self._request.unlink()
        return request

    def replaying(self) -> Replay | None:
        """What was taken up for a replay and is not `replayed` yet."""
        if not self._replaying.exists():
            return None
        records, unreadable = [], 0
        for line in _lines(self._replaying):
            try:
                records.append(read_json(line.decode(errors="replace")))
            except RecordTextError:
                unreadable += 1
        return Replay(tuple(records), unreadable)

    def replayed(self) -> None:
        """All of it was delivered, or is in the file again."""
        self._replaying.unlink(missing_ok=True)

    def _size(self, path: Path) -> int:
        return path.stat().st_size if path.exists() else 0


def _is_torn(descriptor: int, size: int) -> bool:
    """Whether a crash or a full disk cut off the last line."""
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with open_to_read(path) as file:
            yield from file
    except FileNotFoundError:
        return
