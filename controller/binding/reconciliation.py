"""Decides the next steps of reservations from what a replica knows now.

Each replica decides by itself; the store accepts the first of several equal writes. Pure. Must not
write or ask anybody.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, assert_never

from controller.binding.asked_rounds import AwaitedReport
from controller.binding.records import ReservationChange
from controller.binding.request import BoundPods
from controller.fleet.directory import DirectorySnapshot
from controller.fleet.view import Acceptance
from controller.ledger.attempt import (
    DEFAULT_LIMITS,
    AttemptLimits,
    AttemptWatch,
    Move,
    Requeue,
    after_requeue,
    attempt_step,
    has_run_out,
    move_of_part,
    watch_attempt,
)
from controller.ledger.record import (
    GpuRecord,
    Holder,
    HolderState,
    Origin,
    PodGone,
    PodRef,
    PodSeen,
    PodSight,
    is_over,
)
from controller.ledger.release import (
    DEFAULT_GRACE_NS,
    GivenGpu,
    NodeGone,
    ReleaseWatch,
    UseReport,
    after_report,
    card_of,
    end_step,
    has_successor,
    release_step,
    watch_release,
)
from controller.ledger.store import Entry, LedgerSnapshot
from gpuwarden.moment import NS_PER_S

# --- pods that are not bound as the ledger has it
# Bound is final for a pod. A pod that was confirmed and is found unbound, or bound under another
# reservation, was rolled back together with the API server. Its earlier containers may run on, so
# its holder is released like that of a pod that has gone. The cache may lag and proves nothing:
# the pod is requeued first, which also makes every older Binding of it fail.

APART_NS: Final = 15 * NS_PER_S
"""A cache that lags shows a confirmed pod unbound for a moment; only later its pod is requeued."""


class Apart:
    """One per process, by reservation."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Holder, int]] = {}
        """Seen apart in the cache, and since when."""
        self._proven: set[str] = set()

    def sight(self, holder: Holder, sight: PodSight, now_ns: int) -> PodSight:
        """What is known of the pod as this holder: gone, where it has proven to be apart."""
        if not _is_apart(holder.reservation, sight):
            self._seen.pop(holder.reservation, None)
            self._proven.discard(holder.reservation)
            return sight
        if holder.reservation in self._proven:
            return PodGone()
        self._seen.setdefault(holder.reservation, (holder, now_ns))
        return sight

    def requeued(self, reservation: str, answer: PodSeen | PodGone) -> None:
        """Take the API server's answer to a requeue."""
        if reservation in self._seen and _is_apart(reservation, answer):
            self._proven.add(reservation)

    def due(self, snapshot: LedgerSnapshot, now_ns: int) -> Iterator[Holder]:
        """Whose pods are to be requeued now; each again after as long, until it is answered."""
        self._seen = {k: x for k, x in self._seen.items() if k in snapshot.by_reservation}
        self._proven &= self._seen.keys()
        for reservation, (holder, since_ns) in self._seen.items():
            if reservation not in self._proven and now_ns - since_ns >= APART_NS:
                self._seen[reservation] = (holder, now_ns)
                yield holder


def _is_apart(reservation: str, sight: PodSight) -> bool:
    """A pod that waits may have its reservation early; one that kubelet gave its GPUs has none."""
    if not isinstance(sight, PodSeen) or is_over(sight):
        return False
    return sight.reservation != reservation and (not sight.node or sight.reservation is not None)


# --- the next steps
# Attempts are confirmed, revoked or expired. Holders whose pods have ended are released once
# their nodes show it.


@dataclass(frozen=True, slots=True)
class Around:
    """The world as this replica knows it now."""

    snapshot: LedgerSnapshot
    sight: Callable[[PodRef], PodSight]
    report: Callable[[str], UseReport | None]
    """The last report of a node."""
    gone: Callable[[str], NodeGone | None]
    now_ns: int


@dataclass(frozen=True, slots=True)
class LookFor:
    """Ask the API server itself about a pod that the cache lacks."""

    pod: PodRef


