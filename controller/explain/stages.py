"""The five stages of a pod on its way to its GPUs: required, reserved, bound, kubelet, NVML. Pure.

The pod's own fields are what others wrote, the ledger is gpuwarden's, kubelet and NVML come from
the last accepted evidence of the node, whose digest is shown. Must not decide anything about the
pod.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from controller.binding.request import BoundPod
from controller.explain.pod_document import PodDocument
from controller.explain.pod_gpus import (
    DELETE,
    DELETE_IF,
    devices_among,
    given_devices,
    given_gpus,
    gpus_of_live_pod,
    is_of_no_use,
    keys_of,
)
from controller.fleet.view import Acceptance, GpuView, NodeState, NodeView
from controller.ledger.record import Holder, HolderState, Origin, key_of
from controller.ledger.store import Entry, LedgerSnapshot
from controller.placement.keys import ATTESTATION_HASH, RESERVATION_ID
from controller.placement.requirements import Requirements, RequirementsInvalid, describe
from controller.policy import NodeMode
from gpuwarden.audit.record import LogRecord
from gpuwarden.counted import counted
from gpuwarden.evidence.model import Allocation, GpuProcess
from gpuwarden.evidence.use_rules import device_uuid
from gpuwarden.moment import rfc3339

LISTED: Final = 8
"""Of what can be many, so many are named."""
ITS_GPU: Final = "its GPU "
"""So begins the finding that a GPU of the pod has failed, and no other: tenants are shown it."""
_SERIAL: Final = re.compile(r", [^,;]* is enrolled")
"""In the reason of a GPU whose serial was not read; not everybody may see serials."""
_MAX_CHARS: Final = 400
_SLICE: Final = "::"
"""In kubelet's id of a time-sliced device."""


class StageName(StrEnum):
    """Of a stage, in their order."""

    REQUIRED = "required"
    RESERVED = "reserved"
    BOUND = "bound"
    KUBELET = "kubelet"
    NVML = "nvml"


class StageState(StrEnum):
    """What is known of a stage of the pod."""

    REACHED = "reached"
    WAITING = "waiting"
    """Not yet."""
    UNNEEDED = "unneeded"
    """This pod, or this kind of node, has no such stage."""
    OVER = "over"
    """It was here, or may have been; nothing of it is left."""
    MISSING = "missing"
    """It ought to be there."""
    MISMATCH = "mismatch"
    """It is there, and does not agree with the stages before."""
    UNKNOWN = "unknown"
    """Nobody can say now."""


WRONG: Final = frozenset({StageState.MISSING, StageState.MISMATCH})


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage; times are RFC 3339 and empty where nobody says."""

    name: StageName
    state: StageState
    at: str = ""
    source: str = ""
    evidence: str = ""
    """Digest of the signed evidence that says it; empty where it is not from evidence."""
    gpus: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    """Lines for people, with text that others wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All that is known of one pod at one moment."""

    namespace: str
    name: str
    uid: str
    """Empty where nothing knows one."""
    pod: PodDocument | None
    """None where the API server has no such pod."""
    needs: Requirements | RequirementsInvalid | None
    parts: tuple[tuple[Entry, Holder], ...]
    """What the ledger holds for it."""
    ledger: LedgerSnapshot | None
    """None where it says nothing."""
    ledger_unknown: str
    """Why the ledger says nothing; empty where it does."""
    is_authentic: bool | None
    """Whether the reservation id on the pod is authentic, for this pod, node and GPUs; None where
    it has none, or there are no keys."""
    lacks_key: bool = False
    """Whether no key of that id's name is left, so that nobody can tell."""
    node: NodeView | None
    """Where it is bound, or else reserved."""
    pod_of: Callable[[str], BoundPod | None] = lambda _uid: None
    """The bound pod of a UID, which for a static pod may be the one on its node."""
    report_only: bool = False
    """Whether nothing is reserved or refused, whatever is decided."""
    has_keys: bool = True
    """Whether there are keys for reservation ids: without them nothing is recorded."""
    allowed: LogRecord | None = None
    """The binding webhook's answer that let it on its node, where this replica gave it."""
    would_refuse: LogRecord | None = None
    """The one that would have refused it there, in report-only mode; likewise."""
    now_ns: int
    """CLOCK_BOOTTIME."""

    @property
    def is_over(self) -> bool:
        """Whether the pod has ended."""
        return self.pod is None or self.pod.has_ended

    @property
    def managed(self) -> bool:
        """Whether it asks for anything of gpuwarden."""
        needs = self.needs
        return isinstance(needs, RequirementsInvalid) or (needs is not None and needs.managed)

    @property
    def asks_no_gpu(self) -> bool:
        """Whether it is known to ask gpuwarden for none."""
        needs = self.needs
        return isinstance(needs, Requirements) and not (needs.managed and needs.count)

    @property
    def mode(self) -> NodeMode | None:
        """Of the node."""
        return None if self.node is None else self.node.mode

    @property
    def reserved(self) -> tuple[str, ...]:
        """UUIDs that the ledger holds for it."""
        return tuple(entry.record.gpu for entry, _ in self.parts)

    @property
    def assigned(self) -> tuple[str, ...]:
        """UUIDs in the pod's annotation."""
        return () if self.pod is None else self.pod.assigned


