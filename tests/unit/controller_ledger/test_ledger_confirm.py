from dataclasses import replace

import pytest

from controller.ledger.claim import Confirmed, finalize_on
from controller.ledger.record import GpuRecord, HolderState, PodGone, PodSeen, PodSight
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.ledger import OTHER_POD, holder, in_state, record

BOUND = PodSeen("uid-0", "gpu-1", "v1.k.uid-0", has_ended=False)
ID = "v1.k.uid-0"


def finalized(
    found: GpuRecord | None, pod: PodSight = BOUND, uid: str = "uid-0", *, authentic: bool = True
) -> GpuRecord | Confirmed | ReasonCode:
    answer = finalize_on(found, ID, pod, uid, authentic=authentic)
    return answer.code if isinstance(answer, Refusal) else answer


def test_an_attempt_of_a_bound_pod_is_confirmed() -> None:
    assert finalized(record()) == record().moved(ID, HolderState.CONFIRMED)


def test_again_is_no_error() -> None:
    assert finalized(in_state(HolderState.CONFIRMED)) == Confirmed()


@pytest.mark.parametrize(
    ("found", "authentic", "code"),
    [
        (None, False, ReasonCode.RESERVATION_UNKNOWN),
        (None, True, ReasonCode.RESERVATION_EXPIRED),
        (record(holder(pod=OTHER_POD)), False, ReasonCode.RESERVATION_CONFLICT),
        (record(holder(pod=OTHER_POD)), True, ReasonCode.RESERVATION_EXPIRED),
        (in_state(HolderState.RELEASING), True, ReasonCode.RESERVATION_EXPIRED),
    ],
)
def test_what_the_ledger_has_against_it(
    found: GpuRecord | None, authentic: bool, code: ReasonCode
) -> None:
    assert finalized(found, authentic=authentic) is code


@pytest.mark.parametrize(
    ("pod", "code"),
    [
        (None, ReasonCode.RESERVATION_CONFLICT),
        (PodGone(), ReasonCode.RESERVATION_EXPIRED),
        (replace(BOUND, has_ended=True), ReasonCode.RESERVATION_EXPIRED),
        (replace(BOUND, node=""), ReasonCode.RESERVATION_CONFLICT),
        (replace(BOUND, node="gpu-2"), ReasonCode.RESERVATION_CONFLICT),
        (replace(BOUND, uid="uid-1"), ReasonCode.RESERVATION_CONFLICT),
        (replace(BOUND, reservation="v1.k.other"), ReasonCode.RESERVATION_CONFLICT),
    ],
)
@pytest.mark.parametrize("state", [HolderState.PROPOSED, HolderState.CONFIRMED])
def test_what_the_pod_has_against_it(state: HolderState, pod: PodSight, code: ReasonCode) -> None:
    assert finalized(in_state(state), pod) is code


def test_another_pods_word_does_not_count() -> None:
    found = finalized(record(), replace(BOUND, uid="uid-1"), "uid-1")
    assert found is ReasonCode.RESERVATION_CONFLICT
    assert finalized(record(), BOUND, "uid-1") is ReasonCode.RESERVATION_CONFLICT