@dataclass(frozen=True, slots=True)
class RequeuePod:
    """Requeue the pod of an attempt, and pass the answer to `Followup.requeued`."""

    reservation: str
    pod: PodRef


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Have the scheduler try the pod again: a change of the pod does that, and of no other."""

    pod: PodRef


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Write each successor by compare-and-set; `change` is what that means."""

    entries: tuple[tuple[Entry, GpuRecord], ...]
    change: ReservationChange
    ended_ns: int | None = None
    """Of a claim that its node has shown to be over: when its pod was first known here to have
    ended."""


IN_TURN: Final = 512
"""Records that are looked at without a cause in one round."""
Action = LookFor | RequeuePod | TryAgain | Rewrite


class Followup:
    """One per process."""

    def __init__(
        self,
        limits: AttemptLimits = DEFAULT_LIMITS,
        grace_ns: int = DEFAULT_GRACE_NS,
        *,
        in_turn: int = IN_TURN,
    ) -> None:
        self._limits = limits
        self._grace_ns = grace_ns
        self._in_turn = in_turn
        self._turn = 0
        self._known = LedgerSnapshot()
        self._open: set[str] = set()
        """Keys of records with an attempt, or with a holder that is being released."""
        self._attempts: dict[str, AttemptWatch] = {}
        """By reservation."""
        self._releases: dict[tuple[str, str], ReleaseWatch] = {}
        """By GPU and reservation."""
        self.releasing_nodes: frozenset[str] = frozenset()
        """Nodes with a holder that is being released: which pods run there matters."""
        self.run_out: frozenset[PodRef] = frozenset()
        """Pods of which an attempt has run out since the last steps, or has still."""
        self.awaited: Mapping[str, AwaitedReport] = {}
        """By node: what its next report is awaited for."""
        self._apart = Apart()

    def requeued(self, reservation: str, answer: PodSeen | PodGone, asked_ns: int) -> None:
        """Take the answer to a requeue that was asked for at `asked_ns`."""
        watch = self._attempts.get(reservation)
        if watch is not None:
            self._attempts[reservation] = after_requeue(watch, answer, asked_ns)
        self._apart.requeued(reservation, answer)

    def steps(
        self, around: Around, pods: Collection[str] = (), *, in_turn: bool = True
    ) -> tuple[Action, ...]:
        """What is to be done now.

        Looked at are all attempts and all that is being released, what `pods` (UIDs) hold, and
        `in_turn` some more confirmed ones.
        """
        open_attempts: dict[str, list[Entry]] = {}
        releasing: dict[tuple[str, str], str] = {}
        moves: dict[tuple[str, Move], list[Entry]] = {}
        looks: dict[str, LookFor] = {}
        now_ns = around.now_ns
        for entry in self._of_interest(around.snapshot, pods, self._in_turn if in_turn else 0):
            for holder in entry.record.holders:
                match holder.state:
                    case HolderState.PROPOSED:
                        open_attempts.setdefault(holder.reservation, []).append(entry)
                        continue
                    case HolderState.CONFIRMED:
                        sight = self._apart.sight(holder, _sight(around, holder.pod, looks), now_ns)
                        move = end_step(holder, sight, around.gone(entry.record.node))
                    case HolderState.RELEASING:
                        releasing[entry.record.key, holder.reservation] = entry.record.node
                        sight = self._apart.sight(holder, _sight(around, holder.pod, looks), now_ns)
                        move = self._releasing(around, entry, holder, sight)
                    case HolderState.RELEASED | HolderState.EXPIRED | HolderState.REVOKED:
                        continue
                    case _:
                        assert_never(holder.state)
                if move is not None:
                    moves.setdefault((holder.reservation, move), []).append(entry)
        gone = [x for k, x in self._attempts.items() if k not in open_attempts]
        self._attempts = {k: x for k, x in self._attempts.items() if k in open_attempts}
        self.run_out = frozenset(x.parts[0].pod for x in gone if self._has_run_out(around, x))
        self._releases = {k: x for k, x in self._releases.items() if k in releasing}
        self.releasing_nodes = frozenset(releasing.values())
        self.awaited = self._awaited(around, releasing)
        requeues = [
            *self._proposed(around, open_attempts, moves, looks),
            *(RequeuePod(x.reservation, x.pod) for x in self._apart.due(around.snapshot, now_ns)),
        ]
        rewrites = (
            _rewrite(entries, reservation, move, self._releases)
            for (reservation, move), entries in moves.items()
        )
        return (*looks.values(), *requeues, *rewrites)

    def _of_interest(
        self, snapshot: LedgerSnapshot, pods: Collection[str], in_turn: int
    ) -> Iterable[Entry]:
        entries = snapshot.entries
        for key in entries.differences(self._known.entries):
            entry = entries.get(key)
            if entry is not None and any(_is_open(x) for x in entry.record.holders):
                self._open.add(key)
            else:
                self._open.discard(key)
        self._known = snapshot
        begin = self._turn if self._turn < len(entries) else 0
        self._turn = begin + in_turn
        keys = {
            *self._open,
            *(key for uid in pods for key in snapshot.by_pod.get(uid, ())),
            *islice(entries, begin, self._turn),
        }
        return [entries[key] for key in sorted(keys)]

    def _proposed(
        self,
        around: Around,
        attempts: dict[str, list[Entry]],
        moves: dict[tuple[str, Move], list[Entry]],
        looks: dict[str, LookFor],
    ) -> Iterator[RequeuePod]:
        for reservation, entries in attempts.items():
            parts = tuple(_part(entry, reservation) for entry in entries)
            watch = watch_attempt(self._attempts.get(reservation), parts, around.now_ns)
            self._attempts[reservation] = watch
            pod = parts[0].pod
            sight = _sight_of_attempt(around, parts[0], looks)
            step = attempt_step(watch, entries[0].record.node, sight, around.now_ns, self._limits)
            if has_run_out(watch, step, sight, around.now_ns, self._limits):
                self.run_out |= {pod}
            match step:
                case Requeue():
                    yield RequeuePod(reservation, pod)
                case Move():
                    for entry, part in zip(entries, parts, strict=True):
                        move = move_of_part(step, part)
                        moves.setdefault((reservation, move), []).append(entry)

    def _has_run_out(self, around: Around, watch: AttemptWatch) -> bool:
        """Of an attempt that is gone."""
        pod = watch.parts[0].pod
        return has_run_out(watch, None, around.sight(pod), around.now_ns, self._limits)

    def _releasing(
        self, around: Around, entry: Entry, holder: Holder, sight: PodSight
    ) -> Move | None:
        record, key = entry.record, (entry.record.key, holder.reservation)
        watch = watch_release(self._releases.get(key), sight, around.now_ns)
        report = around.report(record.node)
        if watch is not None and report is not None:
            succeeded = has_successor(record, holder)
            watch = after_report(watch, holder, record.gpu, report, succeeded=succeeded)
        if watch is None:
            self._releases.pop(key, None)
        else:
            self._releases[key] = watch
        last_ns = 0 if report is None else report.asked_ns
        gone = around.gone(record.node)
        return release_step(watch, gone, last_ns, around.now_ns, self._grace_ns)

    def _awaited(
        self, around: Around, releasing: Mapping[tuple[str, str], str]
    ) -> Mapping[str, AwaitedReport]:
        """Of the nodes that have not shown yet that nothing of an ended pod is left."""
        waiting: dict[str, list[ReleaseWatch]] = {}
        for key, node in releasing.items():
            watch = self._releases.get(key)
            if watch is not None and not watch.is_shown:
                waiting.setdefault(node, []).append(watch)
        return {node: _awaited_of(around.report(node), x) for node, x in waiting.items()}


