"""What a witness concludes from the checkpoints that a log shows it.

A witness keeps, for each origin, the last checkpoint that was proven to continue all
earlier ones, and the key it was signed with: that of first use, and those which its
holder named as successors. A checkpoint that does not continue it is an alarm:

* `CHECKPOINT_INCONSISTENT`: the same log has another past, or goes back
  behind what was seen, or is signed by another key. What was kept stays kept.
* `LOG_RESET`: another log under the same origin, which does not openly continue the old
  one (`prev`). It is witnessed from there on, so that it is not changed in its turn.

Two streams of one witness may overlap, so a checkpoint may be proven from an earlier one
than the last. That is held for a while only: soon the last one must be continued too. Pure.
"""

from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpuwarden.audit.checkpoint import (
    Checkpoint,
    TreeHead,
    open_checkpoint,
    successor,
    unverified_checkpoint,
)
from gpuwarden.audit.merkle import EMPTY_ROOT, ProofError, verify_consistency
from gpuwarden.audit.note import NoteError, VerifierKey
from gpuwarden.counted import counted
from gpuwarden.reasons import ReasonCode

MAX_HELD: Final = 3
"""Checkpoints in a row that may be proven from an earlier one only."""
_RECENT: Final = 8
NOTHING: Final = TreeHead(0, EMPTY_ROOT)
"""What a log is proven from until the witness has sent what it knows."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What came with a challenge."""

    note: str
    proof: tuple[str, ...]
    """Hashes in base64."""
    key: str
    """Verifier key that the controller names."""
    key_changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Witnessed:
    """What is kept of one log."""

    key: VerifierKey
    note: str
    checkpoint: Checkpoint
    recent: tuple[TreeHead, ...]
    """Heads that were proven to continue each other, the last one last."""
    held: int = 0

    @property
    def head(self) -> TreeHead:
        """The last one."""
        return self.checkpoint.head


@dataclass(frozen=True, slots=True)
class Alarm:
    """Two checkpoints that should not both be there."""

    code: ReasonCode
    origin: str
    detail: str
    known: str
    """Note of what was kept."""
    seen: str
    """Note of what came."""


Conclusion = tuple[Witnessed | None, Alarm | None]
"""What is kept from now on, and what is wrong."""


def remembered(note: str, key: str) -> Witnessed:
    """What an earlier process has kept; raises NoteError."""
    known = _begun(note, VerifierKey.parse(key))
    return replace(known, recent=(known.head,))


def conclude(known: Witnessed | None, shown: Shown) -> Conclusion:
    """Judge what a log shows; `known` is what is kept of its origin (see `origin_of`)."""
    try:
        key = VerifierKey.parse(shown.key)
        fresh = _begun(shown.note, key)
    except NoteError as error:
        return _inconsistent(known, shown, f"the checkpoint cannot be verified: {error}")
    if known is None:
        return fresh, None
    try:
        successor(known.key, key, shown.key_changes)
    except NoteError as error:
        if fresh.checkpoint.log != known.checkpoint.log:
            return _reset(known, fresh, f"another log: {error}")
        return _inconsistent(known, shown, str(error))
    if fresh.checkpoint.log != known.checkpoint.log:
        return _another_log(known, fresh)
    return _same_log(replace(known, key=key), fresh, shown)


def origin_of(shown: Shown) -> str | None:
    """The origin that a checkpoint names, whoever signed it; None if it is none."""
    try:
        return unverified_checkpoint(shown.note).origin
    except NoteError:
        return None


def _begun(note: str, key: VerifierKey) -> Witnessed:
    checkpoint = open_checkpoint(note, key)
    return Witnessed(key, note, checkpoint, (NOTHING, checkpoint.head))


def _another_log(known: Witnessed, fresh: Witnessed) -> Conclusion:
    prev = fresh.checkpoint.prev
    if prev is None:
        return _reset(known, fresh, "another log, which does not name the old one")
    if prev != known.head and prev.size <= known.head.size:
        records = counted(prev.size, "record")
        detail = f"another log, whose predecessor had {records}, not as it was seen"
        return _reset(known, fresh, detail)
    return fresh, None


def _same_log(known: Witnessed, fresh: Witnessed, shown: Shown) -> Conclusion:
    head = fresh.head
    if any(head.size == one.size and head.root != one.root for one in known.recent):
        return _inconsistent(known, shown, f"{head.size} records have another root than before")
    proof = _decoded(shown.proof)
    if _continues(known.head, head, proof):
        recent = known.recent if head == known.head else (*known.recent, head)[-_RECENT:]
        return replace(fresh, key=known.key, recent=recent), None
    earlier = [one for one in known.recent if one != NOTHING or head.size > known.head.size]
    if known.held < MAX_HELD and any(_continues(one, head, proof) for one in earlier):
        return replace(known, held=known.held + 1), None
    detail = f"{head.size} records are not shown to continue the {known.head.size} seen"
    return _inconsistent(known, shown, detail)


def _continues(old: TreeHead, new: TreeHead, proof: Sequence[bytes]) -> bool:
    try:
        verify_consistency(old.size, old.root, new.size, new.root, proof)
    except ProofError:
        return False
    return True


def _decoded(proof: Sequence[str]) -> tuple[bytes, ...]:
    """What is not base64 becomes a hash that proves nothing."""
    decoded = []
    for text in proof:
        try:
            decoded.append(b64decode(text, validate=True))
        except ValueError:
            decoded.append(b"")
    return tuple(decoded)


def _inconsistent(known: Witnessed | None, shown: Shown, detail: str) -> Conclusion:
    origin = origin_of(shown)
    if origin is None:
        return known, None
    note = known.note if known else ""
    return known, Alarm(ReasonCode.CHECKPOINT_INCONSISTENT, origin, detail, note, shown.note)


def _reset(known: Witnessed, fresh: Witnessed, detail: str) -> Conclusion:
    origin = fresh.checkpoint.origin
    return fresh, Alarm(ReasonCode.LOG_RESET, origin, detail, known.note, fresh.note)
