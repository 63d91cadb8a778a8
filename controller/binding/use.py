"""Compares what nodes report of GPU use with the ledger: mismatches, unreserved use, evictions.

Pure. Must not write or evict.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain
from typing import Final

from controller.binding.request import BoundPod, BoundPods
from controller.fleet.view import Acceptance, FleetSnapshot, NodeView
from controller.ledger.occupancy import Occupancy, given_in, users_of
from controller.ledger.record import Holder, HolderState, Origin, PodRef, ShareGroup, key_of
from controller.ledger.release import GivenDevice, GivenGpu, UseReport, card_of
from controller.ledger.store import LedgerSnapshot
from controller.placement.requirements import Guarantee, Requirements, RequirementsInvalid
from controller.placement.snapshot import DeviceUse
from controller.policy import NodeMode
from gpuwarden.moment import NS_PER_S

# --- mismatches of one report
# Three sources are compared: what the ledger holds, what kubelet has given, and whose processes
# the driver reports. Unreserved use by somebody else is no mismatch of the pod that holds the
# GPU, and is reported.

_SLICE: Final = "::"
_MIG: Final = "MIG-"


class UseFaultKind(StrEnum):
    """What does not agree; a metric's label."""

    OTHER_GPU = "other_gpu"
    """A pod was given or uses a GPU that is not the one of its reservation."""
    UNFIT_GPU = "unfit_gpu"
    """Kubelet gave a pod a GPU that is not what the pod has asked for."""
    TAKEN_GPU = "taken_gpu"
    """Kubelet gave a pod a GPU that the ledger holds for another that lives."""
    SLICED_GPU = "sliced_gpu"
    """Kubelet gave a pod slices of one GPU in the place of as many GPUs."""
    GONE_GPU = "gone_gpu"
    """A pod has a GPU or MIG device that its node does not show any more: it was replaced."""
    UNRESERVED = "unreserved"
    """A managed pod runs on an `env` node without a reservation: it sees no GPU."""
    UNRESERVED_USE = "unreserved_use"
    """A GPU is given or used, and no reservation explains it."""


EVICTED_FOR: Final = frozenset(
    {UseFaultKind.OTHER_GPU, UseFaultKind.UNFIT_GPU, UseFaultKind.SLICED_GPU}
)
"""What a pod is evicted for, where the policy says so: what it has, it must not have."""


@dataclass(frozen=True, slots=True)
class UseFault:
    """One disagreement; the same one in each report that shows it."""

    kind: UseFaultKind
    node: str
    gpu: str
    """Empty where none is meant."""
    pod: PodRef | None
    """None for a process of no pod, and where nothing but the process is known of its pod: then
    `owner` is its UID."""
    owner: str = ""
    victims: tuple[PodRef, ...] = field(default=(), compare=False)
    """Other pods that hold the GPU, or a part of it, when it was found."""
    since_wall_ns: int = field(default=0, compare=False)
    """When the first of the reports that show it was accepted."""


@dataclass(frozen=True, slots=True)
class UseCase:
    """One node's report and what it is compared with."""

    node: str
    mode: NodeMode
    acceptance: Acceptance
    report: UseReport
    ledger: LedgerSnapshot
    pods: BoundPods
    fits: Callable[[BoundPod, str], bool]
    """Whether a GPU of the node is one that the pod has asked for."""


def use_faults(case: UseCase) -> frozenset[UseFault]:
    """All disagreements that the report shows."""
    at = case.acceptance.accepted_wall_ns
    return frozenset(
        replace(x, since_wall_ns=at)
        for x in chain(_given(case), _used(case), _unreserved(case), _sliced(case), _gone(case))
    )


_BEFORE_ITS_RECORD: Final = frozenset({UseFaultKind.OTHER_GPU, UseFaultKind.UNRESERVED_USE})
"""What a GPU that kubelet gives to a managed pod looks like until it has its record."""


def without_early(
    faults: Iterable[UseFault], awaited: Collection[GivenGpu]
) -> tuple[frozenset[UseFault], frozenset[UseFault]]:
    """The disagreements that count, and those that a record may end: nobody can tell yet.

    `awaited`: what the same report shows too early to be recorded (`KubeletAllocations`). The
    next report is not too early, so nothing hides behind this for longer.
    """
    found = frozenset(faults)
    early = frozenset(
        x
        for x in found
        if x.kind in _BEFORE_ITS_RECORD
        and x.pod is not None
        and GivenGpu(x.pod, x.node, x.gpu) in awaited
    )
    return found - early, early


