"""A log says which reservations have no end; what is no record of ours holds nothing."""

from dataclasses import replace
from typing import Any

import pytest

from controller.binding.records import (
    ReservationChange,
    adoption_record,
    ended_record,
    held_record,
    reservation_record,
)
from controller.binding.use import settled_record
from controller.ledger.claim import LivePod
from controller.ledger.occupancy import LoggedGrant
from controller.ledger.record import HolderState, PodRef
from controller.ledger.release import GivenGpu
from controller.operations.logged import open_grants
from controller.record import Record
from gpuwarden.audit.record import RecordKind
from tests.builders.logged import logged

POD = PodRef("team-a", "train-0", "uid-0")
BOTH = ("GPU-a", "GPU-b")
A, B = (LoggedGrant(x, "gpu-1", "v1.k.x", POD, BOTH) for x in BOTH)
FOUND = {("gpu-a", "v1.k.x"): A, ("gpu-b", "v1.k.x"): B}


def change(state: HolderState, *gpus: str) -> Record:
    made = ReservationChange(POD, "v1.k.x", "gpu-1", gpus or BOTH, state, "why")
    return reservation_record(made)


RESERVED = change(HolderState.PROPOSED)


@pytest.mark.parametrize("state", [x for x in HolderState if not x.is_end])
def test_it_is_open_from_whatever_is_known_first(state: HolderState) -> None:
    bound = state is not HolderState.PROPOSED
    a, b = replace(A, bound=bound), replace(B, bound=bound)
    both = {("gpu-a", "v1.k.x"): a, ("gpu-b", "v1.k.x"): b}
    assert open_grants(logged(change(state))) == both
    part = {**FOUND, ("gpu-a", "v1.k.x"): a}
    assert open_grants(logged(RESERVED, change(state, "GPU-a"))) == part
    assert open_grants(logged(change(state), RESERVED)) == both


@pytest.mark.parametrize("state", [x for x in HolderState if x.is_end])
def test_each_gpu_has_its_end(state: HolderState) -> None:
    assert open_grants(logged(RESERVED, change(state))) == {}
    assert open_grants(logged(RESERVED, change(state, "GPU-a"))) == {("gpu-b", "v1.k.x"): B}
    assert open_grants(logged(change(state))) == {}
    assert open_grants(logged(RESERVED, change(state), RESERVED)) == FOUND


def test_an_end_that_another_replica_brought_about_counts() -> None:
    assert open_grants(logged(RESERVED, ended_record(A))) == {("gpu-b", "v1.k.x"): B}
    other = replace(A, reservation="v1.k.y")
    assert open_grants(logged(RESERVED, ended_record(other))) == FOUND


def test_what_was_written_again_is_open_once_more() -> None:
    alone = LoggedGrant("GPU-a", "gpu-1", "v1.k.x", POD, ("GPU-a",), bound=True)
    assert open_grants(logged(held_record(A))) == {("gpu-a", "v1.k.x"): alone}
    live = LivePod(POD, "gpu-1", "v1.k.x", BOTH)
    assert open_grants(logged(adoption_record(live, "GPU-a"))) == {("gpu-a", "v1.k.x"): alone}


def test_what_kubelet_gave_is_open() -> None:
    given = GivenGpu(POD, "gpu-1", "GPU-a")
    alone = LoggedGrant("GPU-a", "gpu-1", "v1.k.x", POD, ("GPU-a",), bound=True)
    assert open_grants(logged(settled_record(given, "v1.k.x"))) == {("gpu-a", "v1.k.x"): alone}


@pytest.mark.parametrize(
    "wrong",
    [
        {"uid": None},
        {"uid": ""},
        {"uid": 1},
        {"node": ""},
        {"reservation": "No"},
        {"gpus": []},
        {"gpus": ["0"]},
        {"gpus": [1]},
        {"gpus": ["GPU-a", "GPU-A"]},
        {"gpus": {"count": 64, "digest": "x"}},
    ],
    ids=str,
)
def test_what_is_no_reservation_of_a_born_pod_holds_nothing(wrong: dict[str, Any]) -> None:
    odd = replace(RESERVED, refs={**RESERVED.refs, **wrong})
    assert open_grants(logged(odd)) == {}


@pytest.mark.parametrize("subject", ["node/gpu-1", "pod/a", "pod//b", "pod/a/b/c", "pod/a/"])
def test_it_is_about_a_pod(subject: str) -> None:
    assert open_grants(logged(replace(RESERVED, subject=subject))) == {}


def test_other_records_are_none_of_it() -> None:
    assert open_grants(logged(replace(RESERVED, kind=RecordKind.BIND_DECISION))) == {}
