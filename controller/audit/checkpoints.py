"""Signs checkpoints over the log and proves that each continues earlier ones.

The writer makes a `Draft` of the lines it is about to append and commits it once they
are durable; so nothing is ever signed that a crash could take back. What is published
is a value that any thread may read. Proofs are made by the writer's thread, because they read the
disk.
"""

from base64 import b64encode
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from controller.audit.age import REF
from controller.audit.tree import LogState, NoNodeError, TreeFile
from controller.record import Json, Record
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
from gpuwarden.clock import Clock
from gpuwarden.moment import NS_PER_S

CHECKPOINT_NS = 10_000_000_000
ACTOR = "controller"
PUBLISH_NS = NS_PER_S
"""Least distance of two checkpoints that are shown: proofs cost time, and witnesses come slowly."""
KNOWN_NS = 120_000_000_000
"""How long proofs are kept ready from a checkpoint that was shown or a size that was asked for:
longer than a witness is silent between two challenges."""
MAX_WANTED = 256

Proof = tuple[str, ...]
"""Hashes in base64, as they travel."""


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

    def record(self, age: int | None) -> Record:
        """Its record, with the age of the log."""
        refs: dict[str, Json] = {"checkpoint": self.note, REF: age}
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


class CheckpointSigner:
    """One for an open log. `published` and `want` from any thread, the rest from the writer's."""

    def __init__(
        self,
        state: LogState,
        tree: TreeFile,
        signer: Signer,
        key_changes: tuple[str, ...],
        clock: Clock,
    ) -> None:
        self.state = state
        self.signer = signer
        self._tree = tree
        self._key_changes = key_changes
        self._clock = clock
        self._records = 0
        self._signed_ns: int | None = None
        self._demanded = False
        self._fresh: Signed | None = None
        """Durable, and not shown yet."""
        self._published_ns = -PUBLISH_NS
        self._wants: deque[int] = deque(maxlen=MAX_WANTED)
        now = clock.boottime_ns()
        self._known = {head.size: now for head in state.heads}
        """Sizes for which proofs are kept ready -> since when."""
        self.published: Published | None = None
        if state.note:
            self._publish(Signed(state.note, state.heads[-1]))
            self._published_ns = now - PUBLISH_NS

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
        """Begin a draft of the next lines."""
        return Draft(self.state)

    def commit(self, draft: Draft) -> None:
        """Take over the draft: its lines are durable."""
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
        """What the first record of a further file holds, so that the file can be verified alone."""
        peaks = tuple(b64encode(peak).decode() for peak in self.state.frontier.peaks)
        return {"checkpoint": signed.note, "frontier": peaks, "key": str(self.signer.key)}

    def publish(self, signed: Signed) -> None:
        """The checkpoint's record is durable: show it, now or with the next `tick`."""
        self._records, self._demanded = 0, False
        self._signed_ns = self._clock.boottime_ns()
        self._fresh = signed
        self.tick()

    def save(self, *, durable: bool) -> None:
        """Write what the tree still holds in memory."""
        self._tree.flush(durable=durable)

    def tick(self) -> None:
        """Show a checkpoint that waits, make the proofs that were asked for; not all the time."""
        shown = self.published
        waiting = self._fresh or (self._wants and shown and Signed(shown.note, shown.head))
        if waiting and self._clock.boottime_ns() - self._published_ns >= PUBLISH_NS:
            self._publish(waiting)

    def _publish(self, signed: Signed) -> None:
        self._tree.flush()
        now, head = self._clock.boottime_ns(), signed.head
        wanted = {self._wants.popleft(): now for _ in range(len(self._wants))}
        known = self._known | wanted | {head.size: now}
        recent = [size for size, since in known.items() if now - since < KNOWN_NS]
        self._known = {size: known[size] for size in recent[-MAX_WANTED:]}
        proofs = {size: self._proof(size, head) for size in self._known if size <= head.size}
        self._fresh, self._published_ns = None, now
        self.published = Published(
            note=signed.note,
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