def _given(case: UseCase) -> Iterator[UseFault]:
    for device in case.report.given or ():
        gpu = card_of(device.device)
        if gpu is None:
            continue
        holders = _holders(case, gpu)
        found = case.pods.named(device.namespace, device.pod)
        pod = found if found is not None and found.node == case.node else None
        named = [x for x in holders if _is_named(x, device)]
        if named:
            yield from _held(case, device, gpu, pod, holders)
        else:
            kind = _otherwise(pod is not None and _is_reserved(case, pod.pod))
            ref = PodRef(device.namespace, device.pod) if pod is None else pod.pod
            victims = _holding(case, case.acceptance.with_parts(gpu), ref.uid)
            yield UseFault(kind, case.node, gpu, ref, victims=victims)


def _held(
    case: UseCase, device: GivenDevice, gpu: str, pod: BoundPod | None, holders: Iterable[Holder]
) -> Iterator[UseFault]:
    if pod is None:
        return
    if pod.needs is not None and not case.fits(pod, gpu):
        yield UseFault(UseFaultKind.UNFIT_GPU, case.node, gpu, pod.pod)
    others = [x for x in holders if not _is_named(x, device)]
    if _SLICE not in device.device and any(x.state is HolderState.CONFIRMED for x in others):
        victims = tuple(_known(others))
        yield UseFault(UseFaultKind.TAKEN_GPU, case.node, gpu, pod.pod, victims=victims)


def _used(case: UseCase) -> Iterator[UseFault]:
    for gpu, users in (case.report.users or {}).items():
        cards = case.acceptance.with_parts(gpu)
        for uid in users:
            if uid is None:
                victims = _holding(case, cards, None)
                kind = UseFaultKind.UNRESERVED_USE
                yield UseFault(kind, case.node, gpu, None, victims=victims)
            elif not any(_holds(case, card, uid) for card in cards):
                yield from _user(case, gpu, cards, uid)


def _user(case: UseCase, gpu: str, cards: tuple[str, ...], uid: str) -> Iterator[UseFault]:
    if case.mode is NodeMode.PLUGIN and case.report.given is None:
        return  # kubelet may have given it
    pod, victims = case.pods.with_uid(uid), _holding(case, cards, uid)
    if pod is None or pod.node != case.node:  # a node says nothing about pods of others
        kind = UseFaultKind.UNRESERVED_USE
        yield UseFault(kind, case.node, gpu, None, uid, victims=victims)
    elif not _was_given(case, cards, pod.pod):  # else it was said there
        kind = _otherwise(bool(case.ledger.parts_of(uid)))
        yield UseFault(kind, case.node, gpu, pod.pod, victims=victims)


def _unreserved(case: UseCase) -> Iterator[UseFault]:
    if case.mode is not NodeMode.ENV:
        return
    for pod in case.pods.managed(case.node):
        asks = isinstance(pod.needs, RequirementsInvalid) or (pod.needs and pod.needs.count)
        if asks and not case.ledger.parts_of(pod.pod.uid or ""):
            yield UseFault(UseFaultKind.UNRESERVED, case.node, "", pod.pod)


def _sliced(case: UseCase) -> Iterator[UseFault]:
    """A GPU that is given several times counts once: so many programs do not get more of it.

    Who accepts any node that has enough GPUs has accepted that.
    """
    given: dict[tuple[str, str], list[str]] = {}
    for device in case.report.given or ():
        gpu = card_of(device.device)
        if gpu is not None:
            given.setdefault((device.namespace, device.pod), []).append(gpu)
    for (namespace, name), gpus in given.items():
        pod = case.pods.named(namespace, name)
        needs = None if pod is None or pod.node != case.node else pod.needs
        if pod is None or not isinstance(needs, Requirements):
            continue
        if needs.accepts is not Guarantee.NODE and len({*gpus}) < needs.count <= len(gpus):
            for gpu, times in Counter(gpus).items():
                if times > 1:
                    yield UseFault(UseFaultKind.SLICED_GPU, case.node, gpu, pod.pod)


def _gone(case: UseCase) -> Iterator[UseFault]:
    gpus = case.acceptance.gpus
    shown = {key_of(x) for gpu in gpus for x in case.acceptance.with_parts(gpu.uuid)}
    is_any_lost = any(gpu.lost is not None for gpu in gpus)  # then its parts may be there still
    for pod in case.pods.managed(case.node):
        for entry, _ in case.ledger.parts_of(pod.pod.uid or ""):
            gpu = entry.record.gpu
            may_be_lost = is_any_lost and gpu.startswith(_MIG)
            is_here = entry.record.node == case.node
            if is_here and not may_be_lost and key_of(gpu) not in shown:
                yield UseFault(UseFaultKind.GONE_GPU, case.node, gpu, pod.pod)


