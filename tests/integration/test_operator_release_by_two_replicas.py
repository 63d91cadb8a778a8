"""Two replicas on GPUReservation objects: an operator's release at one, seen by the other."""

import asyncio

from controller.binding.operator_release import ReleaseDone
from controller.ledger.restore import Grants
from controller.operations.logged import open_grants
from controller.record import Record
from gpuwarden.audit.record import RecordKind
from tests.builders.bindings import NODE
from tests.builders.logged import logged
from tests.fakes.binding_world import BindingWorld, Replica
from tests.fakes.eventually import eventually
from tests.integration.test_kube_ledger_store import Opened, opened
from tests.unit.controller.binding.test_operator_release import GPU, left_behind, order

__all__ = ["opened"]
"""A fixture of the module that defines it."""


def log_of(replica: Replica) -> list[Record]:
    return [*replica.audit.granted, *replica.sink.log]


async def test_released_at_both_at_once_it_is_free_at_both_and_after_a_restart(
    opened: Opened,
) -> None:
    async with opened() as here, opened() as there:
        await asyncio.gather(here.load(), there.load())
        world = BindingWorld(1, store=here)
        me, other = await world.replica(), await world.replica("b", there)
        mine = await left_behind(world, me)

        async def known_there() -> bool | None:
            await other.reconciler.round()
            found = there.snapshot().get(GPU)
            return None if found is None else found == here.snapshot().get(GPU) or None

        await eventually(known_there, "the other replica knows what is being released")
        done = await asyncio.gather(
            me.releases.release(order(mine)), other.releases.release(order(mine))
        )
        assert ReleaseDone(already=True) in done
        assert ReleaseDone(NODE, "team-a", "train-0") in done

        async def noted() -> bool | None:
            await me.reconciler.round()
            await other.reconciler.round()
            ends = {RecordKind.RESERVATION_RELEASED, RecordKind.RESERVATION_ENDED}
            return all(x.sink.log[-1:] and x.sink.log[-1].kind in ends for x in (me, other)) or None

        await eventually(noted, "both logs have the end")
        for replica in (me, other):
            assert open_grants(logged(*log_of(replica))) == {}

        async def read() -> Grants:
            return open_grants(logged(*log_of(me)))

        again = Replica(world, there, "c", log_replay=read)
        await again.stand()
        assert again.reconciliation.is_firm
        assert there.snapshot().get(GPU) is None
        assert here.snapshot().get(GPU) is None
