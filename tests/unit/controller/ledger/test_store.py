from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.ledger.record import GpuRecord, HolderState, PodRef
from controller.ledger.store import (
    MOST_LOST,
    MOST_TRIES,
    Entry,
    LedgerSnapshot,
    LedgerStore,
    LedgerUnavailableError,
    Written,
    change_record,
    demand_successor,
)
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.ledger import OTHER_POD, POD, SHARE, holder, in_state, record
from tests.contracts.ledger_store import LedgerStoreContract
from tests.fakes.ledger_store import FaultyLedgerStore, MemoryLedgerStore, ReplicaLedgerStore

PODS = [POD, OTHER_POD, PodRef("team-a", owner="owner-a")]


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    gpu = draw(st.sampled_from(["GPU-a", "GPU-B", "GPU-c", "MIG-a", "MIG-B"]))
    pods = draw(st.lists(st.sampled_from(PODS), min_size=1, unique_by=lambda x: x.uid))
    parts = sorted((holder(gpu, pod=x) for x in pods), key=lambda x: x.reservation)
    return Entry(record(*parts, gpu=gpu, share=SHARE), draw(st.sampled_from("12345")))


@given(st.lists(st.tuples(entries(), st.booleans())))
def test_a_changed_copy_is_what_would_be_made_again(changes: list[tuple[Entry, bool]]) -> None:
    snapshot, by_key = LedgerSnapshot(), dict[str, Entry]()
    for entry, is_there in changes:
        snapshot = snapshot.with_entry(entry.record.key, entry if is_there else None)
        by_key.pop(entry.record.key, None)
        if is_there:
            by_key[entry.record.key] = entry
    again = LedgerSnapshot.of(by_key.values())
    for name in ("entries", "by_reservation", "by_pod", "mig_on", "held_in"):
        assert dict(getattr(snapshot, name)) == dict(getattr(again, name))


def test_it_answers_by_gpu_by_reservation_and_by_pod() -> None:
    two = [Entry(record(holder("GPU-a", "GPU-B"), gpu=gpu), gpu) for gpu in ("GPU-B", "GPU-a")]
    known = LedgerSnapshot.of(two)
    assert known.get("GPU-b") is known.get("gpu-B") is two[0]
    assert known.get("GPU-c") is None
    assert known.holding("v1.k.uid-0") == (two[1], two[0])
    assert known.holding("v1.k.uid-1") == ()
    assert known.parts_of("uid-0") == tuple((x, holder("GPU-a", "GPU-B")) for x in two[::-1])
    assert known.parts_of("uid-1") == ()
    assert dict(known.mig_on) == {}


def test_of_a_shared_gpu_a_pod_has_its_own_part_alone() -> None:
    shared = Entry(record(holder(), holder(pod=OTHER_POD), share=SHARE), "1")
    assert LedgerSnapshot.of([shared]).parts_of("uid-1") == ((shared, holder(pod=OTHER_POD)),)


def test_a_pod_that_is_not_born_is_found_by_its_reservation_alone() -> None:
    unborn = holder(pod=PodRef("team-a", owner="owner-a"), reservation="v1.k.unborn")
    known = LedgerSnapshot.of([Entry(record(unborn, holder(pod=OTHER_POD)), "1")])
    assert set(known.by_reservation) == {"v1.k.unborn", "v1.k.uid-1"}
    assert set(known.by_pod) == {"uid-1"}


def test_when_a_record_was_made_decides_nothing() -> None:
    made = Entry(record(), "1", "2026-01-02T03:04:05Z")
    assert made == Entry(record(), "1")
    assert Entry(record(), "1").made_at == ""


def test_a_copy_in_which_nothing_changes_is_the_same_object() -> None:
    known = LedgerSnapshot.of([Entry(record(), "1")])
    assert known.with_entry("gpu-a", Entry(record(), "1")) is known
    assert known.with_entry("gpu-b", None) is known


def test_a_namespace_that_holds_nothing_any_more_is_forgotten() -> None:
    known = LedgerSnapshot.of([Entry(record(), "1")])
    assert dict(known.held_in) == {"team-a": 1}
    assert dict(known.with_entry("gpu-a", None).held_in) == {}


