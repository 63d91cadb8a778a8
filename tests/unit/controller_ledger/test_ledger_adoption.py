from dataclasses import replace

import pytest

from controller.ledger.claim import LivePod, adopted_on
from controller.ledger.record import HolderState, RecordInvalidError, ShareGroup
from tests.builders.ledger import CALL, OTHER_POD, POD, SHARE, holder, in_state, record

LIVE = LivePod(POD, "gpu-1", "v1.k.uid-0", ("GPU-a",))
PART = holder(state=HolderState.CONFIRMED, adopted=True)


def test_a_lost_record_is_made_again_as_confirmed() -> None:
    assert adopted_on(None, LIVE, "GPU-a", CALL) == record(PART)
    shared = adopted_on(None, replace(LIVE, share=SHARE), "GPU-a", CALL)
    assert shared == record(PART, share=SHARE)


def test_nobody_is_driven_out() -> None:
    theirs = record(holder(pod=OTHER_POD))
    both = adopted_on(theirs, LIVE, "GPU-a", CALL)
    assert both is not None
    assert both.holders == (PART, theirs.holders[0])
    both.demand_valid()


@pytest.mark.parametrize("share", [None, replace(SHARE, entry="gpu-1:0,1")])
def test_beside_a_share_group_only_its_own_are_of_it(share: ShareGroup | None) -> None:
    """A pod of the same owner may have had the GPU alone, or in another group."""
    group = record(holder(pod=OTHER_POD), share=SHARE)
    own = adopted_on(group, replace(LIVE, share=SHARE), "GPU-a", CALL)
    assert own is not None
    assert own.is_shared_by(SHARE)
    assert own.holders[0] == PART
    other = adopted_on(group, replace(LIVE, share=share), "GPU-a", CALL)
    assert other is not None
    assert not other.is_shared_by(SHARE)
    assert (other.share, other.holders[0]) == (SHARE, PART.as_stranger())


def test_an_attempt_is_confirmed_and_the_rest_stays() -> None:
    assert adopted_on(record(), LIVE, "GPU-a", CALL) == record().moved(
        "v1.k.uid-0", HolderState.CONFIRMED
    )
    for state in (HolderState.CONFIRMED, HolderState.RELEASING):
        assert adopted_on(in_state(state), LIVE, "GPU-a", CALL) is None


def test_no_part_is_added_to_a_record_of_another_node() -> None:
    """That node's reports would end it while the pod runs here."""
    for part in (holder(pod=OTHER_POD), holder()):
        there = replace(record(part), node="gpu-2")
        assert adopted_on(there, LIVE, "GPU-a", CALL) is None


def test_only_uuids_are_adopted() -> None:
    with pytest.raises(RecordInvalidError, match="gpus"):
        adopted_on(None, replace(LIVE, gpus=("0",)), "0", CALL)