def _awaited_of(report: UseReport | None, watches: Collection[ReleaseWatch]) -> AwaitedReport:
    return AwaitedReport(
        since_ns=max(x.since_ns for x in watches),
        heard_ns=0 if report is None else report.asked_ns,
        is_half_shown=any(x.quiet for x in watches),
    )


def _is_open(holder: Holder) -> bool:
    return holder.state is not HolderState.CONFIRMED


def _sight(around: Around, pod: PodRef, looks: dict[str, LookFor]) -> PodSight:
    if pod.uid is None:
        return None
    sight = around.sight(pod)
    if sight is None:
        looks[pod.uid] = LookFor(pod)
    return sight


def _sight_of_attempt(around: Around, part: Holder, looks: dict[str, LookFor]) -> PodSight:
    """Of a pod that is being created nobody asks whether it is there: it may not be yet."""
    return _sight(around, part.pod, {} if part.origin is Origin.ADMISSION else looks)


def _part(entry: Entry, reservation: str) -> Holder:
    return next(x for x in entry.record.holders if x.reservation == reservation)


def _rewrite(
    entries: list[Entry],
    reservation: str,
    move: Move,
    releases: Mapping[tuple[str, str], ReleaseWatch],
) -> Rewrite:
    first = entries[0].record
    change = ReservationChange(
        _part(entries[0], reservation).pod,
        reservation,
        first.node,
        tuple(x.record.gpu for x in entries),
        move.to,
        move.cause,
        evidence=move.evidence,
    )
    successors = tuple((x, x.record.moved(reservation, move.to)) for x in entries)
    watch = releases.get((first.key, reservation))
    return Rewrite(successors, change, _ended_ns(first.holder(reservation), watch))


