"""What becomes of reservations after the answer: the next steps, from what is known now. Pure.

Attempts are confirmed, withdrawn or given up; holders whose pods have ended are released once
their nodes show it. Every replica does this by itself and remembers its own sightings; the
store lets the first of several equal writes through.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from controller.binding.apart import Apart
from controller.binding.records import ReservationChange
from controller.ledger.attempt import (
    DEFAULT_LIMITS,
    AttemptLimits,
    AttemptWatch,
    Move,
    Touch,
    after_touch,
    attempt_step,
    watch_attempt,
)
from controller.ledger.pods import PodGone, PodSeen, PodSight
from controller.ledger.record import GpuRecord, Holder, PodRef
from controller.ledger.release import (
    DEFAULT_GRACE_NS,
    NodeGone,
    ReleaseWatch,
    UseReport,
    after_report,
    end_step,
    has_successor,
    release_step,
    watch_release,
)
from controller.ledger.states import HolderState, Origin
from controller.ledger.store import Entry, LedgerSnapshot


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
    """Ask the API server itself about a pod that the copy lacks."""

    pod: PodRef


@dataclass(frozen=True, slots=True)
class TouchPod:
    """Touch the pod of an attempt, and tell `touched` what the answer showed."""

    reservation: str
    pod: PodRef


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Write each successor by compare-and-set; `change` is what that means."""

    entries: tuple[tuple[Entry, GpuRecord], ...]
    change: ReservationChange


IN_TURN: Final = 512
"""Records that are looked at without a cause in one round."""
Action = LookFor | TouchPod | Rewrite


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
        self._apart = Apart()

    def touched(self, reservation: str, answer: PodSeen | PodGone, asked_ns: int) -> None:
        """The answer to a touch, and when it was asked for."""
        watch = self._attempts.get(reservation)
        if watch is not None:
            self._attempts[reservation] = after_touch(watch, answer, asked_ns)
        self._apart.touched(reservation, answer)

    def steps(self, around: Around, pods: Collection[str] = ()) -> tuple[Action, ...]:
        """What is to be done now.

        Looked at are all attempts and all that is being released, what `pods` (UIDs) hold, and
        some more confirmed ones in turn.
        """
        open_attempts: dict[str, list[Entry]] = {}
        releasing: dict[tuple[str, str], str] = {}
        moves: dict[tuple[str, Move], list[Entry]] = {}
        looks: dict[str, LookFor] = {}
        now_ns = around.now_ns
        for entry in self._of_interest(around.snapshot, pods):
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
                    case _:
                        continue
                if move is not None:
                    moves.setdefault((holder.reservation, move), []).append(entry)
        self._attempts = {k: x for k, x in self._attempts.items() if k in open_attempts}
        self._releases = {k: x for k, x in self._releases.items() if k in releasing}
        self.releasing_nodes = frozenset(releasing.values())
        touches = [
            *self._proposed(around, open_attempts, moves, looks),
            *(TouchPod(x.reservation, x.pod) for x in self._apart.due(around.snapshot, now_ns)),
        ]
        rewrites = (
            _rewrite(entries, reservation, move) for (reservation, move), entries in moves.items()
        )
        return (*looks.values(), *touches, *rewrites)

    def _of_interest(self, snapshot: LedgerSnapshot, pods: Collection[str]) -> Iterable[Entry]:
        entries = snapshot.entries
        for key in entries.differences(self._known.entries):
            entry = entries.get(key)
            if entry is not None and any(_is_open(x) for x in entry.record.holders):
                self._open.add(key)
            else:
                self._open.discard(key)
        self._known = snapshot
        begin = self._turn if self._turn < len(entries) else 0
        self._turn = begin + self._in_turn
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
    ) -> Iterator[TouchPod]:
        for reservation, entries in attempts.items():
            parts = tuple(_part(entry, reservation) for entry in entries)
            watch = watch_attempt(self._attempts.get(reservation), parts, around.now_ns)
            self._attempts[reservation] = watch
            pod = parts[0].pod
            sight = _sight_of_attempt(around, parts[0], looks)
            step = attempt_step(watch, entries[0].record.node, sight, around.now_ns, self._limits)
            match step:
                case Touch():
                    yield TouchPod(reservation, pod)
                case Move():
                    moves.setdefault((reservation, step), []).extend(entries)

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


def _rewrite(entries: list[Entry], reservation: str, move: Move) -> Rewrite:
    first = entries[0].record
    change = ReservationChange(
        _part(entries[0], reservation).pod,
        reservation,
        first.node,
        tuple(x.record.gpu for x in entries),
        move.to,
        move.cause,
    )
    return Rewrite(tuple((x, x.record.moved(reservation, move.to)) for x in entries), change)
