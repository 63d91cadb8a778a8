"""Holds the last evidence of each node until a record cites it. Pure.

An unchanged round is counted and its evidence is not archived. A Binding or the release of a GPU
may still rest on it a moment later: then its record names the digest, and what is held here under
that digest is archived. Bounded per node and in all; the oldest goes first.
"""

from collections import OrderedDict, deque
from typing import Final

from gpuwarden.audit.archived_evidence import ArchivedEvidence

PER_NODE: Final = 4
"""A decision is recorded a moment after it was made: newer evidence may have come meanwhile."""
MAX_HELD_BYTES: Final = 128 << 20
"""Bytes of payloads."""


class HeldEvidence:
    """One per log; each piece is taken once."""

    def __init__(self, max_bytes: int = MAX_HELD_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._held: OrderedDict[str, tuple[str, ArchivedEvidence]] = OrderedDict()
        """By digest, with the subject; the oldest first."""
        self._digests: dict[str, deque[str]] = {}
        """By subject; the oldest first."""

    def hold(self, subject: str, digest: str, evidence: ArchivedEvidence) -> None:
        """Hold what `subject` (a node) has shown under this digest."""
        if digest in self._held:
            return
        self._held[digest] = subject, evidence
        self._bytes += len(evidence.payload)
        digests = self._digests.setdefault(subject, deque())
        digests.append(digest)
        if len(digests) > PER_NODE:
            self.take(digests[0])
        while self._bytes > self._max_bytes:
            self.take(next(iter(self._held)))

    def take(self, digest: str) -> ArchivedEvidence | None:
        """Hand it out and hold it no longer; None where it is not held."""
        found = self._held.pop(digest, None)
        if found is None:
            return None
        subject, evidence = found
        self._bytes -= len(evidence.payload)
        digests = self._digests[subject]
        digests.remove(digest)
        if not digests:
            del self._digests[subject]
        return evidence
