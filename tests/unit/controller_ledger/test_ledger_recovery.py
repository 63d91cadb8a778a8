"""What a log knows and the ledger does not is held again, and nobody is driven out for it."""

from dataclasses import replace

import pytest

from controller.ledger.claim import LivePod, Taken, Write, claim_on
from controller.ledger.occupancy import (
    Elsewhere,
    LoggedGrant,
    granted_to,
    grants_of,
    held_again,
    lost_grants,
)
from controller.ledger.record import (
    MAX_HOLDERS,
    GpuRecord,
    Holder,
    HolderState,
    PodRef,
    RecordInvalidError,
)
from controller.ledger.store import Entry, LedgerSnapshot
from tests.builders.ledger import CALL, OTHER_POD, POD, SHARE, claim, holder, in_state, record

GRANT = LoggedGrant("GPU-a", "gpu-1", "v1.k.uid-0", POD, ("GPU-a",))
KNOWN = {("gpu-a", GRANT.reservation): GRANT}
HELD = holder(state=HolderState.RELEASING, adopted=True)
LIVE = LivePod(POD, "gpu-1", "v1.k.uid-0", ("GPU-a",))


def snapshot(*records: object) -> LedgerSnapshot:
    return LedgerSnapshot.of(Entry(x, "1") for x in records)  # type: ignore[arg-type] # GpuRecords


@pytest.mark.parametrize("state", [x for x in HolderState if not x.is_end])
def test_what_the_ledger_has_is_not_lost(state: HolderState) -> None:
    assert lost_grants(KNOWN, snapshot(in_state(state)), ()) == ()


def test_a_bound_one_that_is_an_attempt_again_is() -> None:
    bound = replace(GRANT, bound=True)
    known = {("gpu-a", GRANT.reservation): bound}
    for state in HolderState:
        if not state.is_end:
            lost = (bound,) if state is HolderState.PROPOSED else ()
            assert lost_grants(known, snapshot(in_state(state)), ()) == lost
    assert lost_grants(known, snapshot(in_state(HolderState.PROPOSED)), (LIVE,)) == ()
    assert grants_of(snapshot(in_state(HolderState.CONFIRMED)).entries.values()) == known


def test_what_it_lacks_or_gives_to_others_is() -> None:
    assert lost_grants(KNOWN, snapshot(), ()) == (GRANT,)
    assert lost_grants(KNOWN, snapshot(record(holder(pod=OTHER_POD))), ()) == (GRANT,)
    elsewhere = record(holder("GPU-b"), gpu="GPU-b")
    assert lost_grants(KNOWN, snapshot(elsewhere), ()) == (GRANT,)


def test_a_live_pod_is_adopted_instead() -> None:
    assert lost_grants(KNOWN, snapshot(), (LIVE,)) == ()
    assert lost_grants(KNOWN, snapshot(), (replace(LIVE, gpus=("GPU-b",)),)) == (GRANT,)
    assert lost_grants(KNOWN, snapshot(), (replace(LIVE, reservation="v1.k.x"),)) == (GRANT,)


def test_what_the_ledger_had_is_known_in_the_same_words() -> None:
    unborn = holder("GPU-b", pod=PodRef("team-a"), reservation="v1.k.unborn")
    entries = snapshot(record(), record(unborn, gpu="GPU-b")).entries
    assert grants_of(entries.values()) == KNOWN


def test_it_is_held_as_one_that_is_being_released() -> None:
    assert held_again(None, GRANT, CALL) == record(HELD)
    beside = held_again(record(holder(pod=OTHER_POD)), GRANT, CALL)
    assert isinstance(beside, GpuRecord)
    assert beside.holders == (HELD.as_stranger(), holder(pod=OTHER_POD))
    assert beside.version == 2


@pytest.mark.parametrize("owner", [POD.owner, "owner-b", None])
def test_beside_a_share_group_it_is_a_stranger_and_the_group_is_closed(owner: str | None) -> None:
    """Whose pod it was says nothing of the group that it had the GPU in."""
    group = record(holder(pod=OTHER_POD), share=SHARE)
    grant = replace(GRANT, pod=replace(POD, owner=owner))
    beside = held_again(group, grant, CALL)
    assert isinstance(beside, GpuRecord)
    assert beside.share == SHARE
    assert not beside.is_shared_by(SHARE)
    third = claim("GPU-a", pod=replace(POD, uid="uid-2"), share=SHARE)
    assert isinstance(claim_on(group, third, "GPU-a"), Write)
    assert isinstance(claim_on(beside, third, "GPU-a"), Taken)
    alone = beside.moved("v1.k.uid-1", HolderState.REVOKED)
    assert isinstance(claim_on(alone, third, "GPU-a"), Taken)


def test_what_is_held_already_stays_as_it_is() -> None:
    for state in (HolderState.PROPOSED, HolderState.CONFIRMED, HolderState.RELEASING):
        assert held_again(in_state(state), GRANT, CALL) is None


@pytest.mark.parametrize("part", [holder(pod=OTHER_POD), holder(state=HolderState.CONFIRMED)])
def test_what_is_recorded_on_another_node_is_not_held_on_its_own(part: Holder) -> None:
    moved = replace(record(part), node="gpu-2")
    assert held_again(moved, GRANT, CALL) == Elsewhere("gpu-2")
    assert lost_grants(KNOWN, snapshot(moved), ()) == (GRANT,)


def test_what_a_live_pod_says_is_a_grant_of_one_that_was_bound() -> None:
    assert granted_to(LIVE, "GPU-a") == replace(GRANT, bound=True)


def test_an_attempt_that_was_bound_once_does_not_expire() -> None:
    bound = replace(GRANT, bound=True)
    again = held_again(in_state(HolderState.PROPOSED), bound, CALL)
    assert isinstance(again, GpuRecord)
    assert again.holders == (holder(state=HolderState.RELEASING),)
    assert held_again(in_state(HolderState.CONFIRMED), bound, CALL) is None


def test_what_makes_no_record_is_refused() -> None:
    for wrong in (
        replace(GRANT, gpus=("0",)),
        replace(GRANT, gpus=("GPU-b",)),
        replace(GRANT, reservation="No"),
        replace(GRANT, node=""),
    ):
        with pytest.raises(RecordInvalidError):
            held_again(None, wrong, CALL)
    parts = [
        holder(pod=PodRef("team-a", f"p-{n}", f"x-{n:03}", "owner-a")) for n in range(MAX_HOLDERS)
    ]
    with pytest.raises(RecordInvalidError, match="holders"):
        held_again(record(*parts, share=SHARE), GRANT, CALL)
