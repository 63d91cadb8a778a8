"""Why there is one ledger: replicas with stores of their own give one GPU to two pods."""

import pytest

from gpuwarden.reasons import ReasonCode
from tests.builders.bindings import NODE
from tests.fakes.binding_world import BindingWorld
from tests.fakes.ledger_store import MemoryLedgerStore
from tests.fakes.shared_ledger import KINDS, shared_ledger

GPU = f"GPU-{NODE}-0"


async def test_replicas_with_separate_stores_give_one_gpu_to_two_pods() -> None:
    """No rule of the ledger can prevent it, so the settings refuse such a `store.kind`."""
    world = BindingWorld(1)
    me, other = await world.replica("a"), await world.replica("b", MemoryLedgerStore())
    one = await me.bind(world.pod("one"))
    two = await other.bind(world.pod("two"))
    assert world.lands("one", one)
    assert world.lands("two", two)
    assert world.assigned() == {"one": (GPU,), "two": (GPU,)}


@pytest.mark.parametrize("kind", KINDS)
async def test_replicas_with_one_store_give_it_to_one(kind: str) -> None:
    opened = shared_ledger(kind)
    world = BindingWorld(1, store=opened())
    me, other = await world.replica("a"), await world.replica("b", opened())
    one = await me.bind(world.pod("one"))
    two = await other.bind(world.pod("two"))
    assert [x.code for x in two.refusals] == [ReasonCode.GPU_BUSY]
    assert world.lands("one", one)
    assert world.assigned() == {"one": (GPU,)}