def _is_reserved(case: UseCase, pod: PodRef) -> bool:
    """Whether it has a reservation by a claim; a record of kubelet's allocation does not count."""
    parts = case.ledger.parts_of(pod.uid or "")
    return any(x.origin is not Origin.KUBELET for _, x in parts)


def _otherwise(has_others: bool) -> UseFaultKind:  # noqa: FBT001 - it is the question
    """What it is that a pod has a GPU which is not held for it, if others are or none is."""
    return UseFaultKind.OTHER_GPU if has_others else UseFaultKind.UNRESERVED_USE


def _holds(case: UseCase, gpu: str, uid: str) -> bool:
    entry = case.ledger.get(gpu)
    return entry is not None and entry.record.of_pod(uid) is not None


def _holding(case: UseCase, cards: Iterable[str], user: str | None) -> tuple[PodRef, ...]:
    """The pods that hold any of them, besides the one of a UID."""
    holders = [x for card in cards for x in _holders(case, card)]
    return tuple(x for x in _known(holders) if x.uid != user)


def _holders(case: UseCase, card: str) -> tuple[Holder, ...]:
    """Those on this node: what a node reports of another's GPU concerns nobody there."""
    entry = case.ledger.get(card)
    if entry is None or entry.record.node != case.node:
        return ()
    return entry.record.holders


def _known(holders: Iterable[Holder]) -> Iterator[PodRef]:
    """Those that are there by now, each once."""
    yield from dict.fromkeys(x.pod for x in holders if x.pod.name and x.pod.uid)


def _was_given(case: UseCase, cards: tuple[str, ...], pod: PodRef) -> bool:
    name = (pod.namespace, pod.name)
    return any(
        (x.namespace, x.pod) == name and card_of(x.device) in cards for x in case.report.given or ()
    )


def _is_named(holder: Holder, device: GivenDevice) -> bool:
    return (holder.pod.namespace, holder.pod.name) == (device.namespace, device.pod)


# --- what has no record yet
# On a `plugin` node a managed pod gets its GPU from kubelet, and the record follows with the second
# report. Until then its use is as it should be.

ToRecord = Callable[[NodeView], Mapping[str, frozenset[str]]]
"""As `allocations_to_record` says of a node."""


def nothing_to_record(_node: NodeView) -> Mapping[str, frozenset[str]]:
    """Where no allocation of kubelet is recorded."""
    return {}


def allocations_to_record(
    node: NodeView, *, pods: BoundPods, unexplained: Collection[str]
) -> Mapping[str, frozenset[str]]:
    """`key_of` what kubelet gave to managed pods of a `plugin` node, and the UIDs of these pods.

    `unexplained`: `key_of` the GPUs whose use is reported as unreserved, and so has got no record.
    """
    found: dict[str, frozenset[str]] = {}
    if node.mode is not NodeMode.PLUGIN or node.acceptance is None:
        return found
    for device in node.acceptance.allocations or ():
        gpu = card_of(device.device)
        if gpu is None or key_of(gpu) in unexplained:
            continue
        pod = pods.named(device.namespace, device.pod)
        if pod is not None and pod.node == node.name and pod.needs is not None:
            uids = found.get(key_of(gpu), frozenset())
            found[key_of(gpu)] = uids | {pod.pod.uid or ""}
    return found


# --- mismatches over time
# The sources of one report are read one after the other, and the caches are a moment old. So a
# mismatch counts from the second report in a row, and ends with the first that does not show it.

ENOUGH: Final = 2
MAX_PER_NODE: Final = 256
"""Disagreements of one node that are remembered; a node has some hundred pods at most."""


@dataclass(frozen=True, slots=True)
class FaultChanges:
    """What a report has changed."""

    begun: tuple[UseFault, ...]
    ended: tuple[UseFault, ...]
    resumed: tuple[UseFault, ...] = ()
    """What was remembered and is still there."""

    def __bool__(self) -> bool:
        return bool(self.begun or self.ended or self.resumed)


Identity = tuple[str, ...]


