"""A Binding that is refused for ever after the answer: another pod gets the GPU, in every order.

Each seeded fault must be found, or the world proves nothing.
"""

from typing import Any

import pytest

from controller.binding.turns import Turn
from controller.ledger.attempt import AttemptWatch, Requeue, Wait, attempt_step, has_run_out
from controller.ledger.record import Holder
from tests.model.explorer import FoundError, explore
from tests.model.refused_world import RefusedRules, RefusedSteps

LEAST = 2_000
MOST = 100_000


def test_another_pod_gets_the_gpu_when_the_time_of_the_first_answer_is_over() -> None:
    found = explore(RefusedSteps(RefusedRules()), most=MOST)
    assert found.complete
    assert found.stuck == ()
    assert found.states >= LEAST


def begins_again(
    watch: AttemptWatch | None, parts: tuple[Holder, ...], now_ns: int
) -> AttemptWatch:
    return watch if watch is not None and watch.parts == parts else AttemptWatch(parts, now_ns)


def never_expires(*asked: Any) -> Any:
    found = attempt_step(*asked)
    return Wait(0) if isinstance(found, Requeue) else found


def keeps_its_turn(_turn: Turn | None, _now_ns: int) -> None:
    """The pod comes first again as soon as its attempt has ended."""


def overlooks_the_end(watch: AttemptWatch, step: Any, *more: Any) -> bool:
    """A replica that has not ended the attempt itself does not know that the turn is lost."""
    return step is not None and has_run_out(watch, step, *more)


FAULTS = {
    "each retry begins the time again": RefusedRules(watch_attempt=begins_again),
    "an attempt never expires": RefusedRules(attempt_step=never_expires),
    "who was refused comes first again": RefusedRules(after_loss=keeps_its_turn),
    "only who ends the attempt knows": RefusedRules(has_run_out=overlooks_the_end),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_seeded_fault_is_found(name: str) -> None:
    with pytest.raises(FoundError):
        explore(RefusedSteps(FAULTS[name]), most=MOST)
