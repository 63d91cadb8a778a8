"""A world in which one pod's Bindings are refused for ever after the binding webhook's answer.

One GPU, two replicas. `refused` asks either replica, at the worst moments, and no Binding of it is
ever stored; `waits` asks, too, and is bound when it gets the GPU. Time passes once nobody has
anything left to do: each replica's rounds find nothing due, and `waits` was refused. So what waits
too long here waits too long in every order of things. The decisions are the product's own, by way
of `RefusedRules`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from controller.binding import turns
from controller.binding.turns import Turn
from controller.ledger import attempt, claim
from controller.ledger.attempt import DEFAULT_LIMITS, AttemptWatch, Move, Requeue
from controller.ledger.claim import Claim, Write
from controller.ledger.record import GpuRecord, Origin, PodRef, PodSeen
from tests.model.ledger_world import BrokenError

TICK_NS: Final = DEFAULT_LIMITS.binding_webhook_ns // 3
TRIES: Final = 2
"""Of `refused` in one tick, beside its first."""
MOST_TICKS: Final = 4
"""In which `waits` must have the GPU: those of the attempt, and one more."""
GPU, NODE = "GPU-0", "n1"
REFUSED, WAITS = PodRef("ns", "refused", "uid-0"), PodRef("ns", "waits", "uid-1")
UNBOUND: Final = PodSeen("uid-0", "", None, has_ended=False)


@dataclass(frozen=True)
class RefusedRules:
    """The product's decisions."""

    watch_attempt: Callable[..., Any] = attempt.watch_attempt
    attempt_step: Callable[..., Any] = attempt.attempt_step
    has_run_out: Callable[..., bool] = attempt.has_run_out
    after_loss: Callable[..., Turn | None] = turns.after_loss


class Replica(NamedTuple):
    watch: AttemptWatch | None = None
    turn: Turn | None = None
    """Of `refused`."""


class World(NamedTuple):
    record: GpuRecord | None = None
    replicas: tuple[Replica, ...] = (Replica(), Replica())
    tick: int = 0
    tries: int = 0
    calls: int = 0
    """Claims that were made in this tick: each has a call of its own."""
    is_bound: bool = False
    """Whether `waits` is."""


class RefusedSteps:
    """All steps out of a state."""

    def __init__(self, rules: RefusedRules) -> None:
        self.rules = rules

    def start(self) -> World:
        return World()

    def demand_invariants(self, world: World) -> None:
        """Raise BrokenError where `waits` waits for ever."""
        if world.tick > MOST_TICKS and not world.is_bound:
            raise BrokenError(f"the pod that waits has no GPU after {MOST_TICKS} ticks")

    def is_at_rest(self, world: World) -> bool:
        return world.is_bound

    def out_of(self, world: World) -> Iterator[tuple[str, World]]:
        if world.is_bound:
            return
        if world.tries <= TRIES:
            yield from self._refused(world)
        quiet = True
        for index in range(len(world.replicas)):
            after = self._round(world, index)
            if after != world:
                quiet = False
                yield f"{index} has a round", after
        bound = self._waits(world)
        if bound is not None:
            yield "waits is bound", bound
        elif quiet and world.record is not None:
            yield "time passes", world._replace(tick=world.tick + 1, tries=0, calls=0)

    def _refused(self, world: World) -> Iterator[tuple[str, World]]:
        for index, me in enumerate(world.replicas):
            if me.turn is not None and _now_ns(world) < me.turn.until_ns:
                continue
            verdict = claim.claim_on(world.record, _claim(REFUSED, world), GPU)
            if isinstance(verdict, Write):
                yield (
                    f"{index} answers refused",
                    world._replace(
                        record=replace(verdict.record, version=1),
                        tries=world.tries + 1,
                        calls=world.calls + 1,
                    ),
                )

    def _waits(self, world: World) -> World | None:
        verdict = claim.claim_on(world.record, _claim(WAITS, world), GPU)
        if not isinstance(verdict, Write):
            return None
        return World(verdict.record, tick=world.tick, is_bound=True)

    def _round(self, world: World, index: int) -> World:
        """One step of it: others may come in between."""
        me, now_ns, rules = world.replicas[index], _now_ns(world), self.rules
        if world.record is None:
            watch, step, record = me.watch, None, None
        else:
            watch = rules.watch_attempt(me.watch, world.record.holders, now_ns)
            step = rules.attempt_step(watch, NODE, UNBOUND, now_ns, DEFAULT_LIMITS)
            record = world.record
        turn = me.turn
        if watch is not None and rules.has_run_out(watch, step, UNBOUND, now_ns, DEFAULT_LIMITS):
            turn = rules.after_loss(turn, now_ns)
        if watch is not None and isinstance(step, Requeue):
            watch = attempt.after_requeue(watch, UNBOUND, now_ns)
        if isinstance(step, Move):
            record = None
        if step is None:
            watch = None
        replicas = (*world.replicas[:index], Replica(watch, turn), *world.replicas[index + 1 :])
        return world._replace(record=record, replicas=replicas)


def _now_ns(world: World) -> int:
    return world.tick * TICK_NS


def _claim(pod: PodRef, world: World) -> Claim:
    call = f"{world.tick:04x}{world.calls:04x}"
    return Claim(f"v1.k.{pod.name}", pod, NODE, (GPU,), Origin.BINDING_WEBHOOK, call)
