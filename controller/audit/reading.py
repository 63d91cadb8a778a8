"""Reading.

Holds: replay, recent.
"""

from base64 import b64decode
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from controller.audit.files import LogBrokenError, TreeNodes, recent_lines, record_of
from gpuwarden.audit.checkpoint import Checkpoint, TreeHead, log_id, unverified_checkpoint
from gpuwarden.audit.merkle import Frontier, leaf_hash
from gpuwarden.audit.note import NoteError, VerifierKey
from gpuwarden.audit.record import LogRecord, RecordKind
from gpuwarden.evidence.canonical import canonical_json

# --- replay
# What a log's records say about its tree, keys and checkpoints, read again at the start.
#
# The last file is enough: it begins with the first record of the log, or with a
# `log.rotate` that carries the frontier of the tree, the key in force and a checkpoint of all
# before. Pure but for the tree's hashes, which it passes on.

KEPT_HEADS = 32
"""Checkpoints whose proofs are ready beforehand, because most witnesses know one of them."""


@dataclass(slots=True)
class LogState:
    """What the records came to."""

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


class Replay:
    """Takes the records of a log in order, from its first or from a `log.rotate`."""

    def __init__(self, tree: TreeNodes) -> None:
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
        leaf = leaf_hash(line)
        state.log = state.log or log_id(leaf)
        match record.kind:
            case RecordKind.LOG_START:
                state.key = _key(refs.get("key")) or state.key
                if record.seq == 1 and "prevLog" in refs:
                    state.prev = _checkpoint(refs["prevLog"], record.seq).head
            case RecordKind.LOG_KEY:
                state.key = _key(refs.get("key")) or state.key
            case RecordKind.CHECKPOINT | RecordKind.LOG_ROTATE if "checkpoint" in refs:
                state.note = refs["checkpoint"]
                state.heads.append(_checkpoint(state.note, record.seq).head)
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
    return LogState(frontier, checkpoint.log, checkpoint.prev, _key(refs.get("key")))


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


# --- recent
# The last records about one subject in this replica's log, for people: read from its end, bounded.
#
# Reading only; nothing is verified here.

MOST_BYTES: Final = 8 * 1024 * 1024
MOST_RECORDS: Final = 40


@dataclass(frozen=True, slots=True)
class Recent:
    """What the end of the log says."""

    records: tuple[LogRecord, ...] = ()
    """The oldest first; of many the last."""
    since: str = ""
    """`ts` of the oldest record that was looked at; empty where there is none."""


def records_about(folder: Path, subject: str, *, most_bytes: int = MOST_BYTES) -> Recent:
    """Those about `subject` among the last `most_bytes`; raises OSError."""
    needle = b'"subject":' + canonical_json(subject)
    found, since = deque[LogRecord](maxlen=MOST_RECORDS), ""
    for line in recent_lines(folder, most_bytes):
        if since and needle not in line:
            continue
        record = record_of(line)
        if record is not None:
            since = since or record.ts
            if record.subject == subject:
                found.append(record)
    return Recent(tuple(found), since)
