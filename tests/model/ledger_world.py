"""A world in which the ledger's decisions can go wrong: states, and every step out of one.

Two replicas, a store with compare-and-set, pods that are bound, end, and run on after their
end, Bindings that come late or never, and GPUs that kubelet gives by its own choice. All
decisions are the product's own, by way of `Rules`, in which one may be replaced by a faulty
one. Time is left out: what may happen after some time may happen at once, and what waits waits
forever in some run.

What it leaves out, because nothing could tell it from an honest course of things: a record
that is removed by force before every replica has seen it, or while it is only an attempt; a
Binding that is in flight while the store is put back (the API server's requests die with it).

Records and watches are interned, so that a state is a tuple of small numbers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from controller.ledger import attempt, claim, release, restore
from controller.ledger.attempt import DEFAULT_LIMITS, AttemptWatch, Move, Requeue, Wait
from controller.ledger.record import (
    GpuRecord,
    Holder,
    HolderState,
    Origin,
    PodGone,
    PodRef,
    PodSeen,
    PodSight,
    ShareGroup,
)
from controller.ledger.release import (
    DEFAULT_GRACE_NS,
    GivenDevice,
    GivenGpu,
    ReleaseWatch,
    UseReport,
)

UNBOUND, BOUND, ENDED, GONE = range(4)
AGES = 10**18
"""Later than every limit."""
NOBODY = -1
KUBELET = -1
"""In the place of a replica: nobody claims, kubelet gives."""


@dataclass(frozen=True)
class Rules:
    """The product's decisions, and how its shell uses them."""

    claim_on: Callable[..., Any] = claim.claim_on
    rolled_back: Callable[..., Any] = claim.rolled_back
    attempt_step: Callable[..., Any] = attempt.attempt_step
    watch_attempt: Callable[..., Any] = attempt.watch_attempt
    watch_release: Callable[..., Any] = release.watch_release
    after_report: Callable[..., Any] = release.after_report
    release_step: Callable[..., Any] = release.release_step
    restored_for_pod: Callable[..., Any] = restore.restored_for_pod
    allocation_recorded: Callable[..., Any] = release.allocation_recorded
    released_by_operator: Callable[..., Any] = release.released_by_operator
    compares: bool = True
    """Whether the store refuses a write that was decided on something old."""
    waits_for_reconciliation: bool = True
    """Whether a replica grants nothing before live pods have their records again."""
    looks_at_shared: bool = True
    """Whether a node's report of use counts for GPUs that a share group has, too."""
    truthful: bool = True
    """Whether an operator speaks for a silent node only where nothing of the pod runs."""


@dataclass(frozen=True)
class Call:
    """A claim that some replica makes once, when the pod is unbound as far as it can see.

    Of KUBELET: what it gives when the pod is bound, in the place of a claim.
    """

    replica: int
    pod: int
    node: str
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """What may happen in a world, and how often at most."""

    gpu_nodes: tuple[str, ...]
    """The node of each GPU."""
    pods: int
    calls: tuple[Call, ...]
    share: ShareGroup | None = None
    strangers: tuple[int, ...] = ()
    """Pods that are not of the share group, and claim for themselves."""
    crashes: int = 0
    lost_answers: int = 0
    late_creations: int = 0
    removals: int = 0
    """Records that somebody deletes by force."""
    restores: int = 0
    """Of an old copy of the store."""
    slow_reports: bool = False
    """Whether a report may be on its way while other things happen."""
    overlooked: int = 0
    """Samples that overlook every process."""
    orders: int = 0
    """An operator's releases that may be decided on."""
    deletions: bool = True
    same_name: bool = False
    """Whether each pod comes after the one before, with its name."""
    begins: tuple[str, ...] = ()
    """Steps that have been taken at the start, by name."""
    replicas: int = 2
    svid_watcher: tuple[int, ...] = (0, 1)
    """Replicas that see to attempts and ends; the others only claim."""


class Pod(NamedTuple):
    api: int = UNBOUND
    call: int = NOBODY
    """The call whose answer it was bound with."""
    runs: bool = False


class Sight(NamedTuple):
    api: int
    call: int


class Work(NamedTuple):
    """A claim under way."""

    call: int
    position: int = 0
    undoing: bool = False
    valid: bool = True
    """Whether the pod still has the resourceVersion that was read at the start."""


class Replica(NamedTuple):
    views: tuple[int, ...]
    """Record of each GPU as known."""
    current: tuple[bool, ...]
    """Whether that is what is stored."""
    sights: tuple[Sight | None, ...]
    work: Work | None = None
    attempts: tuple[int, ...] = ()
    """Per reservation: an interned AttemptWatch that is old enough; 0 = none."""
    releases: tuple[int, ...] = ()
    """Per GPU and pod: an interned ReleaseWatch; 0 = none."""
    report: tuple[int, bool] | None = None
    """On its way: the pods that ran when it was sampled (bits), and whether it is old."""
    reconciliation: bool = True
    up: bool = True


