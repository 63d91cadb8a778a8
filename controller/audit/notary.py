"""Says, signed, what the log has come to: the tree over its records, checkpoints, proofs.

The writer makes a `Draft` of the lines it is about to append and commits it once they
are durable; so nothing is ever signed that a crash could take back. What is published
is a value that any thread may read; proofs that somebody wants are made by the
writer's thread, because they read the disk.
"""

from base64 import b64encode
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from controller.audit.record import Json, Record
from controller.audit.replay import LogState
from controller.audit.tree_file import NoNodeError, TreeNodes
from gpuwarden.audit.checkpoint import CHECKPOINT_RECORDS, Checkpoint, TreeHead, log_id
from gpuwarden.audit.merkle import (
    ProofError,
    consistency_proof,
    leaf_hash,
    root_at,
    verify_consistency,
)
from gpuwarden.audit.note import Signer
from gpuwarden.audit.record import RecordKind

CHECKPOINT_NS = 10_000_000_000
ACTOR = "controller"
MAX_WANTED = 256
"""Sizes beside the last checkpoints' for which proofs are kept ready,"""
WANTED_FOR = 12
"""and for how many checkpoints: longer than a witness is silent between two challenges."""

Proof = tuple[str, ...]
"""Hashes in base64, as they travel."""


class BootClock(Protocol):
    """CLOCK_BOOTTIME."""

    def boottime_ns(self) -> int:
        """Nanoseconds."""


@dataclass(frozen=True, slots=True)
class Published:
    """The last checkpoint and what proves that it continues earlier ones."""

    note: str
    head: TreeHead
    log: str
    """Id of the log."""
    key: str
    """Verifier key."""
    key_changes: tuple[str, ...]
    proofs: Mapping[int, Proof]
    """By the size of the earlier checkpoint."""
    unprovable: frozenset[int]
    """Earlier sizes for which there is no proof, and will be none."""


@dataclass(frozen=True, slots=True)
class Signed:
    """A checkpoint that is not published yet."""

    note: str
    head: TreeHead

    def record(self) -> Record:
        """Its record."""
        refs = {"checkpoint": self.note}
        return Record(RecordKind.CHECKPOINT, ACTOR, "log", "signed", refs=refs)


class Draft:
    """A tree grown on trial by lines that are not durable yet."""

    def __init__(self, state: LogState) -> None:
        self.frontier = state.frontier.copy()
        self.log = state.log
        self.hashes = bytearray()
        self.records = 0

    def take(self, line: bytes) -> None:
        """Let the tree grow by a record's line without its LF."""
        leaf = leaf_hash(line)
        self.log = self.log or log_id(leaf)
        self.hashes += self.frontier.append(leaf)
        self.records += 1


class Notary:
    """One for an open log. `published` and `want` from any thread, the rest from the writer's."""

    def __init__(
        self,
        state: LogState,
        tree: TreeNodes,
        signer: Signer,
        key_changes: tuple[str, ...],
        clock: BootClock,
    ) -> None:
        self.state = state
        self.signer = signer
        self._tree = tree
        self._key_changes = key_changes
        self._clock = clock
        self._records = 0
        self._signed_ns: int | None = None
        self._demanded = False
        self._wanted: dict[int, int] = {}
        """Size -> for how many more checkpoints."""
        self._wants: deque[int] = deque(maxlen=MAX_WANTED)
        self.published: Published | None = None
        if state.note:
            self._publish(state.note, state.heads[-1])

    def want(self, size: int) -> None:
        """Ask for a proof from the checkpoint of this size; it is published soon."""
        self._wants.append(size)

    def due(self) -> bool:
        """Whether a checkpoint is due."""
        if not self._records:
            return False
        if self._demanded or self._signed_ns is None or self._records >= CHECKPOINT_RECORDS:
            return True
        return self._clock.boottime_ns() - self._signed_ns >= CHECKPOINT_NS

    def demand(self) -> None:
        """Let a checkpoint be due as soon as there is anything to sign."""
        self._demanded = True

    def draft(self) -> Draft:
        """A trial of what comes next."""
        return Draft(self.state)

    def commit(self, draft: Draft) -> None:
        """The lines of the draft are durable."""
        self.state.frontier, self.state.log = draft.frontier, draft.log
        self._records += draft.records
        self._tree.append(bytes(draft.hashes))

    def sign(self) -> Signed:
        """A checkpoint over all that is durable. Its record is to be the next one."""
        state = self.state
        head = TreeHead(state.frontier.size, state.frontier.root())
        checkpoint = Checkpoint(self.signer.key.name, state.log, head, state.prev)
        return Signed(checkpoint.signed(self.signer), head)

    def carried(self, signed: Signed) -> dict[str, Json]:
        """What the first record of a further file says, so that the file stands for itself."""
        peaks = tuple(b64encode(peak).decode() for peak in self.state.frontier.peaks)
        return {"checkpoint": signed.note, "frontier": peaks, "key": str(self.signer.key)}

    def publish(self, signed: Signed) -> None:
        """The checkpoint's record is durable."""
        self._records, self._demanded = 0, False
        self._signed_ns = self._clock.boottime_ns()
        self.state.heads.append(signed.head)
        self._wanted = {size: left - 1 for size, left in self._wanted.items() if left > 1}
        self._publish(signed.note, signed.head)

    def save(self, *, durable: bool) -> None:
        """Write what the tree still holds in memory."""
        self._tree.flush(durable=durable)

    def tick(self) -> None:
        """Make the proofs that were asked for."""
        if self._wants and self.published is not None:
            self._publish(self.published.note, self.published.head)

    def _publish(self, note: str, head: TreeHead) -> None:
        self._tree.flush()
        while self._wants:
            self._wanted[self._wants.popleft()] = WANTED_FOR
        sizes = {*list(self._wanted)[-MAX_WANTED:], *(one.size for one in self.state.heads)}
        proofs = {size: self._proof(size, head) for size in sizes if size <= head.size}
        self.published = Published(
            note=note,
            head=head,
            log=self.state.log,
            key=str(self.signer.key),
            key_changes=self._key_changes,
            proofs={size: proof for size, proof in proofs.items() if proof is not None},
            unprovable=frozenset(size for size, proof in proofs.items() if proof is None),
        )

    def _proof(self, size: int, head: TreeHead) -> Proof | None:
        """A proof that has been checked, or None: a damaged tree must not accuse the log."""
        node = self._tree.node
        try:
            proof = consistency_proof(size, head.size, node)
            verify_consistency(size, root_at(size, node), head.size, head.root, proof)
        except (NoNodeError, ProofError):
            return None
        return tuple(b64encode(one).decode() for one in proof)


def key_record(statement: str, signer: Signer) -> Record:
    """A `log.key` record."""
    refs = {"key": str(signer.key), "statement": statement}
    return Record(RecordKind.LOG_KEY, ACTOR, "log", "changed", refs=refs)
