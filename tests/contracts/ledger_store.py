"""What every LedgerStore must do. A store's test module subclasses this and gives `store`."""

import asyncio
from dataclasses import replace

import pytest

from controller.ledger.claim import Claimant, Claimed
from controller.ledger.record import HolderState, Origin, PodRef, RecordInvalidError
from controller.ledger.store import Entry, LedgerSnapshot, LedgerStore
from tests.builders.ledger import OTHER_POD, POD, SHARE, claim, holder, record

ID = "v1.k.uid-0"
GPUS = tuple(f"GPU-{n}" for n in range(4))
FULL = record(
    holder("GPU-A", "MIG-b", state=HolderState.CONFIRMED, answers=3),
    holder("GPU-A", pod=OTHER_POD, origin=Origin.ADMISSION, restored=True),
    holder("GPU-A", pod=PodRef("team-a"), reservation="v1.k.unborn", state=HolderState.PROPOSED),
    gpu="GPU-A",
    share=SHARE,
)


def entry(store: LedgerStore, gpu: str = "GPU-a") -> Entry:
    found = store.snapshot().get(gpu)
    assert found is not None
    return found


class LedgerStoreContract:
    @pytest.fixture
    def store(self) -> LedgerStore:
        raise NotImplementedError

    async def test_it_starts_empty_and_fresh(self, store: LedgerStore) -> None:
        snapshot = await store.load()
        assert dict(snapshot.entries) == {}
        assert snapshot.fresh_until_ns > 0
        assert await store.read("GPU-a") is None

    async def test_every_field_comes_back(self, store: LedgerStore) -> None:
        assert await store.compare_and_set(None, FULL)
        assert entry(store, "GPU-A").record == FULL
        assert (await store.load()).entries["gpu-a"].record == FULL
        read = await store.read("GPU-A")
        assert read == entry(store, "GPU-A")

    async def test_a_second_creation_changes_nothing(self, store: LedgerStore) -> None:
        assert await store.compare_and_set(None, record())
        before = entry(store)
        assert not await store.compare_and_set(None, record(holder(pod=OTHER_POD)))
        assert entry(store) == before

    async def test_a_change_wants_the_present_entry(self, store: LedgerStore) -> None:
        await store.compare_and_set(None, record())
        first = entry(store)
        confirmed = first.record.moved(ID, HolderState.CONFIRMED)
        assert await store.compare_and_set(first, confirmed)
        assert entry(store).record == confirmed
        assert entry(store).revision != first.revision
        assert not await store.compare_and_set(first, first.record.moved(ID, HolderState.EXPIRED))
        assert entry(store).record == confirmed

    async def test_a_closed_record_is_gone(self, store: LedgerStore) -> None:
        await store.compare_and_set(None, record())
        first = entry(store)
        assert await store.compare_and_set(first, first.record.moved(ID, HolderState.EXPIRED))
        assert store.snapshot().get("GPU-a") is None
        assert await store.read("GPU-a") is None
        assert dict((await store.load()).entries) == {}
        assert dict(store.snapshot().by_pod) == {}

    async def test_what_is_gone_can_be_made_again_and_is_another(self, store: LedgerStore) -> None:
        """The record is equal, the entry is not: a decision on the first does not hit it."""
        await store.compare_and_set(None, record())
        first = entry(store)
        closed = first.record.moved(ID, HolderState.EXPIRED)
        await store.compare_and_set(first, closed)
        assert not await store.compare_and_set(first, closed)
        assert await store.compare_and_set(None, record())
        assert entry(store).record == first.record
        assert entry(store).revision != first.revision
        assert not await store.compare_and_set(first, closed)
        assert entry(store).record == record()

    async def test_a_change_does_not_create(self, store: LedgerStore) -> None:
        await store.compare_and_set(None, record())
        first = entry(store)
        await store.compare_and_set(first, first.record.moved(ID, HolderState.EXPIRED))
        assert not await store.compare_and_set(first, first.record.moved(ID, HolderState.CONFIRMED))
        assert await store.read("GPU-a") is None

    async def test_what_cannot_follow_is_refused(self, store: LedgerStore) -> None:
        await store.compare_and_set(None, record())
        with pytest.raises(ValueError, match="version 1 after 1"):
            await store.compare_and_set(entry(store), record())
        with pytest.raises(RecordInvalidError, match="node"):
            await store.compare_and_set(None, replace(record(), node=""))

    async def test_of_writers_at_the_same_time_one_wins(self, store: LedgerStore) -> None:
        pods = [PodRef("team-a", uid=f"uid-{n:02}") for n in range(20)]
        wins = await asyncio.gather(
            *(store.compare_and_set(None, record(holder(pod=x))) for x in pods)
        )
        assert wins.count(True) == 1
        first = entry(store)
        assert first.record.holders[0].pod == pods[wins.index(True)]
        name = first.record.holders[0].reservation
        moved = [HolderState.CONFIRMED, HolderState.RELEASING, HolderState.REVOKED] * 3
        wins = await asyncio.gather(
            *(store.compare_and_set(first, first.record.moved(name, x)) for x in moved)
        )
        assert wins.count(True) == 1

    async def test_others_records_are_in_nobodys_way(self, store: LedgerStore) -> None:
        many = [record(holder(x, pod=POD), gpu=x) for x in GPUS]
        assert all(await asyncio.gather(*(store.compare_and_set(None, x) for x in many)))
        snapshot = await store.load()
        assert {x.record.gpu for x in snapshot.entries.values()} == set(GPUS)
        assert snapshot.by_pod["uid-0"] == tuple(x.lower() for x in GPUS)

    async def test_an_old_snapshot_stays_what_it_was(self, store: LedgerStore) -> None:
        before = await store.load()
        await store.compare_and_set(None, record())
        assert dict(before.entries) == dict(LedgerSnapshot().entries)

    async def test_many_claims_at_once_give_each_gpu_to_one(self, store: LedgerStore) -> None:
        """All-or-nothing on the store itself: winners have all, losers nothing."""
        await store.load()
        requirements = [GPUS[n % 3 : n % 3 + 2] for n in range(12)]
        claims = [
            claim(*gpus, pod=replace(POD, uid=f"uid-{n:02}"), call=f"{n:08x}")
            for n, gpus in enumerate(requirements)
        ]
        answers = await asyncio.gather(*(Claimant(store).claim(x) for x in claims))
        won = {x.claim.reservation: x.claim.gpus for x in answers if isinstance(x, Claimed)}
        entries = (await store.load()).entries.values()
        held: dict[str, list[str]] = {}
        for each in sorted(entries, key=lambda x: x.record.key):
            assert len(each.record.holders) == 1
            held.setdefault(each.record.holders[0].reservation, []).append(each.record.gpu)
        assert {key: tuple(gpus) for key, gpus in held.items()} == won
        assert won
