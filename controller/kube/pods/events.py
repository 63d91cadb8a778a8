"""Kubernetes Events: their texts, merged into series, rate-limited and written. Best effort.

Nothing waits for an Event: what does not fit is dropped and counted. `EventSeries` and the texts
are pure; `EventRecorder` writes.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, NoReturn

from controller.admission.pod_webhooks import AdmissionDecision
from controller.binding.records import BindDecision
from controller.binding.use import UseFault, UseFaultKind
from controller.fleet.directory import DirectorySnapshot
from controller.fleet.trust import ChangeKind, TrustChange
from controller.kube.api.client import ApiClient
from controller.kube.api.resources import CORE_EVENTS, EVENTS, GROUP, ApiError, cleaned
from controller.kube.pods.pods import KnownPod
from controller.ledger.record import PodRef
from controller.placement.filter_and_score import FilterDecision, Totals
from gpuwarden.clock import Clock
from gpuwarden.counted import counted
from gpuwarden.moment import NS_PER_S, rfc3339
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

MAX_KINDS: Final = 1024
MAX_NOTE: Final = 1024
WRITES_PER_SECOND: Final = 5.0
BURST: Final = 25.0
REPEAT_NS: Final = 60 * NS_PER_S
FORGET_NS: Final = 10 * 60 * NS_PER_S
"""A kind that was silent for so long begins a new Event."""
_MAX_NAME: Final = 200
_TRIES: Final = 3


class Severity(StrEnum):
    """`type` of an Event."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Regarding:
    """The object that people will look at."""

    kind: str
    name: str
    uid: str
    """Empty for a pod at its creation."""
    namespace: str = ""
    api_version: str = "v1"


@dataclass(frozen=True, slots=True)
class Notice:
    """Something to be said; repeats differ in nothing but the note."""

    regarding: Regarding
    reason: str
    """UpperCamelCase, constant."""
    action: str
    severity: Severity
    code: str
    """Reason code: another code is another Event. Empty where there is none."""
    note: str
    """Never empty."""

    @property
    def key(self) -> tuple[Regarding, str, str]:
        """What repeats have in common."""
        return self.regarding, self.reason, self.code


Key = tuple[Regarding, str, str]


@dataclass(frozen=True, slots=True)
class Writing:
    """One write to make: a new Event (events.k8s.io/v1), or count and text of one that is there.

    The latter as core/v1: events.k8s.io/v1 lets nobody change a text.
    """

    key: Key
    namespace: str
    name: str
    body: dict[str, Any]
    is_new: bool


@dataclass(slots=True)
class _Series:
    notice: Notice
    name: str
    count: int
    last_ns: int
    last_wall_ns: int
    written: int = 0
    """Of `count`, how many the API server knows of."""
    written_ns: int = 0
    """0 until it was written, so that what is new comes first."""
    failures: int = 0


