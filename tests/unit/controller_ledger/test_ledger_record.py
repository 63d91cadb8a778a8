from dataclasses import replace

import pytest

from controller.ledger.record import (
    ENDS,
    MAX_GPUS,
    MAX_HOLDERS,
    MOVES,
    GpuRecord,
    HolderState,
    MoveRefusedError,
    PodRef,
    RecordInvalidError,
    demand_gpus,
    demand_move,
    in_claiming_order,
    key_of,
)
from tests.builders.ledger import OTHER_POD, POD, SHARE, holder, in_state, record

LISTED = {
    ("Proposed", "Confirmed"),
    ("Proposed", "Releasing"),
    ("Proposed", "Expired"),
    ("Proposed", "Revoked"),
    ("Confirmed", "Releasing"),
    ("Releasing", "Released"),
}


@pytest.mark.parametrize("state", HolderState)
@pytest.mark.parametrize("to", HolderState)
def test_only_listed_moves_are_made(state: HolderState, to: HolderState) -> None:
    assert ((state, to) in MOVES) == ((state.value, to.value) in LISTED)
    if (state, to) in MOVES:
        demand_move(state, to)
        assert in_state(state).moved("v1.k.uid-0", to).holders[0].state is to
    else:
        with pytest.raises(MoveRefusedError, match=f"from {state} to {to}"):
            in_state(state).moved("v1.k.uid-0", to)


def test_nothing_leads_out_of_an_end() -> None:
    assert {state for state in HolderState if state.is_end} == ENDS
    assert not [x for x in MOVES if x[0].is_end]


def test_each_change_is_the_next_version() -> None:
    first = record()
    second = first.moved("v1.k.uid-0", HolderState.CONFIRMED)
    assert (first.version, second.version) == (1, 2)
    assert first.holders[0].state is HolderState.PROPOSED


def test_the_last_end_closes_a_record_and_an_earlier_one_leaves_the_others() -> None:
    shared = record(holder(), holder(pod=OTHER_POD), share=SHARE)
    one = shared.moved("v1.k.uid-0", HolderState.REVOKED)
    assert [x.reservation for x in one.holders] == ["v1.k.uid-1"]
    assert not one.is_closed
    closed = one.moved("v1.k.uid-1", HolderState.EXPIRED)
    assert closed.is_closed
    assert closed.holders[0].state is HolderState.EXPIRED
    closed.demand_valid()


def test_a_move_of_an_unknown_reservation_is_an_error() -> None:
    with pytest.raises(KeyError, match="v1\\.k\\.other"):
        record().moved("v1.k.other", HolderState.CONFIRMED)


def test_parts_are_found_by_reservation_and_by_pod() -> None:
    shared = record(holder(), holder(pod=OTHER_POD), share=SHARE)
    assert shared.holder("v1.k.uid-1") == shared.of_pod("uid-1") == shared.holders[1]
    assert shared.holder("v1.k.uid-2") is None
    assert shared.of_pod("uid-2") is None


def test_claiming_order_and_names_go_by_lower_case() -> None:
    assert in_claiming_order(("GPU-b", "GPU-A", "MIG-a")) == ("GPU-A", "GPU-b", "MIG-a")
    assert key_of("GPU-8A") == "gpu-8a"
    assert record(gpu="GPU-A").key == "gpu-a"


@pytest.mark.parametrize(
    "gpus",
    [
        (),
        ("GPU-b", "GPU-a"),
        ("GPU-a", "GPU-a"),
        ("GPU-A", "GPU-a"),
        ("0",),
        ("GPU-a/1/0",),
        ("GPU-a.",),
        ("GPU-" + "a" * 249,),
        tuple(f"GPU-{n:03}" for n in range(MAX_GPUS + 1)),
    ],
)
def test_gpus_are_uuids_in_order(gpus: tuple[str, ...]) -> None:
    with pytest.raises(RecordInvalidError, match="gpus: "):
        demand_gpus(gpus)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (record(holder(reservation="Not one")), "reservation"),
        (record(holder(pod=replace(POD, namespace=""))), "namespace"),
        (record(holder(answers=0)), "answers"),
        (record(holder(call="x")), "call"),
        (record(holder("GPU-b")), "does not name GPU-a"),
        (record(holder(), holder(pod=OTHER_POD)), "share group"),
        (record(holder(pod=OTHER_POD), holder(), share=SHARE), "sorted"),
        (record(holder(), holder(), share=SHARE), "sorted"),
        (
            record(holder(state=HolderState.EXPIRED), holder(pod=OTHER_POD), share=SHARE),
            "an ended one",
        ),
        (replace(record(), holders=()), "holders: 0"),
        (
            record(
                *(holder(pod=PodRef("n", uid=f"u-{n:03}")) for n in range(MAX_HOLDERS + 1)),
                share=SHARE,
            ),
            "holders: 65",
        ),
        (replace(record(), node=""), "node"),
        (replace(record(), version=0), "version"),
        (replace(record(), gpu="1"), "gpus"),
    ],
)
def test_records_of_nobody_are_refused(wrong: GpuRecord, text: str) -> None:
    with pytest.raises(RecordInvalidError, match=text):
        wrong.demand_valid()


def test_an_adopted_pod_may_stand_beside_a_holder() -> None:
    record(holder(), holder(pod=OTHER_POD, adopted=True)).demand_valid()