class FaultWatch:
    """One per process."""

    def __init__(self) -> None:
        self._logged: dict[str, dict[Identity, UseFault]] = {}
        """By node that no whole report has been about yet: what existed at the last end."""
        self._seen: dict[str, dict[UseFault, int]] = {}
        """By node: in how many reports in a row."""
        self._counts: Counter[UseFaultKind] = Counter()

    def remember(self, faults: Iterable[UseFault]) -> None:
        """What existed when this replica ended; once, before the first report.

        What the first report still shows has gone on: it began when it began.
        """
        for fault in faults:
            self._logged.setdefault(fault.node, {})[_identity(fault)] = fault

    def reported(
        self,
        node: str,
        faults: Iterable[UseFault],
        *,
        early: Collection[UseFault] = (),
        whole: bool = True,
    ) -> FaultChanges:
        """A node's new report; one that is not whole ends nothing.

        `early`: what nobody can tell yet neither counts nor ends.
        """
        counted, doubtful = sorted(set(faults), key=_order), sorted(early, key=_order)
        shown = [*counted, *doubtful][:MAX_PER_NODE]
        remembered = self._from_before(node, shown, whole=whole)
        before = self._seen.pop(node, {}) | remembered
        since_ns = {x: x.since_wall_ns for x in before}
        kept = [replace(x, since_wall_ns=since_ns.get(x, x.since_wall_ns)) for x in shown]
        now = {x: min(before.get(x, 0) + 1, ENOUGH) for x in kept if x not in early}
        now |= {x: before[x] for x in kept if x in early and x in before}
        if not whole:
            now = {**before, **now}
        if now:
            self._seen[node] = now
        begun = [x for x, count in now.items() if count == ENOUGH > before.get(x, 0)]
        ended = [x for x, count in before.items() if count == ENOUGH and x not in now]
        self._counts.update(x.kind for x in begun)
        self._counts.subtract(x.kind for x in ended)
        resumed = [x for x in remembered if x in now]
        return FaultChanges(tuple(begun), tuple(ended), tuple(resumed))

    def _from_before(
        self, node: str, shown: Iterable[UseFault], *, whole: bool
    ) -> dict[UseFault, int]:
        """What was remembered of the node, and is shown or over."""
        logged = self._logged.pop(node, {})
        found = {}
        for fault in shown:
            known = logged.pop(_identity(fault), None)
            if known is not None:
                found[replace(fault, since_wall_ns=known.since_wall_ns)] = ENOUGH
        if whole:
            found |= dict.fromkeys(logged.values(), ENOUGH)
        else:
            self._logged[node] = logged
        self._counts.update(x.kind for x in found)
        return found

    def without_report(self, node: str, pods: BoundPods) -> FaultChanges:
        """The node is silent: a fault of a pod that was known and is gone has ended."""
        seen = self._seen.get(node, {})
        over = {x: count for x, count in seen.items() if _has_lost_its_pod(x, pods)}
        for fault in over:
            del seen[fault]
        ended = tuple(x for x, count in over.items() if count == ENOUGH)
        self._counts.subtract(x.kind for x in ended)
        return FaultChanges((), ended)

    def standing(self) -> Iterator[UseFault]:
        """All that exist."""
        for faults in self._seen.values():
            yield from (x for x, count in faults.items() if count == ENOUGH)

    def counts(self) -> Mapping[UseFaultKind, int]:
        """How many exist of each kind."""
        return {kind: count for kind, count in self._counts.items() if count}


def _has_lost_its_pod(fault: UseFault, pods: BoundPods) -> bool:
    """False where no pod was ever known: then nobody can tell."""
    pod = fault.pod
    if pod is None or pod.name is None or pod.uid is None:
        return False
    found = pods.named(pod.namespace, pod.name)
    return found is None or found.pod.uid != pod.uid


def _order(fault: UseFault) -> tuple[str, str, str, str, str]:
    pod = fault.pod
    return (
        fault.kind.value,
        fault.gpu,
        "" if pod is None else pod.namespace,
        "" if pod is None else pod.name or "",
        fault.owner,
    )


def _identity(fault: UseFault) -> Identity:
    """What the audit log has of a fault to know it by; the controlling owner is not there."""
    uid = fault.owner if fault.pod is None else fault.pod.uid or ""
    return (*_order(fault)[:-1], uid)


# --- reports
# Only newer accepted evidence makes a newer report: later refusals change nothing of what was
# reported.

SETTLES_NS: Final = 60 * NS_PER_S
"""A kubelet that names no device at all may have just started: it names none until it has read
its own state. So that counts once it has said so for this long."""