class EventSeries:
    """Notices merged into series; `reporter` is shown as the instance that reports.

    The first of a kind is written at once. Repeats become a count that is written at most once a
    minute (`series`), together with the newest text. The number of kinds and of writes per second
    is bounded.
    """

    def __init__(self, controller: str, reporter: str) -> None:
        self._controller = controller
        self._reporter = reporter[:128]
        self._series: dict[Key, _Series] = {}
        self._tokens = BURST
        self._filled_ns = 0
        self._forgot_ns = 0

    def add(self, notice: Notice, name: str, now_ns: int, wall_ns: int) -> str:
        """Remember it; `name` is for a new Event. Returns `merged`, `queued` or `dropped`."""
        self._forget(now_ns)
        found = self._series.get(notice.key)
        if found is not None:
            found.notice = notice
            found.count += 1
            found.last_ns, found.last_wall_ns = now_ns, wall_ns
            return "merged"
        if len(self._series) >= MAX_KINDS:
            return "dropped"
        self._series[notice.key] = _Series(notice, name, 1, now_ns, wall_ns)
        return "queued"

    def next_writing(self, now_ns: int) -> Writing | None:
        """The next write that may be made now: what is new, else what was written longest ago."""
        self._fill(now_ns)
        if self._tokens < 1.0:
            return None
        due = (key for key, x in self._series.items() if _is_due(x, now_ns))
        key = min(due, key=lambda x: self._series[x].written_ns, default=None)
        if key is None:
            return None
        self._tokens -= 1.0
        return self._writing(key, self._series[key])

    def wrote(self, key: Key, now_ns: int) -> None:
        """The API server took the last writing of `key`."""
        series = self._series.get(key)
        if series is not None:
            series.written, series.written_ns, series.failures = series.count, now_ns, 0

    def failed(self, key: Key, *, is_gone: bool) -> bool:
        """It did not; an Event that is gone is written again. True when we give up on it."""
        series = self._series.get(key)
        if series is None:
            return False
        series.failures += 1
        if is_gone:
            series.written = series.written_ns = 0
        if series.failures < _TRIES:
            return False
        del self._series[key]
        return True

    def clear(self) -> int:
        """Forget everything; returns how much was waiting to be written."""
        waiting = sum(1 for x in self._series.values() if x.count > x.written)
        self._series.clear()
        return waiting

    def _writing(self, key: Key, series: _Series) -> Writing:
        notice = series.notice
        namespace = notice.regarding.namespace or "default"
        name = f"{notice.regarding.name[:_MAX_NAME]}.{series.name}"
        seen = {"count": series.count, "lastObservedTime": rfc3339(series.last_wall_ns, digits=6)}
        if series.written:
            body = {"message": _text(notice)[:MAX_NOTE], "series": seen}
            return Writing(key, namespace, name, body, is_new=False)
        event = self._event(series, namespace, name, seen)
        return Writing(key, namespace, name, event, is_new=True)

    def _event(
        self, series: _Series, namespace: str, name: str, seen: dict[str, Any]
    ) -> dict[str, Any]:
        notice, regarding = series.notice, series.notice.regarding
        event: dict[str, Any] = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": rfc3339(series.last_wall_ns, digits=6),
            "reportingController": self._controller,
            "reportingInstance": self._reporter,
            "action": notice.action,
            "reason": notice.reason,
            "type": notice.severity.value,
            "note": _text(notice)[:MAX_NOTE],
            "regarding": {
                "apiVersion": regarding.api_version,
                "kind": regarding.kind,
                "name": regarding.name,
                **({"uid": regarding.uid} if regarding.uid else {}),
                **({"namespace": regarding.namespace} if regarding.namespace else {}),
            },
        }
        return event if series.count == 1 else {**event, "series": seen}

    def _fill(self, now_ns: int) -> None:
        elapsed_s = max(0, now_ns - self._filled_ns) / NS_PER_S
        self._tokens = min(BURST, self._tokens + elapsed_s * WRITES_PER_SECOND)
        self._filled_ns = now_ns

    def _forget(self, now_ns: int) -> None:
        """Now and then: what was silent for long and is all written."""
        if now_ns - self._forgot_ns < REPEAT_NS:
            return
        self._forgot_ns = now_ns
        self._series = {
            k: x
            for k, x in self._series.items()
            if now_ns - x.last_ns < FORGET_NS or x.count > x.written
        }


def _is_due(series: _Series, now_ns: int) -> bool:
    is_repeated = series.count > max(series.written, 1)
    return not series.written or (is_repeated and now_ns - series.written_ns >= REPEAT_NS)


def _text(notice: Notice) -> str:
    """Code and note: the code once, and never nothing."""
    note = cleaned(notice.note)
    if notice.code and re.search(rf"\b{notice.code}\b", note):
        return f"gpuwarden: {note}"
    return f"gpuwarden: {' '.join(x for x in (notice.code, note) if x)}"


# --- admission, binding and placement in report-only mode
# A refusal that is carried out needs no Event of ours: whoever created the pod gets it as an
# error, and the scheduler says why it does not bind one.

REASON: Final = "PodWouldBeDenied"
BINDING_REASON: Final = "BindingWouldBeDenied"
PLACEMENT_REASON: Final = "PodWouldNotBePlaced"


def admission_notice(decision: AdmissionDecision) -> Notice | None:
    """`would be denied: …`, or None where the pod is admitted anyway.

    About the object that made the pod, else about the pod, which has no UID at its creation.
    """
    if not (decision.reported and decision.refusals):
        return None
    owner = decision.owner
    if owner is None:
        about = Regarding("Pod", decision.pod, "", decision.namespace)
    else:
        about = Regarding(
            owner.kind, owner.name, owner.uid, decision.namespace, owner.api_version or "v1"
        )
    return _denied(about, REASON, "Admit", decision.refusals)


def binding_notice(decision: BindDecision) -> Notice | None:
    """The same about a Binding."""
    if not (decision.reported and decision.refusals):
        return None
    about = Regarding("Pod", decision.pod, decision.uid, decision.namespace)
    return _denied(about, BINDING_REASON, "Bind", decision.refusals)


def placement_notice(decision: FilterDecision, totals: Totals) -> Notice | None:
    """That no node would pass, with the commonest reason first; None where one would."""
    if totals.passed or not (decision.reported and totals.rejected):
        return None
    about = Regarding("Pod", decision.pod, decision.uid, decision.namespace)
    first, *rest = _by_count(totals.rejected)
    counts = [f"{totals.rejected[first]} of {counted(sum(totals.rejected.values()), 'node')}"]
    counts += (f"{totals.rejected[code]} {code.value}" for code in rest)
    note = f"no node would be offered: {', '.join(counts)}"
    return Notice(about, PLACEMENT_REASON, "Filter", Severity.WARNING, first.value, note)


