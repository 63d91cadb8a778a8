from dataclasses import replace

import pytest

from controller.ledger.claim import (
    DEFAULT_LIMITS,
    AttemptWatch,
    Move,
    Step,
    Touch,
    Wait,
    after_touch,
    attempt_step,
    watch_attempt,
)
from controller.ledger.record import Holder, HolderState, Origin, PodGone, PodRef, PodSeen, PodSight
from tests.builders.ledger import holder

S = 1_000_000_000
NOW = 1_000 * S
UNBOUND = PodSeen("uid-0", "", None, has_ended=False)
BOUND = PodSeen("uid-0", "gpu-1", "v1.k.uid-0", has_ended=False)
EARLY = holder(origin=Origin.ADMISSION)
UNBORN = holder(origin=Origin.ADMISSION, pod=PodRef("team-a", "train-0"))


def step(part: Holder, pod: PodSight, age_s: int, touched: PodSeen | PodGone | None = None) -> Step:
    watch = AttemptWatch((part,), NOW, touched, NOW + age_s * S)
    return attempt_step(watch, "gpu-1", pod, NOW + age_s * S, DEFAULT_LIMITS)


@pytest.mark.parametrize("part", [holder(), EARLY])
@pytest.mark.parametrize("age_s", [0, 10_000])
class TestWhatIsSeenCountsAtOnce:
    def test_bound_under_it(self, part: Holder, age_s: int) -> None:
        assert step(part, BOUND, age_s) == Move(HolderState.CONFIRMED, "its pod is bound")

    @pytest.mark.parametrize("pod", [PodGone(), replace(BOUND, has_ended=True)])
    def test_at_its_end(self, part: Holder, age_s: int, pod: PodSight) -> None:
        assert step(part, pod, age_s) == Move(HolderState.RELEASING, "its pod has ended")
        assert step(part, pod, age_s, touched=UNBOUND) == step(part, pod, age_s)

    def test_bound_elsewhere(self, part: Holder, age_s: int) -> None:
        found = step(part, replace(BOUND, node="gpu-2"), age_s)
        assert found == Move(HolderState.REVOKED, "its pod was bound to another node")

    @pytest.mark.parametrize("other", ["v1.k.other", None])
    def test_bound_here_under_another_is_for_the_node_to_tell(
        self, part: Holder, age_s: int, other: str | None
    ) -> None:
        found = step(part, replace(BOUND, reservation=other), age_s)
        assert isinstance(found, Move)
        assert found.to is HolderState.RELEASING


@pytest.mark.parametrize(
    ("part", "pod", "limit_s"),
    [
        (holder(), UNBOUND, 90),
        (holder(), None, 90),
        (EARLY, UNBOUND, 600),
        (EARLY, None, 120),
    ],
)
class TestPatience:
    def test_it_is_left_alone_until_then(self, part: Holder, pod: PodSight, limit_s: int) -> None:
        assert step(part, pod, limit_s - 1) == Wait(NOW + limit_s * S)

    def test_then_the_pod_is_touched(self, part: Holder, pod: PodSight, limit_s: int) -> None:
        assert step(part, pod, limit_s) == Touch()

    def test_the_touch_decides(self, part: Holder, pod: PodSight, limit_s: int) -> None:
        later = max(limit_s, 600)
        assert step(part, pod, later, UNBOUND) == Move(HolderState.EXPIRED, "it was never bound")
        assert step(part, pod, limit_s, BOUND) == Move(HolderState.CONFIRMED, "its pod is bound")
        assert step(part, pod, limit_s, PodGone()) == Move(
            HolderState.RELEASING, "its pod has ended"
        )


def test_a_touch_from_before_its_time_was_over_does_not_count() -> None:
    """A pod that the copy lacked at first is touched then, and once more at its own end."""
    watch = after_touch(AttemptWatch((EARLY,), NOW), UNBOUND, NOW + 121 * S)

    def at(age_s: int) -> Step:
        return attempt_step(watch, "gpu-1", UNBOUND, NOW + age_s * S, DEFAULT_LIMITS)

    assert [at(121), at(599)] == [Wait(NOW + 600 * S)] * 2
    assert at(600) == Touch()
    watch = after_touch(watch, UNBOUND, NOW + 600 * S)
    assert at(601) == Move(HolderState.EXPIRED, "it was never bound")


def test_an_unborn_pods_expires_without_anybody_to_touch() -> None:
    assert step(UNBORN, None, 119) == Wait(NOW + 120 * S)
    assert step(UNBORN, None, 120) == Move(HolderState.EXPIRED, "its pod never came")


def test_any_change_of_an_attempt_begins_the_watch_anew() -> None:
    watch = after_touch(watch_attempt(None, (holder(),), NOW), UNBOUND, NOW + 3)
    assert watch == AttemptWatch((holder(),), NOW, UNBOUND, NOW + 3)
    assert watch_attempt(watch, (holder(),), NOW + 5) is watch
    again = watch_attempt(watch, (holder(answers=2),), NOW + 5)
    assert again == AttemptWatch((holder(answers=2),), NOW + 5, None)
