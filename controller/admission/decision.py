"""What one answer of pod admission leaves behind: an audit record, counts, an Event. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from controller.admission.review import codes_of
from controller.audit.record import Json, Record
from gpuwarden.audit.record import RecordKind
from gpuwarden.reasons import Refusal

_SHOWN_CHARS = 253


@dataclass(frozen=True, slots=True)
class Owner:
    """The object that made the pod; people look there when a pod does not come."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class AdmissionDecision:
    """One decision about a pod that is our business; never of a dry run."""

    step: str
    """`mutate` or `validate`."""
    namespace: str
    pod: str
    owner: Owner | None
    user: str
    refusals: tuple[Refusal, ...]
    enforced: bool
    """Whether the namespace is."""
    reported: bool
    """Whether nothing is refused: report-only mode."""
    reservation: str = ""
    """That was made for it at its creation, where one was."""
    gpus: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """The decision in one word."""
        if not self.refusals:
            return "admitted"
        return "reported" if self.reported else "refused"


class DecisionSink(Protocol):
    """Takes decisions."""

    def note(self, decision: AdmissionDecision) -> None:
        """Record the decision; never waits, never raises."""


def admission_record(decision: AdmissionDecision) -> Record:
    """The `admission.decision` record."""
    owner = decision.owner
    early: Mapping[str, Json] = {}
    if decision.reservation:
        early = {"reservation": decision.reservation, "gpus": list(decision.gpus)}
    return Record(
        kind=RecordKind.ADMISSION_DECISION,
        actor=_cut(decision.user) or "unknown",
        subject=f"pod/{_cut(decision.namespace)}/{_cut(decision.pod)}",
        decision=decision.word,
        codes=codes_of(decision.refusals),
        refs={
            "step": decision.step,
            "enforced": decision.enforced,
            "owner": None if owner is None else f"{_cut(owner.kind)}/{_cut(owner.name)}",
            "reasons": [refusal.detail for refusal in decision.refusals],
            **early,
        },
    )


def _cut(text: str) -> str:
    return text[:_SHOWN_CHARS]
