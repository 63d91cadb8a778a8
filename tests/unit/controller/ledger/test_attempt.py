from dataclasses import replace

import pytest

from controller.ledger.attempt import (
    DEFAULT_LIMITS,
    AttemptWatch,
    Move,
    Requeue,
    Wait,
    attempt_step,
    move_of_part,
)
from controller.ledger.record import HolderState, Origin, PodRef, PodSeen
from tests.builders.ledger import holder

S = 1_000_000_000
NOW = 1_000 * S
UNBOUND = PodSeen("uid-0", "", None, has_ended=False)
BOUND = PodSeen("uid-0", "gpu-1", "v1.k.uid-0", has_ended=False)


@pytest.mark.parametrize(
    ("seen", "to"),
    [
        (BOUND, HolderState.CONFIRMED),
        (replace(BOUND, node="gpu-2"), HolderState.REVOKED),
        (replace(BOUND, reservation=None), HolderState.RELEASING),
    ],
)
def test_a_pod_that_is_seen_bound_is_bound_whatever_its_requeue_showed(
    seen: PodSeen, to: HolderState
) -> None:
    watch = AttemptWatch((holder(),), NOW, UNBOUND, NOW + 90 * S)
    step = attempt_step(watch, "gpu-1", seen, NOW + 100 * S, DEFAULT_LIMITS)
    assert isinstance(step, Move)
    assert step.to is to


def test_a_pod_that_was_recorded_for_its_first_gpu_alone_is_requeued() -> None:
    """GPUs become a pod's in claiming order. Whoever does that may die in between."""
    first = holder("GPU-a", "GPU-b", origin=Origin.ADMISSION)
    second = replace(first, pod=PodRef("team-a", "train-0"))
    watch = AttemptWatch((first, second), NOW)

    def at(age_s: int) -> object:
        return attempt_step(watch, "gpu-1", None, NOW + age_s * S, DEFAULT_LIMITS)

    assert at(119) == Wait(NOW + 120 * S)
    assert at(120) == Requeue()


@pytest.mark.parametrize("to", HolderState)
@pytest.mark.parametrize("uid", [None, "uid-0"])
def test_only_the_end_of_a_pod_that_a_part_does_not_name_is_none_of_its_own(
    to: HolderState, uid: str | None
) -> None:
    move = Move(to, "cause", "sha256:1")
    part = holder("GPU-a", "GPU-b", pod=PodRef("team-a", None, uid))
    unborn = uid is None and to is HolderState.RELEASING
    expected = Move(HolderState.EXPIRED, "its pod never came") if unborn else move
    assert move_of_part(move, part) == expected
