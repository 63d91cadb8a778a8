"""What the Verifier answers: accepted, bad news, or refused with one reason code."""

from dataclasses import dataclass
from typing import Final

from controller.fleet.claims import ContestedClaim
from controller.fleet.enrollment import Candidate, EnrollmentRecord
from controller.fleet.view import Level
from controller.verifier.context import StreamState
from gpuwarden.evidence.model import BadNews, Evidence, LostGpu
from gpuwarden.reasons import EFFECT_OF, STEP_OF, Effect, ReasonCode, Refusal

FIRST_STEP_OF_THE_NODE: Final = 6
"""Before it nothing is known to come from the node, so no refusal may hurt the node."""

VANISHED: Final = "VANISHED"
"""`error` of a pinned GPU that evidence neither has nor reports as lost."""


@dataclass(frozen=True, slots=True)
class EnrollmentChange:
    """What has to stand in the store before the evidence counts."""

    old: EnrollmentRecord | None
    new: EnrollmentRecord


@dataclass(frozen=True, slots=True)
class Accepted:
    """Evidence that passed steps 1 to 18. It counts once the shell has done 19 and 20."""

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
    """Pinned GPUs that do not answer, reported or not."""
    warnings: tuple[str, ...]
    challenge_issued_ns: int
    fresh_until_ns: int
    enrollment: EnrollmentChange | None


@dataclass(frozen=True, slots=True)
class BadNewsAccepted:
    """Authentic news that takes trust away; extends no lease and restores nothing."""

    node: str
    stream: StreamState
    news: BadNews
    evidence_digest: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A denial: the code of the first failing step, and what it does to the node."""

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
    """What an operator may make the pins, where nothing but the pins stood against it."""


def refused(refusal: Refusal, node: str | None) -> Refused:
    """The refusal with its step and effect; ends the stream."""
    step = STEP_OF[refusal.code]
    effect = EFFECT_OF[refusal.code] if step >= FIRST_STEP_OF_THE_NODE else Effect.TRANSIENT
    return Refused(node, refusal.code, step, effect, refusal.detail)
