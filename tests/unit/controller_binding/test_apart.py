"""A confirmed pod that is found unbound was put back: believed after a touch, never by the copy."""

import pytest

from controller.binding.reconciliation import APART_NS, Apart
from controller.ledger.record import HolderState, PodGone, PodSeen, PodSight
from controller.ledger.store import Entry, LedgerSnapshot
from tests.builders.ledger import holder, in_state

PART = holder(state=HolderState.CONFIRMED)
HERE = LedgerSnapshot.of([Entry(in_state(HolderState.CONFIRMED), "1")])
BOUND = PodSeen("uid-0", "gpu-1", PART.reservation, has_ended=False)
UNBOUND = PodSeen("uid-0", "", None, has_ended=False)
OTHER = PodSeen("uid-0", "gpu-1", "v1.k.other", has_ended=False)


def touches(apart: Apart, now_ns: int, snapshot: LedgerSnapshot = HERE) -> list[str]:
    return [x.reservation for x in apart.due(snapshot, now_ns)]


@pytest.mark.parametrize("sight", [UNBOUND, OTHER])
def test_it_counts_as_gone_once_the_api_server_has_said_so(sight: PodSeen) -> None:
    apart = Apart()
    assert apart.sight(PART, sight, 0) is sight
    assert touches(apart, APART_NS - 1) == []
    assert touches(apart, APART_NS) == [PART.reservation]
    assert touches(apart, APART_NS + 1) == []
    assert apart.sight(PART, sight, APART_NS + 1) is sight
    assert touches(apart, 2 * APART_NS) == [PART.reservation]
    apart.touched(PART.reservation, sight)
    assert apart.sight(PART, sight, 2 * APART_NS) == PodGone()
    assert touches(apart, 9 * APART_NS) == []


def test_a_copy_that_lagged_proves_nothing() -> None:
    apart = Apart()
    apart.sight(PART, UNBOUND, 0)
    apart.touched(PART.reservation, BOUND)
    assert apart.sight(PART, UNBOUND, 1) is UNBOUND
    assert apart.sight(PART, BOUND, 2) is BOUND
    assert touches(apart, 9 * APART_NS) == []


def test_bound_again_it_is_itself_again() -> None:
    apart = Apart()
    apart.sight(PART, UNBOUND, 0)
    apart.touched(PART.reservation, UNBOUND)
    assert apart.sight(PART, BOUND, 1) is BOUND
    assert apart.sight(PART, UNBOUND, 2) is UNBOUND


@pytest.mark.parametrize(
    "sight",
    [
        None,
        PodGone(),
        BOUND,
        PodSeen("uid-0", "", PART.reservation, has_ended=False),
        PodSeen("uid-0", "gpu-1", None, has_ended=False),
        PodSeen("uid-0", "", None, has_ended=True),
    ],
    ids=["unknown", "gone", "bound", "waits with its reservation", "kubelet chose", "ended"],
)
def test_others_are_not_touched(sight: PodSight) -> None:
    apart = Apart()
    assert apart.sight(PART, sight, 0) is sight
    apart.touched(PART.reservation, UNBOUND)
    assert touches(apart, 9 * APART_NS) == []


def test_what_the_ledger_no_longer_has_is_forgotten() -> None:
    apart = Apart()
    apart.sight(PART, UNBOUND, 0)
    apart.touched(PART.reservation, UNBOUND)
    assert touches(apart, 0, LedgerSnapshot()) == []
    assert apart.sight(PART, UNBOUND, 1) is UNBOUND