class World(NamedTuple):
    store: tuple[int, ...]
    pods: tuple[Pod, ...]
    replicas: tuple[Replica, ...]
    bindings: tuple[int, ...] = ()
    """Calls whose Bindings are in flight, while their resourceVersion holds."""
    called: int = 0
    """Calls that were made (bits)."""
    late: tuple[int, int] | None = None
    """A creation that nobody waits for any more: GPU and record."""
    forced: tuple[bool, ...] = ()
    """GPUs whose record somebody removed by force: whoever knew it knows that it is missing."""
    copy: tuple[int, ...] | None = None
    damaged: bool = False
    """Somebody removed or put back records."""
    crashes: int = 0
    lost: int = 0
    lates: int = 0
    removals: int = 0
    restores: int = 0
    overlooked: int = 0
    orders: int = 0
    order: tuple[int, int, bool] | None = None
    """A release that was decided on: GPU, record, and whether what it was decided on stands."""
    allocated: int = 0
    """Pods that have had a record because kubelet gave them a GPU (bits, by GPU and pod)."""


class Here(NamedTuple):
    """A replica in a world."""

    world: World
    number: int
    me: Replica


class BrokenError(AssertionError):
    """An invariant does not hold."""


@dataclass
class Interned:
    """Values by number; 0 is None."""

    values: list[Any] = field(default_factory=lambda: [None])
    numbers: dict[Any, int] = field(default_factory=lambda: {None: 0})

    def number(self, value: Any) -> int:
        found = self.numbers.get(value)
        if found is None:
            found = self.numbers[value] = len(self.values)
            self.values.append(value)
        return found


