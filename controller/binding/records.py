"""The audit records of Bindings, reservations and operators' orders, and who records them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol, assert_never

from controller.ledger.record import GpuRecord, HolderState, PodRef
from controller.ledger.release import DriftKind
from controller.ledger.restore import Grants, LivePod, LoggedGrant
from controller.record import Json, Record
from gpuwarden.audit.record import RecordKind
from gpuwarden.reasons import ReasonCode, Refusal

_SHOWN_CHARS: Final = 253
_DETAIL_CHARS: Final = 300
_CONTROLLER: Final = "controller"


@dataclass(frozen=True, slots=True)
class BindDecision:
    """One answer about a Binding of a managed pod; never of a dry run."""

    namespace: str
    pod: str
    uid: str
    """Empty where the pod was not found."""
    node: str
    user: str
    refusals: tuple[Refusal, ...] = ()
    reported: bool = False
    """Whether nothing is refused or written: report-only mode."""
    reservation: str = ""
    """Empty where nothing was reserved."""
    gpus: tuple[str, ...] = ()
    evidence: str = ""
    """Digest of the node's evidence by which it is allowed."""

    @property
    def word(self) -> str:
        """The decision in one word."""
        if not self.refusals:
            return "allowed"
        return "reported" if self.reported else "refused"


def bind_record(decision: BindDecision) -> Record:
    """The `bind.decision` record."""
    return Record(
        kind=RecordKind.BIND_DECISION,
        actor=_cut(decision.user) or "unknown",
        subject=_subject(decision.namespace, decision.pod),
        decision=decision.word,
        codes=tuple(dict.fromkeys(x.code.value for x in decision.refusals)),
        refs={
            "uid": _cut(decision.uid),
            "node": _cut(decision.node),
            "reservation": decision.reservation,
            "gpus": list(decision.gpus),
            "evidence": decision.evidence,
            "reasons": [x.detail for x in decision.refusals],
        },
    )


@dataclass(frozen=True, slots=True)
class ReservationChange:
    """What became of a reservation."""

    pod: PodRef
    reservation: str
    node: str
    gpus: tuple[str, ...]
    """Those that it is about: all of them, where nothing came in between."""
    state: HolderState
    cause: str
    actor: str = _CONTROLLER
    """Who caused it."""
    evidence: str = ""
    """Digest of the node's evidence that it rests on; empty where it rests on none."""

    def of(self, gpus: tuple[str, ...]) -> "ReservationChange":
        """The same, about some of the GPUs."""
        return replace(self, gpus=gpus)


def reservation_record(change: ReservationChange) -> Record:
    """The `reservation.*` record: one for all GPUs of the change."""
    match change.state:
        case HolderState.PROPOSED:
            return Record(RecordKind.RESERVATION_RESERVED, *_about(change))
        case HolderState.CONFIRMED:
            return Record(RecordKind.RESERVATION_CONFIRMED, *_about(change))
        case HolderState.RELEASING:
            return Record(RecordKind.RESERVATION_RELEASING, *_about(change))
        case HolderState.RELEASED:
            return Record(RecordKind.RESERVATION_RELEASED, *_about(change))
        case HolderState.EXPIRED:
            return Record(RecordKind.RESERVATION_EXPIRED, *_about(change))
        case HolderState.REVOKED:
            return Record(RecordKind.RESERVATION_REVOKED, *_about(change))
        case _:
            assert_never(change.state)


def restored_record(pod: LivePod, gpu: str) -> Record:
    """The `reservation.restored` record of one GPU."""
    return Record(
        RecordKind.RESERVATION_RESTORED,
        actor=_CONTROLLER,
        subject=_subject(pod.pod.namespace, pod.pod.name or "-"),
        decision="restored",
        refs={
            "uid": pod.pod.uid,
            "node": _cut(pod.node),
            "reservation": pod.reservation,
            "gpus": [gpu],
        },
    )


def kept_record(grant: LoggedGrant) -> Record:
    """The `reservation.restored` record of a GPU that is kept because the log has it."""
    return Record(RecordKind.RESERVATION_RESTORED, *_about_grant(grant, "kept"))


def ended_record(grant: LoggedGrant) -> Record:
    """The `reservation.ended` record: somebody else has ended it."""
    return Record(RecordKind.RESERVATION_ENDED, *_about_grant(grant, "ended"))


