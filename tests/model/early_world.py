"""A world of reservations at pods' creation: states, and every step out of one.

One GPU, one owner, whose pods are created one after the other or side by side: each creation is
reserved for, given to its pod, and then refused by a later step, stored at once, or stored as
late as a request may take. Pods are bound through the binding webhook or name their node. One
replica sees
to attempts; the decisions are the product's own, by way of `EarlyRules`. What ends after the
binding is `ledger_world`'s: here a GPU is released when its pod is known to be over and does not
run.

Time counts here: a request that has told a pod's UID has come to its end before anybody has
waited for `unborn_ns`. A Binding has no such end.

Each decision is made once for what it is made of and then remembered: there are far fewer of
these than states.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from controller.ledger import attempt, claim
from controller.ledger import claim as early
from controller.ledger.attempt import DEFAULT_LIMITS, AttemptWatch, Move, Requeue
from controller.ledger.claim import Claim, Write
from controller.ledger.record import (
    GpuRecord,
    HolderState,
    Origin,
    PodGone,
    PodRef,
    PodSeen,
    PodSight,
)
from controller.ledger.store import Entry, LedgerSnapshot
from gpuwarden.reasons import Refusal
from tests.model.ledger_world import BrokenError

NONE, MUTATED, TAKEN = range(3)
"""How far a creation has come; then it is over."""
ABSENT, UNBOUND, BOUND, GONE = range(4)
AGES: tuple[int, ...] = (0, DEFAULT_LIMITS.unborn_ns, DEFAULT_LIMITS.pending_ns)
GPU, NODE, OWNER = "GPU-0", "n1", "owner"
_NONCE = "0" * 32


@dataclass(frozen=True)
class EarlyRules:
    """The product's decisions."""

    bound_to_pod: Callable[..., Any] = claim.bound_to_pod
    attempt_step: Callable[..., Any] = attempt.attempt_step
    watch_attempt: Callable[..., Any] = attempt.watch_attempt
    held_early: Callable[..., Any] = early.held_early
    looks_for_unseen: bool = False
    """Whether it is asked at once whether there is such a pod."""


@dataclass(frozen=True)
class EarlyPlan:
    """Whether each pod names its node, and how many answers the binding webhook gives in all."""

    names_node: tuple[bool, ...]
    answers: int = 2


class Pod(NamedTuple):
    creation: int = NONE
    created: bool = False
    """Its creation has begun."""
    api: int = ABSENT
    reservation: int = 0
    """That it was bound under: 0 = none, 1 = the early one, 2 = the binding webhook's own."""
    runs: bool = False


class World(NamedTuple):
    record: int
    """Interned; 0 = none."""
    pods: tuple[Pod, ...]
    bindings: tuple[tuple[int, int], ...] = ()
    """Pod and reservation, in flight, while the pod's resourceVersion holds."""
    answers: int = 0
    seen: tuple[int, ...] = ()
    """What the SVID watcher last saw of each pod."""
    watch: int = 0
    """Its watch, interned, and how old it is."""
    age: int = 0


@dataclass
class Interned:
    values: list[Any] = field(default_factory=lambda: [None])
    numbers: dict[Any, int] = field(default_factory=lambda: {None: 0})

    def number(self, value: Any) -> int:
        found = self.numbers.get(value)
        if found is None:
            found = self.numbers[value] = len(self.values)
            self.values.append(value)
        return found


