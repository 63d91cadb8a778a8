from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.ledger.record import GpuRecord, HolderState, PodRef
from controller.ledger.store import Entry, LedgerSnapshot, LedgerStore, demand_successor
from tests.builders.ledger import OTHER_POD, POD, SHARE, holder, in_state, record
from tests.contracts.ledger_store import LedgerStoreContract
from tests.fakes.ledger_store import MemoryLedgerStore, ReplicaLedgerStore

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
    for name in ("entries", "by_reservation", "by_pod", "mig_on"):
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
