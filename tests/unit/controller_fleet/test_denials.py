"""A denial is written, or kept until it can be; the first one stands."""

from dataclasses import replace

from controller.fleet.enrollment import (
    AUTOMATIC,
    Denial,
    EnrollmentRecord,
    EnrollmentSnapshot,
    EnrollmentUnavailableError,
    MemoryEnrollmentStore,
    PinnedGpu,
)
from controller.fleet.quarantine import Denials

FIRST = Denial("INVENTORY_CHANGED", "swapped", AUTOMATIC, 1)
SECOND = Denial("NODE_DENIED", "smells", "spiffe://x/operator/o", 2)
PINNED = EnrollmentRecord("gpu-1", gpus=(PinnedGpu("GPU-a"),))


class Store(MemoryEnrollmentStore):
    """Loses `losses` races and is gone while `gone`."""

    losses = 0
    gone = False

    async def create_if_absent(self, record: EnrollmentRecord) -> bool:
        return self._lets() and await super().create_if_absent(record)

    async def compare_and_set(self, old: EnrollmentRecord, new: EnrollmentRecord) -> bool:
        return self._lets() and await super().compare_and_set(old, new)

    def _lets(self) -> bool:
        if self.gone:
            raise EnrollmentUnavailableError("gone")
        self.losses -= 1
        return self.losses < 0


async def test_pins_stay_and_a_node_without_record_gets_one() -> None:
    store = Store([PINNED])
    denials = Denials(store)
    assert await denials.deny("gpu-1", FIRST)
    assert await denials.deny("gpu-2", SECOND)
    assert store.snapshot().records["gpu-1"] == replace(PINNED, denial=FIRST)
    assert store.snapshot().records["gpu-2"] == EnrollmentRecord("gpu-2", denial=SECOND)
    assert denials.unwritten == {}


async def test_the_first_denial_stands() -> None:
    store = Store([replace(PINNED, denial=FIRST)])
    denials = Denials(store)
    assert await denials.deny("gpu-1", SECOND)
    assert store.snapshot().records["gpu-1"].denial == FIRST


async def test_a_denial_that_was_lifted_elsewhere_does_not_stand_in_for_a_new_one() -> None:
    """What this replica knows is older than the other's act."""

    class Stale(Store):
        stale = True

        def snapshot(self) -> EnrollmentSnapshot:
            return before if self.stale else super().snapshot()

        async def compare_and_set(self, old: EnrollmentRecord, new: EnrollmentRecord) -> bool:
            self.stale = False
            return await super().compare_and_set(old, new)

    denied = replace(PINNED, denial=FIRST)
    before = EnrollmentSnapshot.of([denied])
    store = Stale([PINNED])
    assert await Denials(store).deny("gpu-1", SECOND)
    assert store.snapshot().records["gpu-1"].denial == SECOND


async def test_races_are_lost_a_few_times_only() -> None:
    store = Store([PINNED])
    denials = Denials(store)
    store.losses = 7
    assert await denials.deny("gpu-1", FIRST)
    store = Store([PINNED])
    denials = Denials(store)
    store.losses = 8
    assert not await denials.deny("gpu-1", FIRST)
    assert dict(denials.unwritten) == {"gpu-1": FIRST}


async def test_what_could_not_be_written_is_tried_again() -> None:
    store = Store([PINNED])
    denials = Denials(store)
    store.gone = True
    assert not await denials.deny("gpu-1", FIRST)
    assert not await denials.deny("gpu-1", SECOND)
    await denials.retry()
    assert dict(denials.unwritten) == {"gpu-1": FIRST}
    store.gone = False
    await denials.retry()
    assert store.snapshot().records["gpu-1"].denial == FIRST
    assert denials.unwritten == {}


async def test_what_an_operator_decided_meanwhile_is_not_undone() -> None:
    store = Store([PINNED])
    denials = Denials(store)
    store.gone = True
    await denials.deny("gpu-1", FIRST)
    denials.forget("gpu-1", SECOND)
    assert denials.unwritten
    denials.forget("gpu-1", FIRST)
    store.gone = False
    await denials.retry()
    assert store.snapshot().records["gpu-1"].denial is None
