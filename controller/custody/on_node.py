"""The stations on the node: what kubelet gave, and what runs on the GPUs by NVML. Pure.

Both are words of the node's last accepted evidence, whose digest stands beside them. Where they
do not agree with the stations before it is said here; a process on a GPU of which the pod has a
part is a stranger's only where it can be nobody's who has another part.
"""

from collections.abc import Callable

from controller.custody.pod_document import PodDocument
from controller.custody.station import LISTED, Case, Name, State, Station, keys_of, listed
from controller.fleet.view import Acceptance, NodeMode, NodeState
from controller.ledger.record import key_of
from gpuwarden.audit.record import format_timestamp
from gpuwarden.evidence.model import GpuProcess
from gpuwarden.evidence.use_rules import device_uuid

_Said = tuple[State, tuple[str, ...], tuple[str, ...]]
"""State, GPUs and findings."""
_Reading = Callable[[Case, Acceptance], _Said]


def kubelet(case: Case) -> Station:
    """What kubelet gave it, and since when it runs."""
    return _from_evidence(Name.KUBELET, case, _given)


def nvml(case: Case) -> Station:
    """On which GPUs its processes run, and whether others do."""
    return _from_evidence(Name.NVML, case, _used)


def _from_evidence(name: Name, case: Case, read: _Reading) -> Station:
    if case.node is None or case.node.acceptance is None:
        if case.pod is not None and not case.pod.node and not case.pod.has_ended:
            return Station(name, State.WAITING, findings=("it is bound to no node yet",))
        text = "no accepted evidence of its node is known"
        return Station(name, State.UNKNOWN, findings=(text,))
    accepted = case.node.acceptance
    state, gpus, lines = read(case, accepted)
    standing = case.node.state(case.now_ns)
    if standing is not NodeState.ELIGIBLE:
        lines = (*lines, f"the node is {standing}: this is the last that it proved")
    return Station(
        name,
        state,
        format_timestamp(accepted.accepted_wall_ns),
        f"evidence of {case.node.name}",
        accepted.evidence_digest,
        gpus,
        lines,
    )


def _given(case: Case, accepted: Acceptance) -> _Said:
    started = () if case.pod is None else _started(case.pod)
    of_pod = (case.namespace, case.name)
    found = accepted.allocations
    devices = [x.device for x in found or () if (x.namespace, x.pod) == of_pod]
    gpus = tuple(dict.fromkeys(uuid for x in devices if (uuid := device_uuid(x)) is not None))
    state, text = _judged(case, devices, gpus, is_read=found is not None)
    return state, gpus, (*((text,) if text else ()), *started)


def _judged(
    case: Case, devices: list[str], gpus: tuple[str, ...], *, is_read: bool
) -> tuple[State, str]:
    if case.mode is NodeMode.ENV:
        if gpus:
            return State.MISMATCH, "kubelet gave GPUs on an env node"
        return State.UNNEEDED, "on an env node kubelet gives no GPUs"
    if not is_read:
        return State.UNKNOWN, "kubelet was not asked, or gave no answer"
    if not devices:
        return _unused(case), "kubelet shows no device of it"
    if case.parts and keys_of(gpus) != keys_of(case.reserved):
        return State.MISMATCH, "not the GPUs that the ledger holds for it"
    return State.REACHED, ""


def _started(pod: PodDocument) -> tuple[str, ...]:
    return (f"a container started {pod.started_at}, says kubelet",) if pod.started_at else ()


def _used(case: Case, accepted: Acceptance) -> _Said:
    if accepted.processes is None:
        return State.UNKNOWN, (), ("the driver did not list processes",)
    mine = [x for x in accepted.processes if x.pod_uid is not None and x.pod_uid == case.uid]
    gpus = tuple(dict.fromkeys(x.gpu for x in mine))
    own = keys_of(case.reserved or (() if case.is_over else case.told))
    wrong = []
    strange = sorted(x for x in gpus if own and not own & keys_of(accepted.with_parts(x)))
    if strange:
        wrong.append(f"it uses {listed(strange)}, which is not its own")
    foreign = [x for x in accepted.processes if _is_foreign(case, accepted, own, x)]
    wrong += [
        f"process {x.pid} of {f'pod {x.pod_uid}' if x.pod_uid else 'no pod'} uses {x.gpu} too"
        for x in foreign[:LISTED]
    ]
    if wrong:
        return State.MISMATCH, gpus, tuple(wrong)
    if mine:
        still = ("the pod has ended, and something of it still runs",) if case.is_over else ()
        return State.REACHED, gpus, (f"processes of it: {len(mine)}", *still)
    return _unused(case), (), ("no process of it",)


def _is_foreign(case: Case, accepted: Acceptance, own: frozenset[str], one: GpuProcess) -> bool:
    """Whether a process of somebody else is on what the pod has, and nothing explains it."""
    cards = keys_of(accepted.with_parts(one.gpu))
    if one.pod_uid == case.uid or not cards & own:
        return False
    if one.pod_uid is None:
        return True
    if any(_holds(case, x, one.pod_uid) for x in cards):
        return False
    return key_of(one.gpu) in own or not _may_be_given(case, accepted, cards - own)


def _holds(case: Case, card: str, uid: str) -> bool:
    entry = None if case.ledger is None else case.ledger.get(card)
    return entry is not None and entry.record.of_pod(uid) is not None


def _may_be_given(case: Case, accepted: Acceptance, others: frozenset[str]) -> bool:
    """Whether a pod may have one of the other parts without a record that we can see.

    Kubelet tells pods by their names, so it cannot be said which.
    """
    if case.ledger is None or (case.mode is NodeMode.PLUGIN and accepted.allocations is None):
        return bool(others)
    given = (device_uuid(x.device) for x in accepted.allocations or ())
    return bool(others & keys_of(x for x in given if x is not None))


def _unused(case: Case) -> State:
    if case.is_over:
        return State.OVER
    return State.WAITING if case.guarded or case.parts else State.UNNEEDED