def _ended_ns(holder: Holder | None, watch: ReleaseWatch | None) -> int | None:
    """Since when somebody may have waited for the GPU.

    Kubelet gives its GPUs out by its own count, and those of a deleted node nobody can have.
    """
    is_claim = holder is not None and holder.is_claim
    return watch.since_ns if is_claim and watch is not None and watch.is_shown else None


# --- nodes that were deleted
# A node counts as gone only while a cache of the nodes that is not too old lacks it. One look at
# an older cache, and the time begins again.


class AbsentNodes:
    """One per process."""

    def __init__(
        self, directory: Callable[[], DirectorySnapshot], boottime_ns: Callable[[], int]
    ) -> None:
        self._directory = directory
        self._boottime_ns = boottime_ns
        self._since_ns: dict[str, int] = {}

    def gone(self, node: str) -> NodeGone | None:
        """Since when the node is proven to be gone."""
        directory, now_ns = self._directory(), self._boottime_ns()
        if node in directory.nodes or now_ns >= directory.fresh_until_ns:
            self._since_ns.pop(node, None)
            return None
        return NodeGone(self._since_ns.setdefault(node, now_ns))


# --- kubelet's allocations to record
# A report names pods. It counts for a pod only if it was asked for after this replica knew that
# the pod has the name. So two reports are needed, the first of which may still be about an
# earlier pod.


@dataclass(frozen=True, slots=True)
class Showing:
    """A node and the GPUs that are its own."""

    node: str
    gpus: frozenset[str]
    """Of its accepted inventory, MIG devices and lost ones included: of others it may say what it
    likes."""

    @staticmethod
    def of(node: str, acceptance: Acceptance) -> "Showing":
        """What a node has proven to have."""
        return Showing(
            node,
            frozenset(
                uuid
                for gpu in acceptance.gpus
                for uuid in (gpu.uuid, *(x.uuid for x in gpu.mig_devices))
            ),
        )


class KubeletAllocations:
    """The allocations that are due to be recorded. One per process.

    Remembers since when a GPU was shown as a pod's.
    """

    def __init__(self) -> None:
        self._since_ns: dict[str, dict[GivenGpu, int]] = {}
        """By node."""

    def due(
        self, shown: Showing, report: UseReport, pods: BoundPods, now_ns: int
    ) -> tuple[GivenGpu, ...]:
        """What a node's new report shows for certain, by GPU."""
        if report.given is None:
            return ()
        node = shown.node
        before = self._since_ns.get(node, {})
        now = {x: before.get(x, now_ns) for x in _shown(shown, report, pods)}
        if now:
            self._since_ns[node] = now
        else:
            self._since_ns.pop(node, None)
        sure = (x for x, since_ns in now.items() if since_ns < report.asked_ns)
        return tuple(sorted(sure, key=lambda x: (x.gpu, x.pod.uid or "")))

    def awaited(self, node: str, report: UseReport) -> frozenset[GivenGpu]:
        """What the report shows too early to be recorded: the next one decides."""
        known = self._since_ns.get(node, {})
        return frozenset(x for x, since_ns in known.items() if since_ns >= report.asked_ns)

    def forget(self, node: str) -> None:
        """The node is none on which kubelet chooses, or is gone."""
        self._since_ns.pop(node, None)


def _shown(shown: Showing, report: UseReport, pods: BoundPods) -> Iterator[GivenGpu]:
    for device in report.given or ():
        gpu = card_of(device.device)
        if gpu is None or gpu not in shown.gpus:
            continue
        found = pods.named(device.namespace, device.pod)
        if found is not None and found.node == shown.node and found.needs is not None:
            yield GivenGpu(found.pod, shown.node, gpu)