class UseReports:
    """One per process; a report is made once per evidence."""

    def __init__(self, fleet: Callable[[], FleetSnapshot]) -> None:
        self._fleet = fleet
        self._made: dict[str, tuple[Acceptance, UseReport]] = {}
        self._silent_since_ns: dict[str, int] = {}
        """By node: when kubelet was first asked of the reports in a row without a device."""

    def of(self, node: str) -> UseReport | None:
        """The node's last; None where it was never accepted."""
        view = self._fleet().nodes.get(node)
        if view is None or view.acceptance is None:
            self._made.pop(node, None)
            self._silent_since_ns.pop(node, None)
            return None
        found = self._made.get(node)
        if found is None or found[0] is not view.acceptance:
            report = self._report(node, view.acceptance, view.mode)
            found = self._made[node] = (view.acceptance, report)
        return found[1]

    def heard(self, node: str, now_ns: int) -> UseReport | None:
        """The node's last, while its lease lasts at `now_ns` (CLOCK_BOOTTIME)."""
        report, view = self.of(node), self._fleet().nodes.get(node)
        acceptance = None if view is None else view.acceptance
        if report is None or acceptance is None or now_ns >= acceptance.fresh_until_ns:
            return None
        return report

    def _report(self, node: str, acceptance: Acceptance, mode: NodeMode) -> UseReport:
        asked_ns = acceptance.challenge_issued_ns
        return UseReport(
            acceptance.boot_id,
            asked_ns,
            users_of(acceptance),
            self._given(node, acceptance, mode),
            None if acceptance.pods_unread else frozenset(acceptance.pods or ()),
            acceptance.evidence_digest,
        )

    def _given(
        self, node: str, acceptance: Acceptance, mode: NodeMode
    ) -> frozenset[GivenDevice] | None:
        allocations = acceptance.allocations
        if mode is NodeMode.ENV:  # kubelet has no GPUs there to give
            return given_in(acceptance)
        if allocations is None:
            return None
        if allocations:
            self._silent_since_ns.pop(node, None)
            return given_in(acceptance)
        asked_ns = acceptance.challenge_issued_ns
        since_ns = self._silent_since_ns.setdefault(node, asked_ns)
        return frozenset() if asked_ns - since_ns >= SETTLES_NS else None


# --- evictions
# Each pod is evicted once. A refused eviction (a disruption budget, a server that is away) is
# tried again after a while, for as long as the mismatch exists.

AGAIN_NS: Final = 30 * NS_PER_S
AT_ONCE: Final = 4
"""Evictions of one round: a mistake that concerns everybody must not empty a cluster at once."""


class Evictions:
    """One per process."""

    def __init__(self) -> None:
        self._again_ns: dict[str, int | None] = {}
        """By pod UID: when to ask again; None where it was done."""

    def due(self, standing: Iterable[UseFault], now_ns: int, pods: BoundPods) -> tuple[PodRef, ...]:
        """Pods to be evicted now; of a node's reports, only those that are bound to it."""
        found = {
            x.pod.uid: x.pod
            for x in standing
            if x.kind in EVICTED_FOR
            and x.pod is not None
            and x.pod.uid is not None
            and _is_on(x.node, x.pod, pods)
        }
        self._again_ns = {uid: at for uid, at in self._again_ns.items() if uid in found}
        due = [pod for uid, pod in sorted(found.items()) if self._is_due(uid, now_ns)]
        return tuple(due[:AT_ONCE])

    def asked(self, pod: PodRef, *, done: bool, now_ns: int) -> None:
        """What became of one."""
        self._again_ns[pod.uid or ""] = None if done else now_ns + AGAIN_NS

    def _is_due(self, uid: str, now_ns: int) -> bool:
        again_ns = self._again_ns.get(uid, now_ns)
        return again_ns is not None and again_ns <= now_ns


def _is_on(node: str, pod: PodRef, pods: BoundPods) -> bool:
    found = pods.named(pod.namespace, pod.name or "")
    return found is not None and (found.node, found.pod.uid) == (node, pod.uid)


# --- what /filter counts as used


class LedgerUse:
    """What GpuUse asks for; the same answer is the same object while the ledger is the same."""

    def __init__(self, snapshot: Callable[[], LedgerSnapshot]) -> None:
        self._snapshot = snapshot
        self._occupancy = Occupancy(LedgerSnapshot())
        self._use = DeviceUse()

    def use(self, pod_uid: str | None, share: ShareGroup | None) -> DeviceUse:
        """As a pod sees it: its own attempts do not count, nor what its share group holds."""
        snapshot = self._snapshot()
        if snapshot.entries is not self._occupancy.snapshot.entries:
            self._occupancy = self._occupancy.then(snapshot)
            self._use = DeviceUse(
                self._occupancy.busy(),
                claimed=self._occupancy.claimed(),
                parts=snapshot.parts_on,
                holders=self._occupancy.holders(),
            )
        busy = self._occupancy.busy_for(pod_uid, share)
        if busy is self._use.busy:
            return self._use
        without_group = self._occupancy.busy_for(pod_uid)
        own = self._use.busy - without_group
        return replace(self._use, busy=busy, shared=without_group - busy, own=own)
