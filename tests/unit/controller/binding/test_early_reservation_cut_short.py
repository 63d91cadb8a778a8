"""An early reservation whose giving stops between two GPUs: in the end all are free again.

The replica that gives it dies at each of its steps in turn, and for each of them the one that sees
to what is left dies at each of its own.
"""

import random

import pytest

from tests.builders.admitted_pods import Document
from tests.fakes.binding_world import BindingWorld
from tests.fakes.mortal_replica import MortalReplica
from tests.fakes.pod_creation import EARLY, Creation, early_pod, owned

GPUS = 3
GIVING = (
    *(f"proposed {n} of 3 {moment}" for n in (1, 2, 3) for moment in ("asked", "done")),
    "audit asked",
    "audit durable",
)
MOST_ROUNDS = 12


async def mortal(world: BindingWorld, name: str) -> MortalReplica:
    made = MortalReplica(world, world.store, name, random.Random(0))  # noqa: S311 - repeatable
    await made.stand()
    world.report()
    return made


def asking() -> Document:
    return owned(early_pod(EARLY | {"gpuwarden.dev/gpu-count": str(GPUS)}), "owner-a")


async def broken_off(world: BindingWorld, step: str) -> None:
    """The pod is never stored: nobody answers the API server."""
    giver = await mortal(world, "a")
    api = Creation(world, giver, giver)
    made = await api.mutated(asking())
    assert made is not None
    giver.life.dies_at = {step}
    assert await giver.life.doing(api.stored(made, "train-0")) is None
    assert giver.life.last == step
    await giver.buried()


async def come_to_rest(world: BindingWorld, dies_at: set[str]) -> set[str]:
    """Steps that were taken until nothing is held any more; whoever dies is replaced."""
    left, taken = set(dies_at), set[str]()
    reconciler = await mortal(world, "b")
    for _ in range(MOST_ROUNDS):
        reconciler.life.dies_at = left
        await reconciler.look_after()
        taken |= reconciler.life.taken
        if reconciler.life.is_over:
            left.discard(reconciler.life.last)
            await reconciler.buried()
            reconciler = await mortal(world, "c")
        if not world.states():
            break
        world.report(after_s=125)
    assert world.states() == {}
    assert left == set()
    await reconciler.buried()
    return taken


@pytest.mark.parametrize("step", GIVING)
async def test_whoever_dies_when_nothing_is_held_for_ever(step: str) -> None:
    world = BindingWorld(GPUS)
    await broken_off(world, step)
    steps = await come_to_rest(world, set())
    assert "requeue done" in steps or step == GIVING[0]
    for deadly in sorted(steps):
        world = BindingWorld(GPUS)
        await broken_off(world, step)
        await come_to_rest(world, {deadly})
    me = await world.replica("d")
    assert await Creation(world, me, me).create(asking(), "train-1")
