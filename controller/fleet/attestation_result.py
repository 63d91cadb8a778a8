"""Attestation results (RFC 9334): what the Verifier answers, and the stream that it answers on.

Three results: accepted, failure notices, or refused with one reason code.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from cryptography import x509

from controller.fleet.enrollment import (
    Candidate,
    ContestedClaim,
    EnrollmentRecord,
)
from controller.policy import Level
from gpuwarden.evidence.auxiliary_facts import Dropped
from gpuwarden.evidence.class_document import ClassDocument
from gpuwarden.evidence.known_inventory import KnownInventory
from gpuwarden.evidence.model import (
    ZERO_DIGEST,
    Evidence,
    FailedRead,
    Failure,
    Hello,
    Inventory,
    LostGpu,
    WitnessedCheckpoint,
)
from gpuwarden.identity.chain import ChainProof
from gpuwarden.identity.spiffe_id import SpiffeId
from gpuwarden.reasons import EFFECT_OF, STEP_OF, Effect, ReasonCode, Refusal


@dataclass(frozen=True, slots=True)
class AppraisedInventory:
    """A well-formed inventory and the documents that were made of it, kept for the next message.

    An equal inventory under the same standing has the same documents and hashes. What depends on
    anything else (enrolled GPUs, policy, claims of others) is appraised each time.
    """

    known: KnownInventory
    failed_reads: tuple[FailedRead, ...]
    inventory: Inventory
    """What is left of it without malformed facts; the very object where nothing was malformed."""
    dropped: tuple[Dropped, ...]
    standing: object
    """The `Standing` under which it was appraised; only ever compared."""
    node_uid: str | None
    document: ClassDocument
    attestation_hash: str
    class_document: bytes
    """RFC 8785 JSON."""
    identity_digest: str
    identity_document: bytes
    """RFC 8785 JSON."""

    def shows(self, evidence: Evidence) -> bool:
        """Whether evidence says about the hardware what this one said."""
        inventory = self.known.inventory
        same = inventory is evidence.inventory or inventory == evidence.inventory
        return same and self.failed_reads == evidence.failed_reads

    def holds(self, standing: object, node_uid: str | None) -> bool:
        """Whether the documents would be the same again."""
        return self.standing == standing and self.node_uid == node_uid


@dataclass(frozen=True, slots=True)
class StreamState:
    """One admitted stream: its session, and how far its evidence has come."""

    stream_id: str
    """32 lower-case hex digits, drawn by the caller."""
    node: str
    peer: SpiffeId
    chain: tuple[bytes, ...]
    leaf: x509.Certificate
    """The only certificate that may sign on this stream."""
    leaf_sha256: str
    hello: Hello
    hello_sha256: str
    proof: ChainProof
    """That `chain` was verified when the stream was opened."""
    superseded_at_open: bool
    """Another process had taken over before: whatever this one answers makes it a duplicate."""
    seq: int = 0
    """Of the last message that got through step 15."""
    prev: str = ZERO_DIGEST
    """Its evidence digest."""
    boottime_ms: int | None = None
    """The node's CLOCK_BOOTTIME in it."""
    appraised: AppraisedInventory | None = None
    """Of the last evidence that passed."""
    witnessed: tuple[WitnessedCheckpoint, ...] = ()
    """Audit checkpoints that the agent last said it knows."""


FIRST_STEP_OF_THE_NODE: Final = 6
"""Before it nothing is known to come from the node, so no refusal may hurt the node."""

VANISHED: Final = "VANISHED"
"""`error` of an enrolled GPU that evidence neither has nor reports as lost."""


@dataclass(frozen=True, slots=True)
class EnrollmentChange:
    """What must be in the store before the evidence counts."""

    old: EnrollmentRecord | None
    new: EnrollmentRecord


@dataclass(frozen=True, slots=True)
class Accepted:
    """Evidence that passed steps 1 to 18. It counts once the caller has taken steps 19 and 20."""

    node: str
    stream: StreamState
    evidence: Evidence
    evidence_digest: str
    level: Level
    attestor: str | None
    attestation_hash: str
    class_document: bytes
    """RFC 8785 JSON."""
    identity_digest: str
    identity_document: bytes
    """RFC 8785 JSON."""
    lost: tuple[LostGpu, ...]
    """Enrolled GPUs that do not answer, reported or not."""
    warnings: tuple[str, ...]
    challenge_issued_ns: int
    fresh_until_ns: int
    enrollment: EnrollmentChange | None
    unhealthy: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """GPU -> the faults that keep it from being given away, for people."""


@dataclass(frozen=True, slots=True)
class FailureNoticeAccepted:
    """An authentic failure notice: it takes trust away; extends no lease and restores nothing."""

    node: str
    stream: StreamState
    failures: tuple[Failure, ...]
    """At least one, oldest first."""
    evidence_digest: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal: the code of the first failing step, and what it does to the node."""

    node: str | None
    """None before step 5 has found out whose stream it is."""
    code: ReasonCode
    step: int
    effect: Effect
    detail: str
    findings: tuple[Refusal, ...] = ()
    """All that steps 16 and 18 found, this one first."""
    stream: StreamState | None = None
    """The state to go on with; None ends the stream (a sequence that is not known cannot go on)."""
    lost: tuple[LostGpu, ...] = ()
    """GPUs that authentic, though refused, evidence says are gone: taken away all the same."""
    contested: tuple[ContestedClaim, ...] = ()
    """Whose GPUs were claimed: their owners are unharmed and get an event."""
    evidence_digest: str = ""
    """Of the refused bytes, where they were authentic."""
    candidate: Candidate | None = None
    """What an operator may enroll, where only the enrolled GPUs stood against it."""


def refused(refusal: Refusal, node: str | None) -> Refused:
    """The refusal with its step and effect; ends the stream."""
    step = STEP_OF[refusal.code]
    effect = EFFECT_OF[refusal.code] if step >= FIRST_STEP_OF_THE_NODE else Effect.TRANSIENT
    return Refused(node, refusal.code, step, effect, refusal.detail)
