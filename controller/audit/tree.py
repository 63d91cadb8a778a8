"""The Merkle tree over the log's records: hashes on disk, state when a log is opened."""

import os
from base64 import b64decode
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from controller.audit.age import stated_age
from controller.audit.files import Disk, LogBrokenError
from gpuwarden.audit.checkpoint import Checkpoint, TreeHead, log_id, unverified_checkpoint
from gpuwarden.audit.merkle import (
    HASH_BYTES,
    Frontier,
    leaf_hash,
    peaks_of,
    stored_count,
    stored_index,
)
from gpuwarden.audit.note import NoteError, VerifierKey
from gpuwarden.audit.record import (
    LogRecord,
    RecordKind,
)
from gpuwarden.regular_file import require_regular

NAME = "tree"
WRITE_BYTES = 1 << 20
"""What is gathered while a log is read again."""
MAX_WAITING = 8 << 20
_HOLE = b"\0" * HASH_BYTES
_CLOSED = -1
"""Stands for a descriptor that is not open; closing it is an error that is ignored."""


class NoNodeError(Exception):
    """This hash is not there: lost, or never known."""


class TreeFile:
    """The hashes of complete subtrees, for proofs: the file `tree` beside the log.

    Everything in it follows from the records, so it is never synced with them, never makes
    a grant wait, and never makes the log fail: what cannot be written waits in memory, and
    when there is too much of it, proofs stop until the next start. It stays when old records are
    deleted, 64 bytes for each, because a witness may come back after any time.

    Used by one thread. No method raises OSError.
    """

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._path = folder / NAME
        self._disk = disk
        self._descriptor = _CLOSED
        self._written = 0
        self._waiting = bytearray()
        self._broken = False
        self.lost = False
        """Whether hashes before the last `begin` are missing, so that the records must be read."""

    def begin(self, frontier: Frontier) -> None:
        """Forget all that lies behind this frontier; see `lost` for what lies before it."""
        self._waiting.clear()
        self._broken = False
        self._written = stored_count(frontier.size) * HASH_BYTES
        peaks = list(zip(peaks_of(frontier.size), frontier.peaks, strict=True))
        try:
            self._open()
            self.lost = any(self._at(_place(*where)) != peak for where, peak in peaks)
            os.ftruncate(self._descriptor, self._written)
            if self.lost:
                for where, peak in peaks:
                    os.pwrite(self._descriptor, peak, _place(*where))
        except OSError:
            self._broken = self.lost = True

    def append(self, hashes: bytes) -> None:
        """Keep what became complete, to be written in larger pieces."""
        if self._broken:
            return
        self._waiting += hashes
        if len(self._waiting) >= WRITE_BYTES:
            self.flush()
        if len(self._waiting) > MAX_WAITING:
            self._waiting.clear()
            self._broken = True

    def flush(self, *, durable: bool = False) -> None:
        """Write what waits; what cannot be written goes on waiting."""
        with suppress(OSError):
            os.lseek(self._descriptor, self._written, os.SEEK_SET)
            while self._waiting:
                piece = bytes(self._waiting[:WRITE_BYTES])
                count = self._disk.write(self._descriptor, memoryview(piece))
                del self._waiting[:count]
                self._written += count
            if durable:
                self._disk.sync(self._descriptor)

    def node(self, level: int, offset: int) -> bytes:
        """The hash of a complete subtree; raises NoNodeError."""
        try:
            found = self._at(_place(level, offset))
        except OSError as error:
            raise NoNodeError(str(error)) from error
        if self._broken or len(found) != HASH_BYTES or found == _HOLE:
            raise NoNodeError(f"no hash at level {level}, offset {offset}")
        return found

    def close(self) -> None:
        """Let the file go."""
        with suppress(OSError):
            os.close(self._descriptor)
        self._descriptor = _CLOSED

    def _open(self) -> None:
        if self._descriptor == _CLOSED:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            self._descriptor = os.open(self._path, flags, 0o600)
            require_regular(self._descriptor, self._path)

    def _at(self, at: int) -> bytes:
        """From the file, from memory, or across the end of the one."""
        found = os.pread(self._descriptor, HASH_BYTES, at)
        begin = max(0, at - self._written)
        return found + bytes(self._waiting[begin : begin + HASH_BYTES - len(found)])


def _place(level: int, offset: int) -> int:
    return stored_index(level, offset) * HASH_BYTES


