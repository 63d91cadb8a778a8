from dataclasses import replace

import pytest

from controller.ledger.claim import LivePod
from controller.ledger.record import GpuRecord, HolderState, PodSeen
from controller.ledger.release import Drift, DriftKind, Surroundings, sweep, unrecorded_nodes
from controller.ledger.store import Entry, LedgerSnapshot
from tests.builders.ledger import OTHER_POD, POD, SHARE, holder, in_state, record

BOUND = PodSeen("uid-0", "gpu-1", "v1.k.uid-0", has_ended=False)
LIVE = LivePod(POD, "gpu-1", "v1.k.uid-0", ("GPU-a", "GPU-b"))
NOTHING = Surroundings({}, (), {})


def snapshot(*records: GpuRecord) -> LedgerSnapshot:
    return LedgerSnapshot.of(Entry(x, str(n)) for n, x in enumerate(records))


def kinds(world: Surroundings, *records: GpuRecord) -> list[tuple[str, str]]:
    return [(x.kind, x.gpu) for x in sweep(snapshot(*records), world)]


def test_where_all_agree_there_is_nothing() -> None:
    confirmed = [
        record(holder("GPU-a", "GPU-b", state=HolderState.CONFIRMED), gpu=gpu)
        for gpu in ("GPU-a", "GPU-b")
    ]
    world = Surroundings({"uid-0": BOUND}, (LIVE,), {"gpu-a": "gpu-1", "gpu-b": "gpu-1"})
    assert kinds(world, *confirmed) == []
    assert kinds(NOTHING, *confirmed) == []
    assert kinds(NOTHING) == []


def test_a_live_pod_without_its_records_is_adopted_and_its_node_waits() -> None:
    half = record(holder("GPU-a", "GPU-b", state=HolderState.CONFIRMED))
    found = sweep(snapshot(half), replace(NOTHING, live=(LIVE,)))
    assert [x for x in found if x.adopt] == [
        Drift(DriftKind.POD_UNRECORDED, "GPU-b", "gpu-1", "v1.k.uid-0", LIVE)
    ]
    assert (DriftKind.TORN, "GPU-a") in [(x.kind, x.gpu) for x in found]
    assert unrecorded_nodes(found) == {"gpu-1"}
    assert unrecorded_nodes(sweep(snapshot(half), NOTHING)) == frozenset()


def test_a_live_pod_whose_gpu_another_holds_is_unrecorded_too() -> None:
    theirs = record(holder(pod=OTHER_POD))
    world = replace(NOTHING, live=(replace(LIVE, gpus=("GPU-a",)),))
    assert kinds(world, theirs) == [(DriftKind.POD_UNRECORDED, "GPU-a")]
    assert kinds(world, record(holder(), holder(pod=OTHER_POD), share=SHARE)) == []


def test_a_record_on_another_node_is_none_of_the_pods() -> None:
    world = replace(NOTHING, live=(replace(LIVE, gpus=("GPU-a",)),))
    for part in (holder(pod=OTHER_POD), holder(state=HolderState.CONFIRMED)):
        there = replace(record(part), node="gpu-2")
        found = sweep(snapshot(there), world)
        assert (DriftKind.POD_UNRECORDED, "GPU-a") in [(x.kind, x.gpu) for x in found]
        assert unrecorded_nodes(found) == {"gpu-1"}


def test_a_torn_attempt_is_none() -> None:
    assert kinds(NOTHING, record(holder("GPU-a", "GPU-b"))) == []


@pytest.mark.parametrize(
    ("pod", "is_drift"),
    [
        (BOUND, False),
        (replace(BOUND, node="gpu-2"), True),
        (replace(BOUND, node=""), True),
        (replace(BOUND, reservation="v1.k.other"), True),
    ],
)
def test_a_confirmed_pod_is_where_the_ledger_says(pod: PodSeen, is_drift: bool) -> None:
    world = replace(NOTHING, pods={"uid-0": pod})
    found = kinds(world, in_state(HolderState.CONFIRMED))
    assert found == ([(DriftKind.POD_MISMATCH, "GPU-a")] if is_drift else [])


@pytest.mark.parametrize(
    ("pod", "is_drift"),
    [
        (BOUND, True),
        (replace(BOUND, has_ended=True), False),
        (replace(BOUND, node="gpu-2"), False),
    ],
)
def test_what_is_released_is_not_alive(pod: PodSeen, is_drift: bool) -> None:
    world = replace(NOTHING, pods={"uid-0": pod})
    found = kinds(world, in_state(HolderState.RELEASING))
    assert found == ([(DriftKind.POD_ALIVE, "GPU-a")] if is_drift else [])


def test_two_holders_are_drift_unless_they_share() -> None:
    parts = (holder(), holder(pod=OTHER_POD, adopted=True))
    assert kinds(NOTHING, record(*parts)) == [(DriftKind.HELD_TWICE, "GPU-a")]
    assert kinds(NOTHING, record(*parts, share=SHARE)) == []
    for stranger in (replace(OTHER_POD, owner=None), replace(OTHER_POD, namespace="team-b")):
        beside = record(holder(), holder(pod=stranger, adopted=True), share=SHARE)
        assert kinds(NOTHING, beside) == [(DriftKind.HELD_TWICE, "GPU-a")]


def test_a_gpu_that_another_node_shows_has_moved() -> None:
    world = replace(NOTHING, gpu_nodes={"gpu-a": "gpu-2"})
    assert kinds(world, record()) == [(DriftKind.GPU_MOVED, "GPU-a")]
