"""What challenges say of the audit log: its last checkpoint, proven from the one the agent knows.

An agent's word about what it knows chooses the proof and nothing else. A proof that is not
ready yet is asked for, and comes with a later challenge: a challenge never waits.
"""

from contextlib import suppress
from typing import Protocol

from controller.audit.notary import Published
from controller.verifier.challenge import AuditHead
from controller.verifier.context import StreamState
from gpuwarden.audit.checkpoint import open_checkpoint, unverified_checkpoint
from gpuwarden.audit.key_change import KeyChange
from gpuwarden.audit.note import NoteError, VerifierKey


class CertifiedLog(Protocol):
    """The log of this replica."""

    @property
    def published(self) -> Published | None:
        """The last checkpoint and its proofs."""

    def want_proof(self, size: int) -> None:
        """Ask for a proof from the checkpoint of this size."""


class AuditHeads:
    """For the challenger; one for all streams."""

    def __init__(self, log: CertifiedLog, origin: str) -> None:
        self._log = log
        self._origin = origin

    def __call__(self, stream: StreamState) -> AuditHead | None:
        """The head for this stream, or None where there is nothing to show now."""
        published = self._log.published
        if published is None:
            return None
        known = next((x.checkpoint for x in stream.witnessed if x.origin == self._origin), "")
        size = _size_to_prove_from(known, published)
        if size is not None and size not in published.proofs:
            self._log.want_proof(size)
            return None
        return AuditHead(
            published.note,
            () if size is None else published.proofs[size],
            published.key,
            published.key_changes,
        )


def _size_to_prove_from(note: str, published: Published) -> int | None:
    """None where there is nothing to prove, or no way to: then the agent has to see that."""
    if not note:
        return None
    try:
        known = unverified_checkpoint(note)
    except NoteError:
        return None
    size = known.head.size
    if size in published.proofs:
        return size
    beyond = size >= published.head.size or size in published.unprovable
    if beyond or known.log != published.log or not _is_signed(note, published):
        return None
    return size


def _is_signed(note: str, published: Published) -> bool:
    """Whether a key of this log has signed the note; else it could name any size."""
    former = (KeyChange.open(statement).old for statement in published.key_changes)
    for key in (VerifierKey.parse(published.key), *former):
        with suppress(NoteError):
            open_checkpoint(note, key)
            return True
    return False
