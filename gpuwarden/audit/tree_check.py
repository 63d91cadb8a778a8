"""Checks what a log claims about itself: roots and signatures of its checkpoints, changes of key.

The hash chain links the records, but an attacker who rewrites all of them can make a new chain.
This shows that the records are those that the signed checkpoints cover, and that the keys follow
from each other and, if one is given, from a pinned key. Pure.
"""

from base64 import b64decode
from dataclasses import dataclass

from gpuwarden.audit.checkpoint import Checkpoint, KeyChange, open_checkpoint, unverified_checkpoint
from gpuwarden.audit.merkle import Frontier, leaf_hash
from gpuwarden.audit.note import NoteError, VerifierKey
from gpuwarden.audit.record import LogRecord, RecordKind
from gpuwarden.counted import counted


@dataclass(frozen=True, slots=True)
class Wanted:
    """What somebody knows from elsewhere and the log must agree with."""

    pin: str = ""
    """SHA-256 of a public key that must be among the log's keys."""
    checkpoint: Checkpoint | None = None
    """A checkpoint that the log must continue."""
    key_before: VerifierKey | None = None
    """Key in force before the first record, of a part of a log; None where it is not known."""


@dataclass(frozen=True, slots=True)
class TreeFault:
    """The first record that contradicts the tree, or the number that is missing."""

    seq: int
    what: str


@dataclass(frozen=True, slots=True)
class TreeFacts:
    """What was found."""

    checkpoints: int = 0
    """Checkpoints whose signature holds."""
    certified: int = 0
    """Records that the last of them covers."""
    note: str = ""
    """The last of them."""
    keys: tuple[VerifierKey, ...] = ()
    """Keys of the log, each vouched for by the one before, the one in force last."""
    root: bytes | None = None
    """Root over all records; None where those before the first are not known."""


NOTHING_WANTED = Wanted()


class TreeCheck:
    """Takes the records of a log in order; `fault` is set by the first that contradicts."""

    def __init__(self, wanted: Wanted = NOTHING_WANTED) -> None:
        self.fault: TreeFault | None = None
        self._wanted = wanted
        self._frontier: Frontier | None = None
        before = wanted.key_before
        self._keys: tuple[VerifierKey, ...] = () if before is None else (before,)
        self._checkpoints = 0
        self._certified = 0
        self._note = ""
        self._last_seq = 0
        self._first_seq = 0

    def take(self, record: LogRecord, line: bytes) -> None:
        """Take the next record; not to be called after a fault."""
        self._last_seq = record.seq
        self._first_seq = self._first_seq or record.seq
        if record.seq == 1:
            self._frontier = Frontier()
        try:
            self._judge(record)
        except (NoteError, ValueError) as error:
            self.fault = TreeFault(record.seq, str(error))
            return
        self._compare()
        if self._frontier is not None:
            self._frontier.append(leaf_hash(line))

    def finish(self) -> TreeFacts | TreeFault:
        """The result, after the last record."""
        self._compare()
        if self.fault is None:
            self.fault = self._missing()
        return self.fault or TreeFacts(
            self._checkpoints,
            self._certified,
            self._note,
            self._keys,
            self._frontier.root() if self._frontier else None,
        )

    def _judge(self, record: LogRecord) -> None:
        refs = record.refs
        match record.kind:
            case RecordKind.LOG_START if "key" in refs:
                self._key_in_force(_text(refs["key"]))
            case RecordKind.LOG_KEY:
                self._key_changed(_text(refs.get("statement")))
            case RecordKind.LOG_ROTATE if "checkpoint" in refs:
                self._rotated(record)
            case RecordKind.CHECKPOINT:
                self._certify(record, _text(refs.get("checkpoint")))
            case _:
                pass

    def _key_in_force(self, text: str) -> None:
        key = VerifierKey.parse(text)
        if not self._keys:
            self._keys = (key,)
        elif key != self._keys[-1]:
            raise NoteError("the key changed without a statement of the one before")

    def _key_changed(self, statement: str) -> None:
        change = KeyChange.open(statement)
        if self._keys and change.old != self._keys[-1]:
            raise NoteError("the key that gives way is not the one in force")
        self._keys = (*(self._keys or (change.old,)), change.new)

    def _rotated(self, record: LogRecord) -> None:
        self._key_in_force(_text(record.refs.get("key")))
        if self._frontier is None:
            peaks = record.refs.get("frontier")
            texts = peaks if isinstance(peaks, list) else []
            decoded = [b64decode(_text(peak), validate=True) for peak in texts]
            self._frontier = Frontier.restore(record.seq - 1, decoded)
        self._certify(record, _text(record.refs["checkpoint"]))

    def _certify(self, record: LogRecord, note: str) -> None:
        if not self._keys:
            if self._first_seq == 1:
                raise NoteError("a checkpoint before any key is named")
            return  # part of a log, whose key was named before it
        checkpoint = open_checkpoint(note, self._keys[-1])
        head = checkpoint.head
        if (checkpoint.origin, head.size) != (record.origin, record.seq - 1):
            raise NoteError(
                f"the checkpoint is of {counted(head.size, 'record')} of {checkpoint.origin}"
            )
        if self._note and unverified_checkpoint(self._note).log != checkpoint.log:
            raise NoteError("the checkpoint is of another log of this origin")
        if self._frontier is not None and self._frontier.root() != head.root:
            raise NoteError(
                f"the checkpoint has another root: of the {counted(head.size, 'record')} before it,"
                f" at least one behind record {self._certified} is not what was signed"
            )
        self._checkpoints += 1
        self._certified, self._note = head.size, note

    def _compare(self) -> None:
        wanted, frontier = self._wanted.checkpoint, self._frontier
        if wanted is None or frontier is None or wanted.head.size != frontier.size:
            return
        if wanted.head.root != frontier.root():
            what = "the records up to here are not those of the expected checkpoint"
            self.fault = TreeFault(frontier.size, what)

    def _missing(self) -> TreeFault | None:
        if self._wanted.pin and self._wanted.pin not in {key.digest for key in self._keys}:
            return TreeFault(self._first_seq, "the pinned key is none of this log's keys")
        wanted = self._wanted.checkpoint
        if wanted is None:
            return None
        size = wanted.head.size
        if size > self._last_seq:
            records = counted(size, "record")
            what = f"log ends at {self._last_seq}, but the expected checkpoint has {records}"
            return TreeFault(self._last_seq + 1, what)
        if self._frontier is None or size < self._first_seq - 1:
            return TreeFault(
                size, f"log starts at {self._first_seq}, after the expected checkpoint"
            )
        return None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