class Steps:
    """All steps out of a state."""

    def __init__(self, plan: Plan, rules: Rules) -> None:
        self.plan, self.rules = plan, rules
        self.interned = Interned()
        self.gpus = tuple(f"GPU-{n}" for n in range(len(plan.gpu_nodes)))
        self.refs = tuple(
            PodRef(
                "ns",
                "pod" if plan.same_name else f"pod-{n}",
                f"uid-{n}",
                "another" if n in plan.strangers else "owner",
            )
            for n in range(plan.pods)
        )
        self.given = {x.pod: x.gpus for x in plan.calls if x.replica == KUBELET}
        """What kubelet gives to a pod."""
        self.names = tuple(f"v1.k.{x.pod}-{x.node}-{len(x.gpus)}" for x in plan.calls)
        self.reservations = tuple(sorted(set(self.names)))
        self.claims = tuple(
            claim.Claim(
                self.names[n],
                self.refs[x.pod],
                x.node,
                tuple(self.gpus[g] for g in x.gpus),
                Origin.BINDING_WEBHOOK,
                f"{n:08x}",
                None if x.pod in plan.strangers else plan.share,
            )
            for n, x in enumerate(plan.calls)
        )
        self._memo: dict[Any, Any] = {}

    # --- states ---

    def start(self) -> World:
        world = self._blank()
        for name in self.plan.begins:
            world = next(after for step, after in self.out_of(world) if step == name)
        return world

    def _blank(self) -> World:
        none = (0,) * len(self.gpus)
        replica = Replica(
            none,
            (True,) * len(self.gpus),
            (None,) * self.plan.pods,
            attempts=(0,) * len(self.reservations),
            releases=(0,) * (len(self.gpus) * self.plan.pods),
        )
        return World(
            none,
            (Pod(),) * self.plan.pods,
            (replica,) * self.plan.replicas,
            forced=(False,) * len(self.gpus),
        )

    def demand_invariants(self, world: World) -> None:
        """Raise BrokenError for a state that must not be."""
        for gpu, number in enumerate(world.store):
            users = [n for n, pod in enumerate(world.pods) if self._uses(pod, gpu)]
            if len(users) > 1 and (self.plan.share is None or {*users} & {*self.plan.strangers}):
                raise BrokenError(f"pods {users} use {self.gpus[gpu]}")
            record: GpuRecord | None = self.interned.values[number]
            held = set() if record is None else {x.pod.uid for x in record.holders}
            missing = [
                n
                for n in users
                if self.refs[n].uid not in held
                and (n not in self.given or world.allocated >> self._bit(gpu, n) & 1)
            ]
            if missing and not world.damaged:
                raise BrokenError(
                    f"pods {missing} use {self.gpus[gpu]}, which is not held for them"
                )
            if record is not None:
                self._demand_record(number, tuple(x.call for x in world.pods))

    def _demand_record(self, number: int, calls: tuple[int, ...]) -> None:
        """Of the record, and of which call each pod was bound with."""
        if ("valid", number, calls) in self._memo:
            return
        record: GpuRecord = self.interned.values[number]
        record.demand_valid()
        if sum(not x.restored for x in record.holders) > 1 and record.share is None:
            raise BrokenError(f"{record.gpu} has two holders")
        for holder in record.holders:
            call = calls[int(str(holder.pod.uid)[4:])]
            bound = self.names[call] if call != NOBODY else ""
            if holder.state is HolderState.CONFIRMED and bound != holder.reservation:
                raise BrokenError(f"{record.gpu} is confirmed for a pod that is not bound by it")
        self._memo["valid", number, calls] = True

    def is_at_rest(self, world: World) -> bool:
        """Whether everything is over and nothing was lost forever."""
        return not any(world.store) and not any(x.runs for x in world.pods)

    def _uses(self, pod: Pod, gpu: int) -> bool:
        return pod.runs and gpu in self.plan.calls[pod.call].gpus

    # --- steps ---

    def out_of(self, world: World) -> Iterator[tuple[str, World]]:
        yield from self._pods(world)
        yield from self._bindings(world)
        yield from self._kubelet(world)
        for index, replica in enumerate(world.replicas):
            here = Here(world, index, replica)
            if replica.up:
                yield from self._learning(here)
                yield from self._claiming(here)
                if index in self.plan.svid_watcher:
                    yield from self._keeping(here)
                    yield from self._releasing(here)
                    yield from self._settling(here)
                if world.damaged or not replica.reconciliation:
                    yield from self._repairing(here)
                if world.crashes < self.plan.crashes:
                    down = self._blank().replicas[0]._replace(up=False)
                    yield (
                        f"crash {index}",
                        _at(world, index, down)._replace(crashes=world.crashes + 1),
                    )
            else:
                yield f"restart {index}", _at(world, index, self._restarted(world))
        yield from self._operator(world)
        yield from self._damage(world)

    def _pods(self, world: World) -> Iterator[tuple[str, World]]:
        for n, pod in enumerate(world.pods):
            if pod.api == BOUND:
                yield f"pod {n} ends", self._with_pod(world, n, pod._replace(api=ENDED))
            if pod.api != GONE and self.plan.deletions:
                yield f"pod {n} is deleted", self._with_pod(world, n, pod._replace(api=GONE))
            if pod.runs and pod.api in {ENDED, GONE}:
                pods = _set(world.pods, n, pod._replace(runs=False))
                yield f"pod {n} is dead", world._replace(pods=pods)

    def _with_pod(self, world: World, n: int, pod: Pod) -> World:
        """The pod is another one for whoever carries its resourceVersion."""
        bindings = tuple(x for x in world.bindings if self.plan.calls[x].pod != n)
        replicas = tuple(
            x._replace(work=x.work._replace(valid=False))
            if x.work is not None and self.plan.calls[x.work.call].pod == n
            else x
            for x in world.replicas
        )
        return world._replace(pods=_set(world.pods, n, pod), bindings=bindings, replicas=replicas)

    def _bindings(self, world: World) -> Iterator[tuple[str, World]]:
        for call in sorted(set(world.bindings)):
            rest = list(world.bindings)
            rest.remove(call)
            without = world._replace(bindings=tuple(rest))
            yield f"binding {call} is refused", without
            pod = self.plan.calls[call].pod
            if world.pods[pod].api == UNBOUND:
                bound = self._with_pod(without, pod, Pod(BOUND, call, runs=True))
                yield f"binding {call} lands", bound

    def _kubelet(self, world: World) -> Iterator[tuple[str, World]]:
        """A pod is bound without a claim, and given GPUs that nobody uses."""
        for number, call in enumerate(self.plan.calls):
            pod = world.pods[call.pod]
            if call.replica != KUBELET or pod.api != UNBOUND or world.called >> number & 1:
                continue
            if any(self._uses(x, gpu) for x in world.pods for gpu in call.gpus):
                continue
            if self.plan.same_name and any(x.api in {BOUND, ENDED} for x in world.pods):
                continue
            bound = self._with_pod(world, call.pod, Pod(BOUND, number, runs=True))
            yield f"kubelet gives {number}", bound._replace(called=world.called | 1 << number)

    def _settling(self, here: Here) -> Iterator[tuple[str, World]]:
        """By a report of any age: what kubelet gives a pod it has for as long as it lives."""
        world, index, me = here
        running = sum(1 << n for n, x in enumerate(world.pods) if x.runs)
        for n, sight in enumerate(me.sights):
            if sight is None or sight.api != BOUND or n not in self.given:
                continue
            for gpu in sorted({*self.given[n], *self._named_alike(n, running)}):
                new = self._allocated(me.views[gpu], n, gpu, running)
                if new:
                    yield from self._written(
                        here, gpu, new, f"{index} records kubelet's allocation of {gpu} to {n}", me
                    )

    def _named_alike(self, pod: int, running: int) -> set[int]:
        """What kubelet says of the pod's name, though another has it."""
        return {
            gpu
            for n, gpus in self.given.items()
            for gpu in gpus
            if running >> n & 1 and self.refs[n].name == self.refs[pod].name
        }

    def _learning(self, here: Here) -> Iterator[tuple[str, World]]:
        world, index, me = here
        for gpu, is_current in enumerate(me.current):
            if not is_current and not (world.forced[gpu] and me.views[gpu]):
                yield f"{index} reads {gpu}", _at(world, index, self._reads(me, gpu, world))
        for n, pod in enumerate(world.pods):
            sight = Sight(pod.api, pod.call)
            if me.sights[n] == sight or index not in self.plan.svid_watcher:
                continue
            if world.damaged or n in self.given or n in self._held_pods(me):
                seen = me._replace(sights=_set(me.sights, n, sight))
                yield f"{index} sees pod {n}", _at(world, index, self._reset(seen, n))

    def _reads(self, me: Replica, gpu: int, world: World) -> Replica:
        """What is no longer to be watched is forgotten."""
        number = world.store[gpu]
        if me.views[gpu] == number:
            return me._replace(current=_set(me.current, gpu, True))
        me = me._replace(views=_set(me.views, gpu, number), current=_set(me.current, gpu, True))
        attempts = tuple(
            x if x and self._parts(me, name) else 0
            for x, name in zip(me.attempts, self.reservations, strict=True)
        )
        record: GpuRecord | None = self.interned.values[number]
        releasing = {
            int(str(x.pod.uid)[4:])
            for x in (() if record is None else record.holders)
            if x.state is HolderState.RELEASING
        }
        kept = me.releases
        for pod in set(range(self.plan.pods)) - releasing:
            kept = _set(kept, gpu * self.plan.pods + pod, 0)
        return me._replace(attempts=attempts, releases=kept)

    def _held_pods(self, me: Replica) -> frozenset[int]:
        """Pods with a part in what `me` knows: the others' sights change nothing."""
        return self._remembered(  # type: ignore[no-any-return] # what decide gives
            ("pods", me.views),
            lambda: frozenset(
                int(str(x.pod.uid)[4:])
                for number in me.views
                if number
                for x in self.interned.values[number].holders
            ),
        )

    def _reset(self, me: Replica, pod: int) -> Replica:
        """What a new sight does to the release watches of a pod."""
        releases = me.releases
        for gpu in range(len(self.gpus)):
            at = gpu * self.plan.pods + pod
            watch = self.interned.values[releases[at]]
            kept = self.rules.watch_release(watch, self._sight(me, pod), 1) if watch else None
            releases = _set(releases, at, self.interned.number(kept))
        return me._replace(releases=releases)

    def _claiming(self, here: Here) -> Iterator[tuple[str, World]]:
        world, index, me = here
        if me.work is None:
            yield from self._beginning(here)
            return
        work, claimed = me.work, self.claims[me.work.call]
        gpus = self.plan.calls[work.call].gpus
        if work.undoing:
            yield from self._undoing(here, work)
            return
        if work.position == len(gpus):
            done = _at(world, index, me._replace(work=None))
            if work.valid:
                done = done._replace(bindings=tuple(sorted((*world.bindings, work.call))))
            yield f"{index} answers {work.call}", done
            return
        gpu = gpus[work.position]
        verdict = self._claim_on(me.views[gpu], work.call, gpu)
        ahead = work._replace(position=work.position + 1)
        if isinstance(verdict, claim.Held):
            yield f"{index} holds {gpu}", _at(world, index, me._replace(work=ahead))
        elif isinstance(verdict, claim.Taken):
            back = work._replace(undoing=True)
            yield f"{index} finds {gpu} taken", _at(world, index, me._replace(work=back))
        else:
            new = self.interned.number(verdict.record)
            name = f"{index} writes {gpu} for {claimed.reservation}"
            yield from self._written(here, gpu, new, name, me._replace(work=ahead))
            if world.lost < self.plan.lost_answers:
                yield from self._lost(here, gpu, new, work)

    def _beginning(self, here: Here) -> Iterator[tuple[str, World]]:
        world, index, me = here
        for number, call in enumerate(self.plan.calls):
            is_open = call.replica == index and not world.called >> number & 1
            is_wanted = is_open and world.pods[call.pod].api == UNBOUND
            if is_wanted and self._may_grant(world, me, call):
                begun = _at(world, index, me._replace(work=Work(number)))
                called = world.called | 1 << number
                yield f"{index} claims {number}", begun._replace(called=called)

    def _undoing(self, here: Here, work: Work) -> Iterator[tuple[str, World]]:
        world, index, me = here
        gpus = self.plan.calls[work.call].gpus
        if work.position < 0:
            yield f"{index} refuses {work.call}", _at(world, index, me._replace(work=None))
            return
        gpu = gpus[min(work.position, len(gpus) - 1)]
        back = me._replace(work=work._replace(position=min(work.position, len(gpus) - 1) - 1))
        less = self._rolled_back(me.views[gpu], work.call)
        if less is None:
            yield f"{index} leaves {gpu}", _at(world, index, back)
        else:
            new = self.interned.number(less)
            yield from self._written(here, gpu, new, f"{index} undoes {gpu}", back)

    def _lost(self, here: Here, gpu: int, new: int, work: Work) -> Iterator[tuple[str, World]]:
        """An answer is lost: the write was done, or not, or comes late."""
        before, index, me = here
        world = before._replace(lost=before.lost + 1)
        given_up = me._replace(work=work._replace(undoing=True))
        outcomes = [("not done", world)]
        if me.current[gpu] or not self.rules.compares:
            outcomes.append(("done", self._put(world, gpu, new)))
        if not me.views[gpu] and world.lates < self.plan.late_creations and world.late is None:
            late = world._replace(late=(gpu, new), lates=world.lates + 1)
            outcomes.append(("late", late))
        for name, after in outcomes:
            is_same = after.store[gpu] == me.views[gpu]
            stale = _set(me.current, gpu, me.current[gpu] and is_same)
            yield f"{index} lost {gpu}: {name}", _at(after, index, self._reads(me, gpu, after))
            yield (
                f"{index} lost {gpu} for good: {name}",
                _at(after, index, given_up._replace(current=stale)),
            )

    def _keeping(self, here: Here) -> Iterator[tuple[str, World]]:
        """Attempts: seen to be old, requeued, moved on."""
        world, index, me = here
        for at, reservation in enumerate(self.reservations):
            parts = self._parts(me, reservation)
            if not parts:
                continue
            holders = tuple(x for _, x in parts)
            pod = int(str(holders[0].pod.uid)[4:])
            watch: AttemptWatch | None = self.interned.values[me.attempts[at]]
            known, is_old = self._watched(watch, holders)
            node = self.plan.gpu_nodes[parts[0][0]]
            step = self._attempt_step(known, node, self._sight(me, pod), AGES if is_old else 0)
            match step:
                case Wait():
                    aged = _set(me.attempts, at, self.interned.number(known))
                    yield (
                        f"{index} waits for {reservation}",
                        _at(world, index, me._replace(attempts=aged)),
                    )
                case Requeue():
                    yield from self._touching(here, at, known, pod)
                case Move():
                    gpu = parts[0][0]
                    yield from self._moving(here, gpu, reservation, step.to)

    def _watched(
        self, watch: AttemptWatch | None, holders: tuple[Holder, ...]
    ) -> tuple[AttemptWatch, bool]:
        """And whether its time goes on from before; then it may be over."""
        known: AttemptWatch = self.rules.watch_attempt(watch, holders, 1)
        return replace(known, since_ns=0), known.since_ns == 0

    def _touching(
        self, here: Here, at: int, watch: AttemptWatch, pod: int
    ) -> Iterator[tuple[str, World]]:
        world, index, _ = here
        requeued = self._with_pod(world, pod, world.pods[pod])
        me = requeued.replicas[index]
        sight = self._sight_of(pod, Sight(world.pods[pod].api, world.pods[pod].call))
        known = self.interned.number(attempt.after_requeue(watch, sight, AGES))
        yield (
            f"{index} requeues pod {pod}",
            _at(requeued, index, me._replace(attempts=_set(me.attempts, at, known))),
        )

    def _moving(
        self, here: Here, gpu: int, reservation: str, to: HolderState
    ) -> Iterator[tuple[str, World]]:
        new = self._moved(here.me.views[gpu], reservation, to)
        name = f"{here.number} moves {gpu} of {reservation} to {to}"
        yield from self._written(here, gpu, new, name, here.me)

    def _releasing(self, here: Here) -> Iterator[tuple[str, World]]:
        world, index, me = here
        running = sum(1 << n for n, x in enumerate(world.pods) if x.runs)
        watching = False
        for gpu, number in enumerate(me.views):
            record: GpuRecord | None = self.interned.values[number]
            for holder in () if record is None else record.holders:
                pod = int(str(holder.pod.uid)[4:])
                sight = self._sight(me, pod)
                end = release.end_step(holder, sight, None)
                if end is not None:
                    yield from self._moving(here, gpu, holder.reservation, end.to)
                if holder.state is not HolderState.RELEASING:
                    continue
                watching = True
                at = gpu * self.plan.pods + pod
                watch: ReleaseWatch | None = self.interned.values[me.releases[at]]
                begun = self.rules.watch_release(watch, sight, 1)
                if begun != watch:
                    old = None if me.report is None else (me.report[0], True)
                    kept = _set(me.releases, at, self.interned.number(begun))
                    yield (
                        f"{index} watches {gpu} of pod {pod}",
                        _at(world, index, me._replace(releases=kept, report=old)),
                    )
                if self.rules.release_step(begun, None, 0, 0, DEFAULT_GRACE_NS) is not None:
                    yield from self._moving(here, gpu, holder.reservation, HolderState.RELEASED)
        if me.report is None and (watching or self.plan.slow_reports):
            yield from self._sampled(here, running)
            if running and world.overlooked < self.plan.overlooked:
                blind = here._replace(world=world._replace(overlooked=world.overlooked + 1))
                yield from self._sampled(blind, 0)
        if me.report is not None:
            yield f"{index} takes the report", _at(world, index, self._reported(me))

    def _sampled(self, here: Here, running: int) -> Iterator[tuple[str, World]]:
        world, index, me = here
        asked = me._replace(report=(running, False))
        told = asked if self.plan.slow_reports else self._reported(asked)
        if told != me:
            yield f"{index} is reported to: {running:b}", _at(world, index, told)

    def _reported(self, me: Replica) -> Replica:
        assert me.report is not None
        running, old = me.report
        releases = me.releases
        for gpu, number in enumerate(me.views):
            record: GpuRecord | None = self.interned.values[number]
            for holder in () if record is None else record.holders:
                at = gpu * self.plan.pods + int(str(holder.pod.uid)[4:])
                watch: ReleaseWatch | None = self.interned.values[releases[at]]
                if watch is not None:
                    counted = self._after_report(watch, holder, gpu, running, number, old=old)
                    releases = _set(releases, at, self.interned.number(counted))
        return me._replace(report=None, releases=releases)

    def _operator(self, world: World) -> Iterator[tuple[str, World]]:
        """Speaks for a silent node where nothing of the pod runs; a node that shows it is heard.

        What a workbench reads is newest, and other steps may come before it writes.
        """
        if world.order is not None:
            gpu, new, stands = world.order
            done = world._replace(order=None)
            is_written = stands or not self.rules.compares
            yield f"an operator releases {gpu}", self._put(done, gpu, new) if is_written else done
        elif world.orders < self.plan.orders:
            for gpu, number in enumerate(world.store):
                record: GpuRecord | None = self.interned.values[number]
                for holder in () if record is None else record.holders:
                    new = self._ordered(world, number, holder)
                    if new:
                        ordered = world._replace(order=(gpu, new, True), orders=world.orders + 1)
                        yield f"an operator decides on {gpu} of {holder.reservation}", ordered

    def _ordered(self, world: World, number: int, holder: Holder) -> int:
        pod = int(str(holder.pod.uid)[4:])
        running = sum(1 << n for n, x in enumerate(world.pods) if x.runs)
        seen = self._sight_of(pod, Sight(world.pods[pod].api, world.pods[pod].call))
        speaks = world.pods[pod].runs and self.rules.truthful

        def decide() -> int:
            known = release.Known(seen, self._report(running, 2) if speaks else None)
            record = self.interned.values[number]
            found = self.rules.released_by_operator(record, holder.reservation, known)
            return self.interned.number(found) if isinstance(found, GpuRecord) else 0

        key = ("ordered", number, holder, self.interned.number(seen), running, speaks)
        return int(self._remembered(key, decide))

    def _repairing(self, here: Here) -> Iterator[tuple[str, World]]:
        """Records that somebody removed are written again; live pods get theirs."""
        world, index, me = here
        for gpu, number in enumerate(me.views):
            if number and not world.store[gpu] and not me.current[gpu]:
                again = _at(self._put(world, gpu, number), index, me)
                yield f"{index} writes {gpu} again", _at(again, index, self._reads(me, gpu, again))
        for n, pod in enumerate(world.pods):
            for gpu in self.plan.calls[pod.call].gpus if pod.api == BOUND else ():
                new = self._restored(me.views[gpu], pod.call, gpu)
                if new:
                    name = f"{index} restores pod {n} on {gpu}"
                    yield from self._written(here, gpu, new, name, me)
        if not me.reconciliation and (
            self._is_recorded(world, me) or not self.rules.waits_for_reconciliation
        ):
            sights = tuple(Sight(x.api, x.call) for x in world.pods)
            firm = me._replace(reconciliation=True, sights=sights)
            yield f"{index} has a reconciliation state", _at(world, index, firm)

    def _is_recorded(self, world: World, me: Replica) -> bool:
        """Everything was read, and every live pod has its record."""
        return all(me.current) and all(
            not self._restored(me.views[gpu], pod.call, gpu)
            for pod in world.pods
            if pod.api == BOUND
            for gpu in self.plan.calls[pod.call].gpus
        )

    def _may_grant(self, world: World, me: Replica, call: Call) -> bool:
        if not self.rules.waits_for_reconciliation:
            return True
        used = any(
            self._uses(pod, gpu) and not self._is_explained(me.views[gpu], n)
            for n, pod in enumerate(world.pods)
            for gpu in call.gpus
        )
        wanted = any(
            seen is not None
            and seen.api == BOUND
            and not me.views[gpu]
            and gpu in self.plan.calls[seen.call].gpus
            for seen in me.sights
            for gpu in call.gpus
        )
        return me.reconciliation and not used and not wanted

    def _is_explained(self, number: int, pod: int) -> bool:
        """Whether a pod's use of a GPU is one that its record knows of."""
        record: GpuRecord | None = self.interned.values[number]
        if record is None:
            return False
        return not self.rules.looks_at_shared or record.of_pod(str(self.refs[pod].uid)) is not None

    def _restarted(self, world: World) -> Replica:
        fresh = self._blank().replicas[0]
        sights = tuple(Sight(x.api, x.call) for x in world.pods)
        return fresh._replace(views=world.store, sights=sights, reconciliation=False, up=True)

    def _damage(self, world: World) -> Iterator[tuple[str, World]]:
        plan = self.plan
        if world.late is not None:
            gpu, new = world.late
            gone = world._replace(late=None)
            yield "late creation", gone if world.store[gpu] else self._put(gone, gpu, new)
        if world.removals < plan.removals:
            for gpu, number in enumerate(world.store):
                if number and self._is_known(world, gpu):
                    removed = self._put(world, gpu, 0)._replace(
                        removals=world.removals + 1,
                        damaged=True,
                        forced=_set(world.forced, gpu, True),
                    )
                    yield f"somebody removes {gpu}", removed
        if world.restores < plan.restores:
            if world.copy is None:
                yield "a copy is made", world._replace(copy=world.store)
            elif world.copy != world.store:
                back = world._replace(
                    store=world.copy, copy=None, restores=world.restores + 1, damaged=True
                )
                replicas = tuple(
                    x._replace(current=(False,) * len(self.gpus), reconciliation=False, work=None)
                    for x in back.replicas
                )
                yield (
                    "the copy is put back",
                    back._replace(replicas=replicas, late=None, bindings=(), order=None),
                )

    def _bit(self, gpu: int, pod: int) -> int:
        return gpu * self.plan.pods + pod

    def _is_known(self, world: World, gpu: int) -> bool:
        """Whether the record has come to every replica, and no answer about it is on its way.

        Within the milliseconds before, a removal by force cannot be told from no claim at all.
        """
        record: GpuRecord = self.interned.values[world.store[gpu]]
        return all(x.current[gpu] or not x.up for x in world.replicas) and any(
            x.state is not HolderState.PROPOSED for x in record.holders
        )

    # --- the store ---

    def _written(
        self, here: Here, gpu: int, new: int, name: str, done: Replica
    ) -> Iterator[tuple[str, World]]:
        """Compare-and-set, and a refusal after which it is known what is there."""
        world, index, refused = here
        is_missing = world.forced[gpu] and refused.views[gpu] != 0
        if refused.current[gpu] or is_missing or not self.rules.compares:
            after = _at(self._put(world, gpu, new), index, done)
            yield name, _at(after, index, self._reads(done, gpu, after))
        else:
            yield f"{name}: refused", _at(world, index, self._reads(refused, gpu, world))

    def _put(self, world: World, gpu: int, new: int) -> World:
        """A closed record is removed. Everybody else's view is old now."""
        record: GpuRecord | None = self.interned.values[new]
        number = 0 if record is None or record.is_closed else self._plain(new)
        replicas = tuple(x._replace(current=_set(x.current, gpu, False)) for x in world.replicas)
        allocated = sum(
            1 << self._bit(gpu, int(str(x.pod.uid)[4:]))
            for x in (() if record is None else record.holders)
            if x.origin is Origin.KUBELET
        )
        return world._replace(
            allocated=world.allocated | allocated,
            store=_set(world.store, gpu, number),
            replicas=replicas,
            forced=_set(world.forced, gpu, False),
            order=_overtaken(world.order, gpu),
        )

    # --- decisions, remembered ---

    def _remembered(self, key: Any, decide: Callable[[], Any]) -> Any:
        if key not in self._memo:
            self._memo[key] = decide()
        return self._memo[key]

    def _plain(self, number: int) -> int:
        """Without the version: that a view is old is known otherwise."""
        return int(
            self._remembered(
                ("plain", number),
                lambda: self.interned.number(replace(self.interned.values[number], version=1)),
            )
        )

    def _claim_on(self, number: int, call: int, gpu: int) -> Any:
        return self._remembered(
            ("claim", number, call, gpu),
            lambda: self.rules.claim_on(
                self.interned.values[number], self.claims[call], self.gpus[gpu]
            ),
        )

    def _rolled_back(self, number: int, call: int) -> Any:
        return self._remembered(
            ("back", number, call),
            lambda: self.rules.rolled_back(self.interned.values[number], self.claims[call]),
        )

    def _moved(self, number: int, reservation: str, to: HolderState) -> int:
        return int(
            self._remembered(
                ("moved", number, reservation, to),
                lambda: self.interned.number(self.interned.values[number].moved(reservation, to)),
            )
        )

    def _restored(self, number: int, call: int, gpu: int) -> int:
        def decide() -> int:
            claimed = self.claims[call]
            live = restore.LivePod(
                claimed.pod,
                claimed.node,
                claimed.reservation,
                claimed.gpus,
                share=claimed.share,
            )
            record = self.interned.values[number]
            found = self.rules.restored_for_pod(record, live, self.gpus[gpu], "f" * 8)
            return 0 if found is None else self.interned.number(found)

        return int(self._remembered(("restored", number, call, gpu), decide))

    def _allocated(self, number: int, pod: int, gpu: int, running: int) -> int:
        def decide() -> int:
            name = next(
                self.names[n]
                for n, x in enumerate(self.plan.calls)
                if (x.replica, x.pod) == (KUBELET, pod)
            )
            given = GivenGpu(self.refs[pod], self.plan.gpu_nodes[gpu], self.gpus[gpu])
            record = self.interned.values[number]
            found = self.rules.allocation_recorded(
                record, given, name, "e" * 8, self._report(running, 2)
            )
            return 0 if found is None else self.interned.number(found)

        return int(self._remembered(("allocated", number, pod, gpu, running), decide))

    def _report(self, running: int, asked_ns: int) -> UseReport:
        """Kubelet names pods, not UIDs."""
        runs = [n for n in range(self.plan.pods) if running >> n & 1]
        users = {f"GPU-{n}": frozenset({self.refs[n].uid}) for n in runs}
        given = frozenset(
            GivenDevice("ns", str(self.refs[n].name), self.gpus[gpu])
            for n in runs
            for gpu in self.given.get(n, ())
        )
        return UseReport("boot", asked_ns, users, given)

    def _attempt_step(self, watch: AttemptWatch, node: str, sight: PodSight, now_ns: int) -> Any:
        key = ("attempt", self.interned.number(watch), node, self.interned.number(sight), now_ns)
        return self._remembered(
            key, lambda: self.rules.attempt_step(watch, node, sight, now_ns, DEFAULT_LIMITS)
        )

    def _after_report(
        self,
        watch: ReleaseWatch,
        holder: Holder,
        gpu: int,
        running: int,
        number: int,
        *,
        old: bool,
    ) -> ReleaseWatch:
        key = (
            "report",
            self.interned.number(watch),
            self.interned.number(holder),
            gpu,
            running,
            number,
            old,
        )

        def decide() -> ReleaseWatch:
            succeeded = release.has_successor(self.interned.values[number], holder)
            report = self._report(running, 1 if old else 2)
            counted: ReleaseWatch = self.rules.after_report(
                watch, holder, self.gpus[gpu], report, succeeded=succeeded
            )
            return replace(counted, last_asked_ns=0, boot_ids=frozenset())

        found: ReleaseWatch = self._remembered(key, decide)
        return found

    def _parts(self, me: Replica, reservation: str) -> tuple[tuple[int, Holder], ...]:
        """The reservation's parts that are attempts, as `me` knows them."""
        return self._remembered(  # type: ignore[no-any-return] # what decide gives
            ("parts", me.views, reservation),
            lambda: tuple(
                (gpu, holder)
                for gpu, number in enumerate(me.views)
                if number
                for holder in self.interned.values[number].holders
                if holder.reservation == reservation and holder.state is HolderState.PROPOSED
            ),
        )

    def _sight(self, me: Replica, pod: int) -> PodSight:
        seen = me.sights[pod]
        return None if seen is None else self._sight_of(pod, seen)

    def _sight_of(self, pod: int, seen: Sight) -> PodSeen | PodGone:
        def decide() -> PodSeen | PodGone:
            if seen.api == GONE:
                return PodGone()
            bound = seen.call != NOBODY
            return PodSeen(
                str(self.refs[pod].uid),
                self.plan.calls[seen.call].node if bound else "",
                self.names[seen.call] if bound else None,
                seen.api == ENDED,
            )

        found: PodSeen | PodGone = self._remembered(("sight", pod, seen), decide)
        return found


def _overtaken(order: tuple[int, int, bool] | None, gpu: int) -> tuple[int, int, bool] | None:
    """An order about a record that is another one now."""
    return order if order is None or order[0] != gpu else (*order[:2], False)


def _at(world: World, index: int, replica: Replica) -> World:
    return world._replace(replicas=_set(world.replicas, index, replica))


def _set(values: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return values if values[at] == value else (*values[:at], value, *values[at + 1 :])
