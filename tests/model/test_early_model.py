"""Every state of small worlds of early reservations: none is wrong, none is a dead end.

Each seeded fault must be found, or the worlds prove nothing.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from controller.ledger.attempt import AttemptWatch, Move, Requeue, attempt_step
from controller.ledger.claim import bound_to_pod
from controller.ledger.record import GpuRecord, Holder, HolderState, PodRef
from tests.model.early_world import EarlyPlan, EarlyRules, EarlySteps
from tests.model.explorer import FoundError, explore

PLANS = {
    "two pods through the binding webhook": EarlyPlan((False, False)),
    "two pods that name their node": EarlyPlan((True, True)),
    "one of each": EarlyPlan((False, True)),
    "three creations": EarlyPlan((True, False, True), answers=1),
}
LEAST = {
    "two pods through the binding webhook": 71_000,
    "two pods that name their node": 4_900,
    "one of each": 26_000,
    "three creations": 220_000,
}
"""States of each world at least: one that shrinks shows less than it did."""
MOST = 500_000


@pytest.mark.parametrize("name", PLANS)
def test_no_state_is_wrong_and_none_is_a_dead_end(name: str) -> None:
    found = explore(EarlySteps(PLANS[name], EarlyRules()), most=MOST)
    assert found.complete
    assert found.stuck == ()
    assert found.states >= LEAST[name]


def gives_it_to_a_second_pod(record: GpuRecord, reservation: str, pod: PodRef) -> Any:
    mine = record.holder(reservation)
    if mine is None or mine.state is not HolderState.PROPOSED:
        return bound_to_pod(record, reservation, pod)
    return record.with_holder(replace(mine, pod=pod, answers=mine.answers + 1))


def expires_without_requeue(*asked: Any) -> Any:
    found = attempt_step(*asked)
    return Move(HolderState.EXPIRED, "") if isinstance(found, Requeue) else found


def forgets_that_it_was_given(
    watch: AttemptWatch | None, parts: tuple[Holder, ...], now_ns: int
) -> AttemptWatch:
    return watch or AttemptWatch(parts, now_ns)


FAULTS: dict[str, EarlyRules] = {
    "a reservation is given to a second pod": EarlyRules(bound_to_pod=gives_it_to_a_second_pod),
    "that there is no such pod yet counts": EarlyRules(looks_for_unseen=True),
    "an attempt expires without a requeue": EarlyRules(attempt_step=expires_without_requeue),
    "an expiry does not notice that it was given to a pod": EarlyRules(
        watch_attempt=forgets_that_it_was_given
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_seeded_fault_is_found(name: str) -> None:
    def find() -> None:
        for plan in PLANS.values():
            explore(EarlySteps(plan, FAULTS[name]), most=MOST, looks_for_stuck=False)

    with pytest.raises(FoundError):
        find()


STUCK: dict[str, Callable[[], EarlyRules]] = {
    "an unborn pod's never expires": lambda: EarlyRules(attempt_step=_never_expires),
}


def _never_expires(*asked: Any) -> Any:
    found = attempt_step(*asked)
    is_expiry = isinstance(found, Move) and found.to is HolderState.EXPIRED
    return None if is_expiry else found


@pytest.mark.parametrize("name", STUCK)
def test_what_is_lost_for_ever_is_found(name: str) -> None:
    assert explore(EarlySteps(PLANS["one of each"], STUCK[name]()), most=MOST).stuck