def listed(names: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def cut(text: str) -> tuple[str, ...]:
    """One line of others' text, bounded."""
    return (text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}…",)


# --- until the pod is bound


def required(case: Case) -> Stage:
    """What it asks for."""
    pod, needs, source = case.pod, case.needs, "pod, by the API server"
    if pod is None or needs is None:
        text = "the API server has no such pod; what it asked for is not known any more"
        return Stage(StageName.REQUIRED, StageState.OVER, source="API server", findings=(text,))
    if isinstance(needs, RequirementsInvalid):
        lines: tuple[str, ...] = (f"cannot be read: {needs.detail()}",)
        return Stage(
            StageName.REQUIRED, StageState.MISMATCH, pod.created_at, source, findings=lines
        )
    if not needs.managed:
        lines = ("nothing of gpuwarden",)
        return Stage(
            StageName.REQUIRED, StageState.UNNEEDED, pod.created_at, source, findings=lines
        )
    return Stage(
        StageName.REQUIRED, StageState.REACHED, pod.created_at, source, findings=describe(needs)
    )


def reserved(case: Case) -> Stage:
    """What the ledger holds for it."""
    if case.parts:
        return _held(case)
    if case.ledger_unknown:
        lines = (case.ledger_unknown,)
        return Stage(StageName.RESERVED, StageState.UNKNOWN, source="ledger", findings=lines)
    state, text = _not_held(case)
    return Stage(StageName.RESERVED, state, source="ledger", findings=(text,))


_MADE_BY: Final = {
    Origin.BINDING_WEBHOOK: "by the binding webhook",
    Origin.ADMISSION: "at creation",
    Origin.KUBELET: "by kubelet's allocation",
}


def _held(case: Case) -> Stage:
    holders = [holder for _, holder in case.parts]
    lacks = keys_of(x for holder in holders for x in holder.gpus) - keys_of(case.reserved)
    states, nodes = (x.state.value for x in holders), (x.record.node for x, _ in case.parts)
    made_by = (_MADE_BY[x.origin] for x in holders)
    lines = [f"{_each(states)} on {_each(nodes)}, {_each(made_by)}"]
    if any(x.was_lost for x in holders):
        lines.append("the ledger had lost it, and it was written again for the living pod")
    shared = next((x.record for x, _ in case.parts if x.record.share is not None), None)
    if shared is not None and shared.share is not None:
        others = len(shared.holders) - 1
        lines.append(f"shared with {counted(others, 'other')} under {shared.share.entry}")
    if lacks:
        lines.append(f"no records of {listed(sorted(lacks))}")
    names = tuple(dict.fromkeys(x.reservation for x in holders))
    lines.append(f"{'reservation' if len(names) == 1 else 'reservations'} {listed(names)}")
    made = min((x.made_at for x, _ in case.parts if x.made_at), default="")
    state = StageState.MISSING if lacks else StageState.REACHED
    return Stage(
        StageName.RESERVED, state, made, "ledger", gpus=case.reserved, findings=tuple(lines)
    )


def _each(words: Iterable[str]) -> str:
    """Each once."""
    return " and ".join(dict.fromkeys(words))


def _not_held(case: Case) -> tuple[StageState, str]:
    pod = case.pod
    if case.asks_no_gpu:
        of_none = "nothing is reserved for a pod without a GPU requirement"
        of_managed = "it asks for no GPU, so nothing is reserved"
        return StageState.UNNEEDED, of_managed if case.managed else of_none
    if case.is_over:
        return StageState.OVER, "the ledger holds nothing for it"
    if pod is not None and RESERVATION_ID in pod.annotations and pod.node:
        text = "the pod carries a reservation id, and the ledger has no record of it"
        return StageState.MISSING, text
    if case.report_only:
        return StageState.UNNEEDED, "report-only: nothing is reserved"
    if pod is None or not pod.node:
        return StageState.WAITING, "nothing is reserved before it is bound"
    return _bound_without(case, pod.node)


def _bound_without(case: Case, node: str) -> tuple[StageState, str]:
    match case.mode:
        case None:
            return StageState.UNKNOWN, f"gpuwarden has no evidence of {node}, nor knows its mode"
        case NodeMode.ENV:
            return StageState.MISSING, "it is bound, and nothing was reserved for it"
        case NodeMode.PLUGIN:
            return _before_record(case)
        case NodeMode.PER_GPU | NodeMode.DRA:
            return StageState.UNNEEDED, f"nothing is reserved on a node of mode {case.mode}"


def _before_record(case: Case) -> tuple[StageState, str]:
    """Kubelet chooses, and gpuwarden records that from the node's reports."""
    if not case.has_keys:
        text = "what kubelet gave it is not recorded: admission.idKeys is not set"
        return StageState.UNNEEDED, text
    if _given_devices(case) and not _given_gpus(case):
        text = "kubelet's ids of its devices name no GPU, so none can be recorded"
        return StageState.UNKNOWN, text
    return StageState.WAITING, "recorded once two reports of the node show what kubelet gave it"


_NEVER_BOUND: Final = "it was bound to no node"


def bound(case: Case) -> Stage:
    """Where it was bound, and which GPUs it was assigned."""
    pod, source = case.pod, "pod, by the API server"
    if pod is None:
        return Stage(
            StageName.BOUND, StageState.OVER, source="API server", findings=("the pod is gone",)
        )
    if not pod.node:
        text = "" if pod.scheduled is None else pod.scheduled.text
        lines = cut(f"scheduler: {text}") if text else ()
        at = "" if pod.scheduled is None else pod.scheduled.at
        if pod.has_ended:
            lines = (_NEVER_BOUND, *_said_of_end(pod), *lines)
            return Stage(StageName.BOUND, StageState.OVER, at, source, findings=lines)
        lines = lines or ("no scheduler has said anything yet",)
        return Stage(StageName.BOUND, StageState.WAITING, at, source, findings=lines)
    wrong = tuple(_against_binding(case, pod))
    at = "" if pod.scheduled is None else pod.scheduled.at
    lines = (f"node {pod.node}", *_said_of_binding(case, pod), *_said_of_end(pod), *wrong)
    state = StageState.MISMATCH if wrong else StageState.REACHED
    judged_by = "" if case.allowed is None else str(case.allowed.refs.get("evidence", ""))
    return Stage(StageName.BOUND, state, at, source, judged_by, case.assigned, lines)


def _said_of_end(pod: PodDocument) -> Iterable[str]:
    if pod.has_ended:
        yield from cut(f"it has ended: {': '.join(filter(None, (pod.phase, pod.text)))}")
    if pod.deleted_at:
        yield f"it is being deleted, and has to be gone by {pod.deleted_at}"


def _against_binding(case: Case, pod: PodDocument) -> Iterable[str]:
    if case.is_authentic is False and not _may_lack_key(case, pod):
        yield "gpuwarden did not issue the reservation id on the pod for this pod, node and GPUs"
    if any(entry.record.node != pod.node for entry, _ in case.parts):
        yield f"it is reserved on {case.parts[0][0].record.node}"
    if case.parts and case.assigned and keys_of(case.assigned) != keys_of(case.reserved):
        yield "the GPUs on the pod are not those that the ledger holds for it"
    claimed = bool(case.parts) and not _is_of_kubelet(case)
    if claimed and RESERVATION_ID not in pod.annotations and case.mode is NodeMode.ENV:
        yield "it is bound without the reservation id"


def _may_lack_key(case: Case, pod: PodDocument) -> bool:
    """Whether nothing is wrong with an id of no key: the ledger has just what the pod says.

    A key may be removed when no pod with its ids lives. So where the pod has ended, the ledger
    need not have anything any more, but must not have anything else.
    """
    agrees = all(
        (entry.record.node, part.reservation) == (pod.node, pod.annotations.get(RESERVATION_ID))
        and keys_of(part.gpus) == keys_of(case.assigned)
        for entry, part in case.parts
    )
    if pod.has_ended and case.lacks_key:
        return agrees
    confirmed = all(part.state is HolderState.CONFIRMED for _, part in case.parts)
    return bool(case.parts) and agrees and confirmed


def _said_of_binding(case: Case, pod: PodDocument) -> Iterable[str]:
    if case.allowed is not None:
        seq, at = case.allowed.seq, case.allowed.ts
        yield f"the binding webhook allowed it at {at}, by the evidence shown here: record {seq}"
    elif case.would_refuse is not None:
        seq, codes = case.would_refuse.seq, ", ".join(case.would_refuse.codes)
        yield f"report-only: the binding webhook would have refused it with {codes}: record {seq}"
    if case.is_authentic:
        yield "gpuwarden issued its reservation id for this pod, node and GPUs"
    elif case.is_authentic is False and _may_lack_key(case, pod):
        just = "; the ledger has just this one" if case.parts else ""
        yield f"its reservation id is by no key of admission.idKeys{just}"
    was = pod.annotations.get(ATTESTATION_HASH)
    accepted = None if case.node is None else case.node.acceptance
    if was and accepted is not None and was != accepted.attestation_hash:
        yield from cut(f"the node's class was {was}, it is {accepted.attestation_hash} now")


# --- on the node
# A process on a GPU of which the pod has a MIG device counts as foreign only where it cannot
# belong to a pod that has another MIG device.

_Said = tuple[StageState, tuple[str, ...], tuple[str, ...]]
"""State, GPUs and findings."""
_Reading = Callable[[Case, Acceptance], _Said]


def kubelet(case: Case) -> Stage:
    """What kubelet gave it, and since when it runs."""
    return _from_evidence(StageName.KUBELET, case, _given)


def nvml(case: Case) -> Stage:
    """On which GPUs its processes run, and whether others do."""
    return _from_evidence(StageName.NVML, case, _used)


def _from_evidence(name: StageName, case: Case, read: _Reading) -> Stage:
    if case.node is None or case.node.acceptance is None:
        if case.pod is not None and not case.pod.node:
            text = _NEVER_BOUND if case.is_over else "it is bound to no node yet"
            return Stage(name, _unused(case), findings=(text,))
        text = "no accepted evidence of its node is known"
        if case.pod is None and case.node is None:
            text = "where it ran is not known any more"
        return Stage(name, StageState.UNKNOWN, findings=(text,))
    accepted = case.node.acceptance
    state, gpus, lines = read(case, accepted)
    standing = case.node.state(case.now_ns)
    if standing is not NodeState.ELIGIBLE:
        lines = (*lines, f"the node is {standing}: this is the last that it proved")
    return Stage(
        name,
        state,
        rfc3339(accepted.accepted_wall_ns),
        f"evidence of {case.node.name}",
        accepted.evidence_digest,
        gpus,
        lines,
    )


def _given(case: Case, accepted: Acceptance) -> _Said:
    started = () if case.pod is None else _started(case.pod)
    gpus = _given_gpus(case)
    state, text = _judged(case, gpus, is_read=accepted.allocations is not None)
    return state, gpus, (*((text,) if text else ()), *started)


def _allocations(case: Case) -> tuple[Allocation, ...]:
    """Of the node's pods, as its evidence has them."""
    accepted = _accepted(case)
    return () if accepted is None else accepted.allocations or ()


def _accepted(case: Case) -> Acceptance | None:
    return None if case.node is None else case.node.acceptance


def _given_devices(case: Case) -> list[str]:
    return given_devices(_accepted(case), case.namespace, case.name)


def _given_gpus(case: Case) -> tuple[str, ...]:
    return given_gpus(_accepted(case), case.namespace, case.name)


def _judged(case: Case, gpus: tuple[str, ...], *, is_read: bool) -> tuple[StageState, str]:
    if case.mode is NodeMode.ENV:
        if not gpus:
            return StageState.UNNEEDED, "on an env node kubelet gives no GPUs"
        if not _is_of_kubelet(case) or keys_of(gpus) - keys_of(case.reserved):
            return StageState.MISMATCH, "kubelet gave GPUs on an env node"
        state, text = _against_ledger(case, gpus)
        return state, text or "kubelet gave its GPUs before the node's mode was env"
    if not is_read:
        return StageState.UNKNOWN, "kubelet was not asked, or gave no answer"
    if not _given_devices(case):
        return _unused(case), "kubelet shows no device of it"
    return _against_ledger(case, gpus)


def _is_of_kubelet(case: Case) -> bool:
    """Whether kubelet gave all that the ledger holds for it, so on a `plugin` node.

    Such a pod keeps its GPUs when the node's mode changes.
    """
    return bool(case.parts) and all(x.origin is Origin.KUBELET for _, x in case.parts)


def _against_ledger(case: Case, gpus: tuple[str, ...]) -> tuple[StageState, str]:
    given, held = keys_of(gpus), keys_of(case.reserved)
    if not case.parts or given == held:
        return StageState.REACHED, "kubelet still shows it as given" if case.is_over else ""
    if held < given and _is_of_kubelet(case):
        later = listed([x for x in gpus if key_of(x) not in held])
        return StageState.REACHED, f"not recorded yet: {later}"
    return StageState.MISMATCH, "not the GPUs that the ledger holds for it"


def _started(pod: PodDocument) -> tuple[str, ...]:
    return (f"a container started {pod.started_at}, says kubelet",) if pod.started_at else ()


def _used(case: Case, accepted: Acceptance) -> _Said:
    failed = tuple(_failed(case, accepted))
    state, gpus, lines = _processes(case, accepted)
    return (StageState.MISMATCH if failed else state), gpus, (*failed, *lines)


def _failed(case: Case, accepted: Acceptance) -> Iterable[str]:
    """The pod's own GPUs that the node shows as lost or unhealthy, while the pod has not ended."""
    if case.is_over:
        return
    own = gpus_of_live_pod(
        case.node,
        case.namespace,
        case.name,
        reserved=case.reserved,
        assigned=case.assigned,
        is_managed=case.managed,
    )
    for gpu in accepted.gpus:
        if not devices_among(accepted, gpu.uuid, own):
            continue
        if gpu.lost is not None or gpu.unhealthy is not None:
            is_deleted = case.pod is not None and bool(case.pod.deleted_at)
            cure = DELETE if is_of_no_use(gpu) else DELETE_IF
            after = "" if is_deleted else f": {cure}"
            yield from cut(f"{ITS_GPU}{gpu.uuid} is {_trouble(gpu)}{after}")


def _trouble(gpu: GpuView) -> str:
    why = gpu.unhealthy or "" if gpu.lost is None else gpu.lost.error
    return f"{'unhealthy' if gpu.lost is None else 'lost'} ({_SERIAL.sub('', why)})"


def _own(case: Case) -> frozenset[str]:
    """By the ledger, else by the pod's word while it has not ended."""
    return keys_of(case.reserved or (() if case.is_over else case.assigned))


def _processes(case: Case, accepted: Acceptance) -> _Said:
    if accepted.processes is None:
        return StageState.UNKNOWN, (), ("the driver did not list processes",)
    processes = [GpuProcess(x.gpu, x.pid, _known_uid(case, x.pod_uid)) for x in accepted.processes]
    mine = [x for x in processes if x.pod_uid is not None and x.pod_uid == case.uid]
    gpus = tuple(dict.fromkeys(x.gpu for x in mine))
    own = _own(case)
    if case.parts and case.mode is NodeMode.PLUGIN:
        own |= keys_of(_given_gpus(case))
    wrong = []
    strange = sorted(x for x in gpus if own and not own & keys_of(accepted.with_parts(x)))
    if strange:
        wrong.append(f"it uses {listed(strange)}, which is not its own")
    foreign = [x for x in processes if _is_foreign(case, accepted, own, x)]
    wrong += [
        f"process {x.pid} of {_whose(case, x.pod_uid)} uses {x.gpu} too" for x in foreign[:LISTED]
    ]
    beside = _beside(case)
    if wrong:
        return StageState.MISMATCH, gpus, (*wrong, *beside)
    if mine:
        still = ("the pod has ended, and something of it still runs",) if case.is_over else ()
        return StageState.REACHED, gpus, (f"processes of it: {len(mine)}", *still, *beside)
    return _unused(case), (), ("no process of it", *beside)


def _known_uid(case: Case, uid: str | None) -> str | None:
    """As the API server has it: a node knows a static pod by another."""
    if uid is None or uid == case.uid:
        return uid
    if case.pod is not None and uid == case.pod.static_uid:
        return case.uid
    found = case.pod_of(uid)
    return uid if found is None or found.pod.uid is None else found.pod.uid


def _beside(case: Case) -> Iterable[str]:
    """That kubelet gave slices of its GPUs to others, who may run there."""
    own = frozenset() if case.is_over else keys_of(_given_gpus(case))
    others = {
        (x.namespace, x.pod): device_uuid(x.device)
        for x in _allocations(case)
        if _is_slice_of(own, x) and (x.namespace, x.pod) != (case.namespace, case.name)
    }
    if others:
        gpus = listed(sorted(frozenset(filter(None, others.values()))))
        yield f"kubelet gave slices of {gpus} to {counted(len(others), 'other pod')}"


def _is_slice_of(cards: frozenset[str], one: Allocation) -> bool:
    return _SLICE in one.device and key_of(device_uuid(one.device) or "") in cards


def _whose(case: Case, uid: str | None) -> str:
    """A pod, as a person can look it up."""
    if uid is None:
        return "no pod"
    found = case.pod_of(uid)
    if found is None or case.node is None or found.node != case.node.name:
        return f"pod UID {uid} (no live pod of this node)"
    return f"pod {found.pod.namespace}/{found.pod.name}"


def _is_foreign(case: Case, accepted: Acceptance, own: frozenset[str], one: GpuProcess) -> bool:
    """Whether a process of somebody else is on what the pod has, and nothing explains it."""
    cards = keys_of(accepted.with_parts(one.gpu))
    if one.pod_uid == case.uid or not cards & own:
        return False
    if one.pod_uid is None:
        return True
    if any(_holds(case, x, one.pod_uid) for x in cards):
        return False
    if _is_to_be_recorded(case, cards, one.pod_uid):
        return False
    return key_of(one.gpu) in own or not _may_be_given(case, accepted, cards - own)


def _holds(case: Case, card: str, uid: str) -> bool:
    entry = None if case.ledger is None else case.ledger.get(card)
    return entry is not None and entry.record.of_pod(uid) is not None


def _is_to_be_recorded(case: Case, cards: frozenset[str], uid: str) -> bool:
    """Whether kubelet gave a slice to a managed pod, whose record comes with the next reports."""
    found = case.pod_of(uid)
    if found is None or found.needs is None:
        return False
    of_pod = (found.pod.namespace, found.pod.name)
    return any(
        (x.namespace, x.pod) == of_pod and _is_slice_of(cards, x) for x in _allocations(case)
    )


def _may_be_given(case: Case, accepted: Acceptance, others: frozenset[str]) -> bool:
    """Whether a pod may have one of the other parts without a visible record.

    Kubelet tells pods by their names, so it cannot be said which.
    """
    if case.ledger is None or (case.mode is NodeMode.PLUGIN and accepted.allocations is None):
        return bool(others)
    given = (device_uuid(x.device) for x in _allocations(case))
    return bool(others & keys_of(x for x in given if x is not None))


def _unused(case: Case) -> StageState:
    if case.asks_no_gpu and not case.parts:
        return StageState.UNNEEDED
    return StageState.OVER if case.is_over else StageState.WAITING


def stages(case: Case) -> tuple[Stage, ...]:
    """From what the pod required to what runs on its GPUs."""
    return (required(case), reserved(case), bound(case), kubelet(case), nvml(case))