def _denied(about: Regarding, reason: str, action: str, refusals: Sequence[Refusal]) -> Notice:
    first, *more = refusals
    rest = f" (and {len(more)} more)" if more else ""
    note = f"would be denied: {first.detail}{rest}"
    return Notice(about, reason, action, Severity.WARNING, first.code.value, note)


def _by_count(counts: Mapping[ReasonCode, int]) -> list[ReasonCode]:
    return sorted(counts, key=lambda code: (-counts[code], code.value))


# --- trust in nodes

MAX_PODS: Final = 64
"""Pods of one node that get an Event about one change."""


class Words(NamedTuple):
    """What an Event about a change has."""

    reason: str
    action: str
    severity: Severity
    text: str
    """What is said where the change has no detail of its own."""
    for_pods: bool = False


_WARNING, _NORMAL = Severity.WARNING, Severity.NORMAL
WORDS: Final = {
    ChangeKind.REFUSED: Words(
        "EvidenceRefused", "Refuse", _WARNING, "its evidence was refused; its lease runs on"
    ),
    ChangeKind.REVOKED: Words(
        "EvidenceRefused", "Revoke", _WARNING, "its evidence was refused", for_pods=True
    ),
    ChangeKind.QUARANTINED: Words(
        "NodeQuarantined", "Quarantine", _WARNING, "it waits for an operator", for_pods=True
    ),
    ChangeKind.LEASE_ENDED: Words(
        "EvidenceStale", "Expire", _WARNING, "its evidence is too old", for_pods=True
    ),
    ChangeKind.RELEASED: Words(
        "NodeReleased", "Release", _NORMAL, "its quarantine ended; its next evidence decides"
    ),
    ChangeKind.RESTORED: Words(
        "NodeRecovered", "Accept", _NORMAL, "its evidence was accepted again", for_pods=True
    ),
    ChangeKind.GPU_LOST: Words("GpuLost", "Exclude", _WARNING, "it does not answer"),
    ChangeKind.GPU_UNHEALTHY: Words("GpuUnhealthy", "Exclude", _WARNING, "it had an error"),
    ChangeKind.GPU_BACK: Words("GpuRecovered", "Include", _NORMAL, "it answers again"),
    ChangeKind.CLAIM_REPELLED: Words(
        "ForeignClaimRepelled", "Refuse", _WARNING, "another node claimed its GPU, and was refused"
    ),
}
REASONS: Final = tuple(sorted({x.reason for x in WORDS.values()}))
"""Every reason an Event of ours can have."""


def trust_notices(
    changes: Iterable[TrustChange],
    nodes: DirectorySnapshot,
    managed_pods: Callable[[str], Iterable[KnownPod]],
) -> Iterator[Notice]:
    """Notices about `changes`, none about nodes that the cluster does not have.

    Managed pods get those about a node that is no longer trusted, or trusted again. What they are
    told about their GPUs is in `GpuFailures`.
    """
    for change in changes:
        words, node = WORDS.get(change.kind), nodes.nodes.get(change.node)
        if words is None or node is None or node.uid is None:
            continue
        code = change.code.value if change.code else ""
        note = " ".join(x for x in (change.detail or words.text, change.gpu) if x)
        yield _notice(Regarding("Node", change.node, node.uid), words, code, note)
        if words.for_pods:
            for pod, _ in zip(managed_pods(change.node), range(MAX_PODS), strict=False):
                about = Regarding("Pod", pod.name, pod.uid, pod.namespace)
                yield _notice(about, words, code, f"node {change.node}: {note}")


def _notice(about: Regarding, words: Words, code: str, note: str) -> Notice:
    return Notice(about, words.reason, words.action, words.severity, code, note)


# --- disagreements between nodes and the ledger
# About the pod where the pod has what it should not have, or lacks what it needs. About the node
# where a GPU is used without a reservation: such a pod may be anybody's and has done nothing wrong.
# And about the pods that hold the GPU: their owners can do something, and see no Events of nodes.

MISMATCH: Final = "GpuMismatch"
UNRESERVED: Final = "GpuUnreserved"
UNRESERVED_USE: Final = "GpuUnreservedUse"
_ACTION: Final = "Compare"
MAX_VICTIMS: Final = 16
"""Pods that hold a GPU and get an Event about one use of it by others."""
_TEXTS: Final = {
    UseFaultKind.OTHER_GPU: "the pod has {gpu}, which is not the GPU of its reservation",
    UseFaultKind.UNFIT_GPU: "kubelet gave the pod {gpu}, which is not what it has asked for",
    UseFaultKind.TAKEN_GPU: "kubelet gave the pod {gpu}, which is reserved for another pod",
    UseFaultKind.SLICED_GPU: "kubelet gave the pod slices of {gpu}, where it has asked for as many"
    " GPUs",
    UseFaultKind.GONE_GPU: "the pod has {gpu}, which its node shows no more: it was replaced or"
    " split again",
    UseFaultKind.UNRESERVED: "the pod was bound without a reservation and sees no GPU",
    UseFaultKind.UNRESERVED_USE: "{gpu} is used by {user}, and no reservation explains it",
}