# --- state of a log when it is opened

KEPT_HEADS = 32
"""Checkpoints whose proofs are ready beforehand, because most witnesses know one of them."""


MAX_CLAIMS = 1024


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """A record that carries a checkpoint, and the tree before it as the records make it."""

    seq: int
    note: str
    head: TreeHead


@dataclass(slots=True)
class LogState:
    """What the records add up to."""

    frontier: Frontier
    log: str = ""
    """Id of the log; empty before its first record."""
    prev: TreeHead | None = None
    key: VerifierKey | None = None
    """Key in force; None in a log that has none yet."""
    heads: deque[TreeHead] = field(default_factory=lambda: deque(maxlen=KEPT_HEADS))
    """Of the last checkpoints, when the log was opened."""
    note: str = ""
    """The last of them, when the log was opened."""
    before: int = 0
    """Number of the last record that was not read again."""
    checkpoints: deque[CheckpointRecord] = field(default_factory=lambda: deque(maxlen=MAX_CLAIMS))
    """What the records claim; nothing of it is verified."""
    stops: deque[int] = field(default_factory=lambda: deque(maxlen=MAX_CLAIMS))
    """Numbers of `log.stop`."""
    age: int = 0
    """The age of the log that its last record states, see `LogAge`."""


class Replay:
    """Finds out what a log's records say about its tree, keys and checkpoints.

    The last file is enough: it begins with the first record of the log, or with a
    `log.rotate` that carries the frontier of the tree, the key in force and a checkpoint of all
    before.
    """

    def __init__(self, tree: TreeFile) -> None:
        self._tree = tree
        self._begun = False
        self.state: LogState | None = None
        """None without records, or where the first does not say what the tree before it was."""

    def take(self, record: LogRecord, line: bytes) -> None:
        """Take the next record; raises LogBrokenError."""
        if not self._begun:
            self._begun = True
            self.state = _begun(record)
            if self.state is not None:
                self._tree.begin(self.state.frontier)
        if self.state is not None:
            self._take(self.state, record, line)

    def _take(self, state: LogState, record: LogRecord, line: bytes) -> None:
        refs = record.refs
        age = stated_age(refs)
        state.age = state.age if age is None else max(age, state.age)
        leaf = leaf_hash(line)
        state.log = state.log or log_id(leaf)
        match record.kind:
            case RecordKind.LOG_START:
                state.key = _key(refs.get("key")) or state.key
                if record.seq == 1 and "prevLog" in refs:
                    state.prev = _checkpoint(refs["prevLog"], record.seq).head
            case RecordKind.LOG_KEY:
                state.key = _key(refs.get("key")) or state.key
            case RecordKind.LOG_STOP:
                state.stops.append(record.seq)
            case RecordKind.CHECKPOINT | RecordKind.LOG_ROTATE if "checkpoint" in refs:
                state.note = refs["checkpoint"]
                state.heads.append(_checkpoint(state.note, record.seq).head)
                before = TreeHead(state.frontier.size, state.frontier.root())
                state.checkpoints.append(CheckpointRecord(record.seq, state.note, before))
            case _:
                pass
        self._tree.append(state.frontier.append(leaf))


def _begun(record: LogRecord) -> LogState | None:
    if record.seq == 1:
        return LogState(Frontier())
    refs = record.refs
    try:
        peaks = [b64decode(peak, validate=True) for peak in refs["frontier"]]
        frontier = Frontier.restore(record.seq - 1, peaks)
        checkpoint = unverified_checkpoint(refs["checkpoint"])
    except (KeyError, TypeError, ValueError, NoteError):
        return None
    if checkpoint.head != TreeHead(frontier.size, frontier.root()):
        raise LogBrokenError(f"record {record.seq}: frontier and checkpoint contradict each other")
    key = _key(refs.get("key"))
    return LogState(frontier, checkpoint.log, checkpoint.prev, key, before=record.seq - 1)


def _checkpoint(note: object, seq: int) -> Checkpoint:
    try:
        return unverified_checkpoint(note if isinstance(note, str) else "")
    except NoteError as error:
        raise LogBrokenError(f"record {seq}: {error}") from None


def _key(text: object) -> VerifierKey | None:
    try:
        return VerifierKey.parse(text) if isinstance(text, str) else None
    except NoteError:
        return None