@dataclass(frozen=True, slots=True)
class ReleaseOrder:
    """What an operator orders: end one reservation's part in one GPU."""

    gpu: str
    reservation: str
    reason: str
    actor: str
    """SPIFFE ID, or `local uid N`; behind `claimed by` whom the caller has named."""

    def pod_in(self, record: GpuRecord) -> PodRef:
        """The pod of that reservation in the GPU's record."""
        (pod,) = (x.pod for x in record.holders if x.reservation == self.reservation)
        return pod


def order_record(order: ReleaseOrder, record: GpuRecord, evidence: str | None) -> Record:
    """The `reservation.operator` record of what is about to be done to one of the holders."""
    pod = order.pod_in(record)
    return Record(
        RecordKind.RESERVATION_OPERATOR,
        actor=order.actor,
        subject=f"pod/{pod.namespace}/{pod.name or '-'}",
        decision="released",
        refs={
            "reason": order.reason,
            "uid": pod.uid,
            "node": record.node,
            "reservation": order.reservation,
            "gpus": [record.gpu],
            "evidence": evidence,
        },
    )


def refused_record(order: ReleaseOrder, refusal: Refusal) -> Record:
    """The `reservation.operator` record of what was not done."""
    return Record(
        RecordKind.RESERVATION_OPERATOR,
        actor=order.actor,
        subject=f"reservation/{order.reservation}",
        decision="refused",
        codes=(refusal.code.value,),
        refs={
            "reason": order.reason,
            "reservation": order.reservation,
            "gpus": [order.gpu],
            "detail": refusal.detail[:_DETAIL_CHARS],
        },
    )


def ledger_record(decision: str, refs: Mapping[str, Json]) -> Record:
    """The `ledger.state` record."""
    return Record(RecordKind.LEDGER_STATE, _CONTROLLER, "ledger", decision, refs=refs)


class ReservationSink(Protocol):
    """Records what becomes of Bindings and reservations. Implemented by `recorders.binding`.

    Must return at once, and must not raise.
    """

    def bound(self, decision: BindDecision) -> None:
        """The binding webhook has decided."""

    def reserved_early(self, code: ReasonCode, *, is_new: bool) -> None:
        """A pod's creation was answered; `is_new`: GPUs were claimed that were not before."""

    def changed(self, change: ReservationChange) -> None:
        """This replica has changed the state of a reservation."""

    def freed(self, seconds: float) -> None:
        """This replica released a claimed GPU, so long after it knew that the pod had ended."""

    def wrote(self, result: str) -> None:
        """One write: written, overtaken or failed."""

    def ordered(self, order: ReleaseOrder, refusal: Refusal | None) -> None:
        """An operator's order ended; `refusal` is None where nothing is left to do."""

    def ledger_read(self, error: str) -> None:
        """The ledger was read; `error` is empty, or says why not."""

    def drifts(self, counts: Mapping[DriftKind, int]) -> None:
        """How many drifts of each kind there are now."""

    def restored(self, pod: LivePod, gpu: str) -> None:
        """A live pod's record was restored."""

    def kept(self, grant: LoggedGrant) -> None:
        """A GPU that the ledger had lost is held as Releasing until its node shows no use."""

    def rollback_detected(self, gpus: frozenset[str]) -> None:
        """The ledger was rolled back: nothing is granted until it is reconciled again."""

    def log_replayed(self, grants: Grants) -> None:
        """The audit log from before the start was read."""

    def ended_elsewhere(self, grants: tuple[LoggedGrant, ...]) -> None:
        """The ledger no longer has these."""


def _about_grant(
    grant: LoggedGrant, decision: str
) -> tuple[str, str, str, tuple[str, ...], Mapping[str, Json]]:
    refs: Mapping[str, Json] = {
        "uid": grant.pod.uid,
        "node": _cut(grant.node),
        "reservation": grant.reservation,
        "gpus": [grant.gpu],
    }
    subject = _subject(grant.pod.namespace, grant.pod.name or "-")
    return _CONTROLLER, subject, decision, (), refs


def _about(
    change: ReservationChange,
) -> tuple[str, str, str, tuple[str, ...], Mapping[str, Json]]:
    refs: Mapping[str, Json] = {
        "uid": change.pod.uid,
        "node": _cut(change.node),
        "reservation": change.reservation,
        "gpus": list(change.gpus),
        "cause": change.cause,
        **({"evidence": change.evidence} if change.evidence else {}),
    }
    subject = _subject(change.pod.namespace, change.pod.name or "-")
    return change.actor, subject, change.state.value.lower(), (), refs


def _subject(namespace: str, pod: str) -> str:
    return f"pod/{_cut(namespace)}/{_cut(pod)}"


def _cut(text: str) -> str:
    return text[:_SHOWN_CHARS]