def use_notices(faults: Iterable[UseFault], nodes: DirectorySnapshot) -> Iterator[Notice]:
    """What is to be said about disagreements that began."""
    for fault in faults:
        about = _about(fault, nodes)
        if about is not None:
            yield Notice(about, _reason(fault), _ACTION, Severity.WARNING, "", text_of(fault))
        for victim in fault.victims[:MAX_VICTIMS]:
            note = f"{fault.gpu}, of which this pod holds all or a part, is used by {_user(fault)}"
            yield Notice(_pod(victim), UNRESERVED_USE, _ACTION, Severity.WARNING, "", note)


def text_of(fault: UseFault) -> str:
    """One line for people."""
    return _TEXTS[fault.kind].format(gpu=fault.gpu, user=_user(fault))


def _user(fault: UseFault) -> str:
    if fault.pod is not None:
        return f"pod {fault.pod.namespace}/{fault.pod.name}"
    if not fault.owner:
        return "a process of no pod"
    return f"pod UID {fault.owner} (no live pod of this node)"


def _about(fault: UseFault, nodes: DirectorySnapshot) -> Regarding | None:
    pod = fault.pod
    if fault.kind is UseFaultKind.UNRESERVED_USE:
        node = nodes.nodes.get(fault.node)
        return None if node is None else Regarding("Node", fault.node, node.uid or "")
    if pod is None:
        return None
    return _pod(pod)


def _pod(pod: PodRef) -> Regarding:
    return Regarding("Pod", pod.name or "", pod.uid or "", pod.namespace)


def _reason(fault: UseFault) -> str:
    match fault.kind:
        case UseFaultKind.UNRESERVED_USE:
            return UNRESERVED_USE
        case UseFaultKind.UNRESERVED:
            return UNRESERVED
        case _:
            return MISMATCH


# --- writing

CONTROLLER: Final = f"{GROUP}/controller"
WRITE_SECONDS: Final = 1.0


class EventRecorder:
    """Writes notices as Events; used from one event loop.

    Every replica sees the same evidence, so only the replica for which `leads` is true writes;
    notices of the others are dropped.
    """

    def __init__(
        self,
        api: ApiClient,
        *,
        reporter: str,
        clock: Clock,
        instruments: Instruments,
        leads: Callable[[], bool],
        draw_name: Callable[[], str],
    ) -> None:
        self._api = api
        self._clock = clock
        self._leads = leads
        self._draw_name = draw_name
        """Another one each time: what makes an Event's name its own."""
        self._series = EventSeries(CONTROLLER, reporter)
        self._count = instruments.counter(names.KUBE_EVENTS)
        self._log = logger("kube")
        self._reported = False

    def say(self, notices: Iterable[Notice]) -> None:
        """Remember what is to be said; returns at once."""
        if not self._leads():
            return
        now_ns, wall_ns = self._clock.boottime_ns(), self._clock.wall_ns()
        for notice in notices:
            result = self._series.add(notice, self._draw_name(), now_ns, wall_ns)
            self._count.labels(result).inc()

    async def follow(self, seconds: float = WRITE_SECONDS) -> NoReturn:
        """Write what is due, forever; ends by cancellation only."""
        while True:
            await asyncio.sleep(seconds)
            await self.write_due()

    async def write_due(self) -> None:
        """Write what is due now; one failure is enough for a while."""
        if not self._leads():
            self._series.clear()
            return
        while (writing := self._series.next_writing(self._clock.boottime_ns())) is not None:
            try:
                await self._write(writing)
            except ApiError as error:
                self._failed(writing, error)
                return
            self._series.wrote(writing.key, self._clock.boottime_ns())
            self._count.labels("written").inc()
            self._reported = False

    async def _write(self, writing: Writing) -> None:
        if writing.is_new:
            await self._api.create(EVENTS, writing.body, writing.namespace)
        else:
            await self._api.patch(CORE_EVENTS, writing.name, writing.body, writing.namespace)

    def _failed(self, writing: Writing, error: ApiError) -> None:
        if self._series.failed(writing.key, is_gone=error.is_not_found and not writing.is_new):
            self._count.labels("failed").inc()
        if not self._reported:
            self._log.warning(Event.KUBE_EVENT_FAILED, reason=str(error))
        self._reported = True