def test_it_knows_the_nodes_of_mig_devices() -> None:
    parts = [replace(record(holder(x), gpu=x), node=y) for x, y in (("MIG-b", "n"), ("MIG-A", "n"))]
    known = LedgerSnapshot.of(Entry(x, "1") for x in (*parts, record()))
    assert dict(known.mig_on) == {"n": ("mig-a", "mig-b")}


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (None, in_state(HolderState.EXPIRED), "not made closed"),
        (record(), record(holder("GPU-b"), gpu="GPU-b"), "two GPUs"),
        (record(), replace(record(), node="gpu-2", version=2), "two GPUs or nodes"),
        (record(), record(), "version 1 after 1"),
        (None, replace(record(), version=0), "version: 0"),
    ],
)
def test_what_cannot_follow_is_a_fault_of_the_caller(
    old: GpuRecord | None, new: GpuRecord, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        demand_successor(None if old is None else Entry(old, "1"), new)


def test_what_can_follow_does() -> None:
    first = record()
    demand_successor(None, first)
    demand_successor(Entry(first, "1"), first.moved("v1.k.uid-0", HolderState.EXPIRED))


# --- The store in memory: the contract


class TestMemoryLedgerStore(LedgerStoreContract):
    @pytest.fixture
    def store(self) -> LedgerStore:
        return MemoryLedgerStore()


class TestReplicaLedgerStore(LedgerStoreContract):
    @pytest.fixture
    def store(self) -> LedgerStore:
        return ReplicaLedgerStore(MemoryLedgerStore())


# --- A change of one record


class Told:
    """A change of GPU-a, and what it was told: whoever finds a record counts itself in."""

    def __init__(self, store: LedgerStore) -> None:
        self.store = store
        self.results: list[str] = []
        self.seen: list[int | None] = []

    async def change(self) -> Written | Refusal:
        return await change_record(self.store, "GPU-a", self._decide, self.results.append)

    async def _decide(self, found: GpuRecord | None) -> GpuRecord:
        self.seen.append(None if found is None else found.version)
        if found is None:
            return record()
        part = found.holders[0]
        return found.with_holder(replace(part, answers=part.answers + 1))


class TestAChangeOfOneRecord:
    async def test_it_is_written(self) -> None:
        told = Told(MemoryLedgerStore())
        assert await told.change() == Written(None, record())
        second = await told.change()
        assert isinstance(second, Written)
        assert (second.before, second.record.version) == (record(), 2)
        assert told.results == ["written", "written"]

    async def test_what_is_no_record_is_the_answer_and_nothing_is_written(self) -> None:
        store = MemoryLedgerStore()

        async def nothing_to_do(found: GpuRecord | None) -> GpuRecord | str:
            return f"{found}"

        assert await change_record(store, "GPU-a", nothing_to_do) == "None"
        assert dict(store.snapshot().entries) == {}

    async def test_whoever_was_overtaken_decides_on_what_is_there_then(self) -> None:
        inner = MemoryLedgerStore()
        faulty, other = FaultyLedgerStore(inner), Told(inner)
        for write in range(MOST_TRIES - 1):
            faulty.meanwhile[write] = other.change
        told = Told(faulty)
        assert isinstance(await told.change(), Written)
        assert told.results == ["overtaken"] * (MOST_TRIES - 1) + ["written"]
        assert told.seen == [None, *range(1, MOST_TRIES)]

    async def test_where_others_are_always_faster_it_is_a_conflict(self) -> None:
        inner = MemoryLedgerStore()
        faulty, other = FaultyLedgerStore(inner), Told(inner)
        for write in range(MOST_TRIES):
            faulty.meanwhile[write] = other.change
        told = Told(faulty)
        found = await told.change()
        assert isinstance(found, Refusal)
        assert found.code is ReasonCode.LEDGER_CONFLICT
        assert found.detail == "GPU-a: others changed its record 8 times in a row"
        assert len(told.results) == MOST_TRIES

    async def test_a_lost_answer_is_read_again(self) -> None:
        inner = MemoryLedgerStore()
        told = Told(FaultyLedgerStore(inner, "after", "before", "ok"))
        assert isinstance(await told.change(), Written)
        assert told.seen == [None, 1, 1]
        assert told.results == ["failed", "failed", "written"]

    async def test_too_many_of_them_end_it(self) -> None:
        told = Told(FaultyLedgerStore(MemoryLedgerStore(), *["before"] * 3))
        with pytest.raises(LedgerUnavailableError):
            await told.change()
        assert told.results == ["failed"] * 3

    async def test_only_those_in_a_row_count(self) -> None:
        inner = MemoryLedgerStore()
        other = Told(inner)
        faulty = FaultyLedgerStore(inner, *["before"] * MOST_LOST, "ok", *["before"] * MOST_LOST)
        faulty.meanwhile[MOST_LOST] = other.change
        told = Told(faulty)
        assert isinstance(await told.change(), Written)
        assert told.results.count("failed") == 2 * MOST_LOST

    async def test_no_more_may_be_lost_after_an_answer_than_before(self) -> None:
        inner = MemoryLedgerStore()
        faulty = FaultyLedgerStore(inner, "before", "ok", *["before"] * (MOST_LOST + 1))
        faulty.meanwhile[1] = Told(inner).change
        told = Told(faulty)
        with pytest.raises(LedgerUnavailableError):
            await told.change()
        assert told.results == ["failed", "overtaken", *["failed"] * (MOST_LOST + 1)]

    async def test_a_store_that_cannot_be_read_either_ends_it(self) -> None:
        faulty = FaultyLedgerStore(MemoryLedgerStore())
        faulty.is_dead = True
        told = Told(faulty)
        with pytest.raises(LedgerUnavailableError):
            await told.change()
        assert told.results == ["failed"]
