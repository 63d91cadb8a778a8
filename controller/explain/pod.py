"""The allocation trace of one pod, put together from one moment's snapshots. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from controller.binding.request import BoundPod
from controller.explain.pod_document import PodDocument, read_pod
from controller.explain.stages import WRONG, Case, Stage, stages
from controller.fleet.view import FleetSnapshot
from controller.ledger.record import Holder, in_claiming_order
from controller.ledger.reservation_id import ReservationIds, ReservationSubject
from controller.ledger.store import Entry, LedgerSnapshot
from controller.placement.explanation import PodExplanation
from controller.placement.keys import GIVEN_GUARANTEE, RESERVATION_ID
from gpuwarden.audit.reading import Recent
from gpuwarden.audit.record import LogRecord, RecordKind

_NO_LEDGER = "this controller reserves nothing: it has no admission.tls"
_UNREAD = "the ledger was not read lately"

Part = tuple[Entry, Holder]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """About whom, and all that is known."""

    namespace: str
    name: str
    body: bytes | None
    """The pod as it is stored; None where there is none."""
    explanation: PodExplanation | None
    ledger: LedgerSnapshot | None
    fleet: FleetSnapshot
    ids: ReservationIds | None
    recent: Recent
    now_ns: int
    pod_of: Callable[[str], BoundPod | None] = lambda _uid: None
    report_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationTrace:
    """What there is to say of a pod."""

    case: Case
    stages: tuple[Stage, ...]
    explanation: PodExplanation | None
    """None where the pod is gone."""
    given: str
    """The guarantee in the pod's annotation; empty where there is none."""
    recent: Recent
    others: tuple[Part, ...]
    """What earlier pods of the same name still hold."""

    @property
    def is_wrong(self) -> bool:
        """Whether something does not agree, or is not there."""
        return any(x.state in WRONG for x in self.stages)


def trace_of(asked: Asked) -> AllocationTrace | None:
    """None where nothing is known of such a pod. Raises PodDecodeError."""
    pod = None if asked.body is None else read_pod(asked.body)
    named = tuple(_named(asked))
    uid = pod.uid if pod is not None else _last_uid(named, asked.recent)
    if pod is None and not named and not asked.recent.records:
        return None
    parts = _parts(asked, uid, pod)
    place = pod.node if pod is not None and pod.node else _place(parts)
    unknown = _unknown(asked)
    case = Case(
        namespace=asked.namespace,
        name=asked.name,
        uid=uid,
        pod=pod,
        needs=None if asked.explanation is None else asked.explanation.needs,
        parts=parts,
        ledger=None if unknown else asked.ledger,
        ledger_unknown=unknown,
        is_authentic=None if pod is None else _is_authentic(asked, pod),
        lacks_key=pod is not None and _lacks_key(asked, pod),
        node=asked.fleet.nodes.get(place),
        pod_of=asked.pod_of,
        report_only=asked.report_only,
        has_keys=asked.ids is not None,
        allowed=None if pod is None else _answer(asked.recent, pod, "allowed"),
        would_refuse=None if pod is None else _answer(asked.recent, pod, "reported"),
        now_ns=asked.now_ns,
    )
    return AllocationTrace(
        case=case,
        stages=stages(case),
        explanation=_explanation(asked, pod),
        given="" if pod is None or not pod.node else pod.annotations.get(GIVEN_GUARANTEE, ""),
        recent=asked.recent,
        others=tuple(x for x in named if x[1].pod.uid != uid),
    )


def _explanation(asked: Asked, pod: PodDocument | None) -> PodExplanation | None:
    """Of a pod that has ended nothing but what it asked for: it waits for no node."""
    found = asked.explanation
    if found is None or pod is None or not pod.has_ended:
        return found
    return PodExplanation(needs=found.needs)


def _named(asked: Asked) -> Iterator[Part]:
    if asked.ledger is None or _unknown(asked):
        return
    entries = asked.ledger.entries
    for key in sorted(entries):
        for holder in entries[key].record.holders:
            if (holder.pod.namespace, holder.pod.name) == (asked.namespace, asked.name):
                yield entries[key], holder


def _parts(asked: Asked, uid: str, pod: PodDocument | None) -> tuple[Part, ...]:
    """By its UID, or by the id that it carries while its reservation knows no UID yet."""
    if asked.ledger is None or _unknown(asked):
        return ()
    carried = "" if pod is None else pod.annotations.get(RESERVATION_ID, "")
    unborn = (
        (entry, holder)
        for entry in asked.ledger.holding(carried)
        for holder in entry.record.holders
        if holder.reservation == carried and holder.pod.uid is None
    )
    return asked.ledger.parts_of(uid) or tuple(unborn)


def _unknown(asked: Asked) -> str:
    if asked.ledger is None:
        return _NO_LEDGER
    return _UNREAD if asked.now_ns >= asked.ledger.fresh_until_ns else ""


def _last_uid(named: tuple[Part, ...], recent: Recent) -> str:
    """Of a pod that is gone: the one that still holds something, else the last that was seen."""
    held = next((holder.pod.uid for _, holder in named if holder.pod.uid), None)
    seen = (x.refs.get("uid") for x in reversed(recent.records))
    return held or next((x for x in seen if isinstance(x, str) and x), "")


def _answer(recent: Recent, pod: PodDocument, decision: str) -> LogRecord | None:
    """The last answer that fits, for the pod may have been refused or bound in vain before."""
    wanted = (RecordKind.BIND_DECISION, decision, pod.uid, pod.node)
    for x in reversed(recent.records):
        if (x.kind, x.decision, x.refs.get("uid"), x.refs.get("node")) == wanted:
            return x
    return None


def _place(parts: tuple[Part, ...]) -> str:
    return parts[0][0].record.node if parts else ""


def _is_authentic(asked: Asked, pod: PodDocument) -> bool | None:
    reservation = pod.annotations.get(RESERVATION_ID)
    if asked.ids is None or reservation is None or not pod.node:
        return None
    gpus = in_claiming_order(pod.assigned)
    subject = ReservationSubject(asked.namespace, pod.node, gpus, pod.uid)
    return asked.ids.is_authentic(reservation, subject)


def _lacks_key(asked: Asked, pod: PodDocument) -> bool:
    reservation = pod.annotations.get(RESERVATION_ID, "")
    return asked.ids is not None and asked.ids.lacks_key_of(reservation)
