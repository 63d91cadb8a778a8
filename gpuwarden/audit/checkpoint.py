"""What an audit log signs: checkpoints, and changes of its key.

A checkpoint states how long the log is and its root, as C2SP tlog-checkpoint defines them.

    lab/controller-0                               origin: cluster/replica
    4711                                           records in the tree
    CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=   root of RFC 6962
    log 1f3c…                                      id of the log: which of several of this origin
    prev 815 qqqq…=                                where the log that this one replaces had ended

The last two are extension lines. The id is the beginning of the first record's leaf hash,
so another log cannot have it. `prev` is there only where a log was begun in place of
one that got lost, and states what is known of that. Pure.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from gpuwarden.audit.merkle import EMPTY_ROOT, HASH_BYTES, MAX_SIZE
from gpuwarden.audit.note import NoteError, Signer, VerifierKey, open_note, sign_note

MAX_CHECKPOINT: Final = 4096
"""Characters of a signed checkpoint."""
CHECKPOINT_RECORDS: Final = 1000
"""Records after which a log signs one without waiting for the time."""
LOG_ID_DIGITS: Final = 32
_ORIGIN = re.compile(r"[!-*,-~]{1,520}")
_SIZE = re.compile(r"0|[1-9][0-9]{0,15}")
_LOG = re.compile(rf"log ([0-9a-f]{{{LOG_ID_DIGITS}}})")
_PREV = re.compile(r"prev (\S+) (\S+)")


@dataclass(frozen=True, slots=True)
class TreeHead:
    """Size and root of a tree."""

    size: int
    root: bytes


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A tree head with the log it belongs to."""

    origin: str
    log: str
    head: TreeHead
    prev: TreeHead | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text of a checkpoint (without signatures); raises NoteError."""
        origin, *lines = text.split("\n")
        if len(lines) < 4 or lines.pop() or not _ORIGIN.fullmatch(origin) or "" in lines:  # noqa: PLR2004 -- size, root, log id, and what follows the last line feed
            raise NoteError("not a checkpoint: origin, size, root and log id are expected")
        size, root, *extensions = lines
        (log,) = _only(_LOG, extensions)
        return cls(origin, log, _tree_head(size, root), _prev(extensions))

    def text(self) -> str:
        """What is signed."""
        lines = [self.origin, str(self.head.size), _encoded(self.head.root), f"log {self.log}"]
        if self.prev is not None:
            lines.append(f"prev {self.prev.size} {_encoded(self.prev.root)}")
        return "".join(f"{line}\n" for line in lines)

    def signed(self, signer: Signer) -> str:
        """The signed note."""
        return sign_note(self.text(), [signer])


def open_checkpoint(note: str, key: VerifierKey) -> Checkpoint:
    """The checkpoint of a note that `key` has signed for a log of its own name.

    Raises NoteError.
    """
    checkpoint = read_checkpoint(open_note(note, key), note)
    if checkpoint.origin != key.name:
        raise NoteError(f"a checkpoint of {checkpoint.origin!r} under a key of {key.name!r}")
    return checkpoint


def unverified_checkpoint(note: str) -> Checkpoint:
    """The content of a note, with any signer; raises NoteError."""
    return read_checkpoint(open_note(note), note)


def read_checkpoint(text: str, note: str) -> Checkpoint:
    """Parse within the bounds of a checkpoint."""
    if len(note) > MAX_CHECKPOINT:
        raise NoteError(f"a checkpoint is at most {MAX_CHECKPOINT} characters")
    return Checkpoint.parse(text)


def log_id(first_leaf: bytes) -> str:
    """Id of the log whose first record has this leaf hash."""
    return first_leaf.hex()[:LOG_ID_DIGITS]


def _prev(extensions: list[str]) -> TreeHead | None:
    if not any(line.startswith("prev ") for line in extensions):
        return None
    return _tree_head(*_only(_PREV, extensions))


def _only(pattern: re.Pattern[str], lines: list[str]) -> tuple[str, ...]:
    match [match for line in lines if (match := pattern.fullmatch(line))]:
        case [found]:
            return found.groups()
        case _:
            raise NoteError(f"a checkpoint must have one line like {pattern.pattern!r}")


def _tree_head(size: str, root: str) -> TreeHead:
    if not _SIZE.fullmatch(size) or int(size) > MAX_SIZE:
        raise NoteError("the size of a checkpoint is not a number in range")
    try:
        decoded = b64decode(root)
    except ValueError:
        decoded = b""
    if len(decoded) != HASH_BYTES or _encoded(decoded) != root:
        raise NoteError("the root of a checkpoint is not a SHA-256 in base64")
    if int(size) == 0 and decoded != EMPTY_ROOT:
        raise NoteError("an empty tree has another root")
    return TreeHead(int(size), decoded)


def _encoded(root: bytes) -> str:
    return b64encode(root).decode()


# --- changes of the key

KEY_CHANGE_KIND: Final = "gpuwarden.dev/log-key/v1"
MAX_CHANGES: Final = 16
"""Statements that travel with a challenge at most, the latest ones."""


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A statement that a log goes over to another key, signed by the old and by the new one.

    Both keys carry the log's origin as name. Whoever knows the old key follows the statements to
    the new one. Whoever was given the new key learns that its holder vouches for the old one.
    """

    old: VerifierKey
    new: VerifierKey

    @classmethod
    def open(cls, note: str) -> Self:
        """Read a statement and verify both signatures; raises NoteError."""
        lines = open_note(note).split("\n")
        if len(lines) != 4 or lines[0] != KEY_CHANGE_KIND or lines[3]:  # noqa: PLR2004 -- kind, two keys, and what follows the last line feed
            raise NoteError("not a change of a log's key")
        change = cls(VerifierKey.parse(lines[1]), VerifierKey.parse(lines[2]))
        if change.old.name != change.new.name:
            raise NoteError("a log's key can only give way to another one of the same log")
        open_note(note, change.old, change.new)
        return change


def sign_change(old: Signer, new: Signer) -> str:
    """The statement that `new` follows `old`."""
    return sign_note(f"{KEY_CHANGE_KIND}\n{old.key}\n{new.key}\n", [old, new])


def successor(pinned: VerifierKey, offered: VerifierKey, statements: Sequence[str]) -> VerifierKey:
    """`offered`, if statements lead from `pinned` to it; raises NoteError.

    Statements that cannot be read, or begin elsewhere, are passed over.
    """
    current = pinned
    for note in statements[-MAX_CHANGES:]:
        if current == offered:
            break
        try:
            change = KeyChange.open(note)
        except NoteError:
            continue
        if change.old == current:
            current = change.new
    if current != offered:
        raise NoteError(
            f"the log's key is {offered.name}+{offered.key_id.hex()}, and nothing leads to it"
            f" from the pinned {pinned.name}+{pinned.key_id.hex()}"
        )
    return offered