class EarlySteps:
    """All steps out of a state."""

    def __init__(self, plan: EarlyPlan, rules: EarlyRules) -> None:
        self.plan, self.rules = plan, rules
        self.interned = Interned()
        self.refs = tuple(PodRef("ns", f"pod-{n}", f"uid-{n}", OWNER) for n in self._numbers())
        self._memo: dict[Any, Any] = {}

    def start(self) -> World:
        pods = tuple(Pod() for _ in self._numbers())
        return World(0, pods, seen=(ABSENT,) * len(pods))

    def demand_invariants(self, world: World) -> None:
        """Raise BrokenError for a state that must not be."""
        users = [n for n, pod in enumerate(world.pods) if pod.runs]
        if len(users) > 1:
            raise BrokenError(f"pods {users} use the GPU")
        record: GpuRecord | None = self.interned.values[world.record]
        held = set() if record is None else {x.pod.uid for x in record.holders}
        if record is not None:
            self._remembered(("valid", world.record), record.demand_valid)
        for n in users:
            if self.refs[n].uid not in held:
                raise BrokenError(f"pod {n} uses the GPU, which is not held for it")

    def is_at_rest(self, world: World) -> bool:
        """Whether everything is over and nothing was lost forever."""
        return not world.record and not any(x.runs for x in world.pods)

    def out_of(self, world: World) -> Iterator[tuple[str, World]]:
        for n, pod in enumerate(world.pods):
            yield from self._creation(world, n, pod)
            yield from self._life(world, n, pod)
            if pod.api == UNBOUND:
                yield from self._binding_webhook(world, n)
            if world.seen[n] != pod.api:
                seen = _set(world.seen, n, pod.api)
                yield f"pod {n} is seen", world._replace(seen=seen)
        yield from self._landing(world)
        yield from self._keeping(world)

    def _creation(self, world: World, n: int, pod: Pod) -> Iterator[tuple[str, World]]:
        if not pod.created:
            reserved = self._reserved(world.record, n)
            if reserved:
                begun = self._with(world, n, Pod(MUTATED, created=True))
                yield f"{n} is reserved for", begun._replace(record=reserved)
        if pod.creation == MUTATED:
            yield f"{n} is refused early", self._with(world, n, pod._replace(creation=NONE))
            yield from self._taking(world, n, pod)
        if pod.creation == TAKEN:
            yield f"{n} is refused late", self._with(world, n, pod._replace(creation=NONE))
            on_node = self.plan.names_node[n]
            made = Pod(NONE, True, BOUND, 1, runs=True) if on_node else Pod(NONE, True, UNBOUND)
            yield f"{n} is stored", self._with(world, n, made)

    def _reserved(self, number: int, n: int) -> int:
        def decide() -> int:
            unborn = Claim(
                _early_id(),
                PodRef("ns", None, None, OWNER),
                NODE,
                (GPU,),
                Origin.ADMISSION,
                f"{n:08x}",
            )
            verdict = claim.claim_on(self.interned.values[number], unborn, GPU)
            return self._plain(verdict.record) if isinstance(verdict, Write) else 0

        return int(self._remembered(("reserved", number, n), decide))

    def _taking(self, world: World, n: int, pod: Pod) -> Iterator[tuple[str, World]]:
        given = self._given(world.record, n)
        if given:
            taken = self._with(world, n, pod._replace(creation=TAKEN))
            yield f"{n} is given it", taken._replace(record=given)
        else:
            yield f"{n} is not given it", self._with(world, n, pod._replace(creation=NONE))

    def _given(self, number: int, n: int) -> int:
        def decide() -> int:
            record: GpuRecord | None = self.interned.values[number]
            if record is None or record.holder(_early_id()) is None:
                return 0
            found = self.rules.bound_to_pod(record, _early_id(), self.refs[n])
            return 0 if isinstance(found, Refusal) else self._plain(found)

        return int(self._remembered(("given", number, n), decide))

    def _life(self, world: World, n: int, pod: Pod) -> Iterator[tuple[str, World]]:
        if pod.api in {UNBOUND, BOUND}:
            yield f"pod {n} is deleted", self._with(world, n, pod._replace(api=GONE))
        if pod.api == GONE and pod.runs:
            pods = _set(world.pods, n, pod._replace(runs=False))
            yield f"pod {n} is dead", world._replace(pods=pods)

    def _binding_webhook(self, world: World, n: int) -> Iterator[tuple[str, World]]:
        """The early reservation, or where it is over one of its own."""
        if world.answers >= self.plan.answers:
            return
        reserved, which = self._answered(world.record, n, world.answers)
        if reserved:
            sent = tuple(sorted((*world.bindings, (n, which))))
            yield (
                f"the binding webhook answers {n} with {which}",
                world._replace(bindings=sent, answers=world.answers + 1, record=reserved),
            )

    def _answered(self, number: int, n: int, answers: int) -> tuple[int, int]:
        """The record, and which reservation the answer names."""

        def decide() -> tuple[int, int]:
            record: GpuRecord | None = self.interned.values[number]
            known = LedgerSnapshot.of(() if record is None else (Entry(record, "x"),))
            is_early = self.rules.held_early(known, _early_id(), self.refs[n].uid)
            name, which = (_early_id(), 1) if is_early else (f"v1.k.binding-{n}", 2)
            asked = Claim(
                name, self.refs[n], NODE, (GPU,), Origin.BINDING_WEBHOOK, f"{8 + answers:08x}"
            )
            verdict = claim.claim_on(record, asked, GPU)
            return (self._plain(verdict.record) if isinstance(verdict, Write) else 0), which

        found: tuple[int, int] = self._remembered(("answered", number, n, answers), decide)
        return found

    def _landing(self, world: World) -> Iterator[tuple[str, World]]:
        for binding in sorted(set(world.bindings)):
            rest = list(world.bindings)
            rest.remove(binding)
            lost = world._replace(bindings=tuple(rest))
            yield f"binding {binding} is lost", lost
            n, which = binding
            if world.pods[n].api == UNBOUND:
                bound = Pod(NONE, True, BOUND, which, runs=True)
                yield f"binding {binding} lands", self._with(lost, n, bound)

    def _keeping(self, world: World) -> Iterator[tuple[str, World]]:
        record: GpuRecord | None = self.interned.values[world.record]
        if record is None:
            return
        holder = record.holders[0]
        uid = holder.pod.uid
        n = None if uid is None else int(uid[4:])
        if holder.state is HolderState.PROPOSED:
            yield from self._attempt(world, n)
        elif n is not None and world.seen[n] == GONE:
            if holder.state is HolderState.CONFIRMED:
                yield "its end is seen", self._moved(world, HolderState.RELEASING)
            elif not world.pods[n].runs:
                yield "it is released", self._moved(world, HolderState.RELEASED)
        elif n is not None and world.pods[n].api in {ABSENT, GONE}:
            yield "it is asked for", world._replace(seen=_set(world.seen, n, GONE))

    def _attempt(self, world: World, n: int | None) -> Iterator[tuple[str, World]]:
        number, begins = self._watched(world.watch, world.record)
        if number:
            age = 0 if begins else world.age
            yield "an attempt is watched", world._replace(watch=number, age=age)
            return
        watch: AttemptWatch = self.interned.values[world.watch]
        step = self._step(world.watch, self._sight(world, n), world.age)
        if world.age + 1 < len(AGES) and not any(x.creation == TAKEN for x in world.pods):
            yield "time passes", world._replace(age=world.age + 1)
        match step:
            case Move():
                yield f"it is {step.to}", self._moved(world, step.to)
            case Requeue() if n is not None:
                bindings = tuple(x for x in world.bindings if x[0] != n)
                answer = self._seen(n, world.pods[n])
                known = attempt.after_requeue(watch, answer, AGES[world.age])
                yield (
                    f"pod {n} is requeued",
                    world._replace(watch=self.interned.number(known), bindings=bindings),
                )

    def _watched(self, old: int, number: int) -> tuple[int, bool]:
        """The watch where it is another one, and whether its time begins again."""

        def decide() -> tuple[int, bool]:
            before: AttemptWatch | None = self.interned.values[old]
            holders = self.interned.values[number].holders
            watch: AttemptWatch = self.rules.watch_attempt(before, holders, 1)
            if watch is before:
                return 0, False
            return self.interned.number(replace(watch, since_ns=0)), watch.since_ns != 0

        found: tuple[int, bool] = self._remembered(("watched", old, number), decide)
        return found

    def _step(self, watch: int, sight: PodSight, age: int) -> Any:
        return self._remembered(
            ("step", watch, sight, age),
            lambda: self.rules.attempt_step(
                self.interned.values[watch], NODE, sight, AGES[age], DEFAULT_LIMITS
            ),
        )

    def _sight(self, world: World, n: int | None) -> PodSight:
        """Of a pod that was never seen the copy says nothing."""
        if n is None:
            return None
        if world.seen[n] == ABSENT:
            looked = self._seen(n, world.pods[n])
            return looked if self.rules.looks_for_unseen else None
        return self._seen(n, world.pods[n]._replace(api=world.seen[n]))

    def _seen(self, n: int, pod: Pod) -> PodSeen | PodGone:
        if pod.api in {ABSENT, GONE}:
            return PodGone()
        name = {0: None, 1: _early_id(), 2: f"v1.k.binding-{n}"}[pod.reservation]
        is_bound = pod.api == BOUND
        return PodSeen(
            str(self.refs[n].uid), NODE if is_bound else "", name if is_bound else None, False
        )

    def _moved(self, world: World, to: HolderState) -> World:
        def decide() -> int:
            record: GpuRecord = self.interned.values[world.record]
            return self._plain(record.moved(record.holders[0].reservation, to))

        return world._replace(record=self._remembered(("moved", world.record, to), decide))

    def _plain(self, record: GpuRecord) -> int:
        """Without the version: a state is what is known, not how often it was written."""
        plain = None if record.is_closed else GpuRecord(GPU, NODE, record.holders)
        return self.interned.number(plain)

    def _remembered(self, key: Any, decide: Callable[[], Any]) -> Any:
        if key not in self._memo:
            self._memo[key] = decide()
        return self._memo[key]

    def _with(self, world: World, n: int, pod: Pod) -> World:
        """The pod is another one for whoever carries its resourceVersion."""
        bindings = tuple(x for x in world.bindings if x[0] != n)
        return world._replace(pods=_set(world.pods, n, pod), bindings=bindings)

    def _numbers(self) -> range:
        return range(len(self.plan.names_node))


def _early_id() -> str:
    return f"v1.k1.{_NONCE}.{'1' * 64}"


def _set(values: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return (*values[:at], value, *values[at + 1 :])
