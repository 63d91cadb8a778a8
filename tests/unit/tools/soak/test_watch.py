"""Where a soak is, on a clock of its own."""

import pytest

from tests.soak.report import Stuck
from tests.soak.watch import BIND, LINE_S, SLACK_S, START, Watch, during, longest_s


class Scene:
    def __init__(self) -> None:
        self.now = 1000.0
        self.said: list[str] = []
        self.given_up: list[Stuck] = []
        self.watch = Watch(self.said.append, self.given_up.append, lambda: self.now)

    def look_at(self, now: float) -> bool:
        self.now = 1000.0 + now
        return self.watch.look()


def test_a_line_comes_each_half_minute_with_phase_pods_and_what_is_outstanding() -> None:
    scene = Scene()
    scene.watch.state = lambda: "7 pods created"
    assert scene.look_at(LINE_S - 0.1)
    assert scene.said == []
    scene.look_at(LINE_S)
    scene.look_at(LINE_S + 1)
    scene.watch.enter(BIND)
    scene.watch.note(["pod soak-1", "pod soak-2"])
    scene.look_at(2 * LINE_S)
    assert scene.said == [
        f"   30 s  {START.name}: 7 pods created",
        f"   60 s  {BIND.name}: 7 pods created; 2 outstanding, such as pod soak-1",
    ]


def test_a_phase_beyond_its_limit_is_given_up_with_what_was_outstanding() -> None:
    scene = Scene()
    scene.look_at(50)
    scene.watch.enter(BIND)
    scene.watch.note(["pod soak-1"])
    assert scene.look_at(50 + BIND.limit_s + SLACK_S)
    assert scene.given_up == []
    assert not scene.look_at(51 + BIND.limit_s + SLACK_S)
    (stuck,) = scene.given_up
    assert (stuck.phase, stuck.outstanding) == (BIND.name, ("pod soak-1",))
    assert stuck.after_s == BIND.limit_s + SLACK_S + 1


def test_a_new_phase_has_its_own_time_and_nothing_outstanding() -> None:
    scene = Scene()
    scene.watch.note(["node"])
    scene.look_at(START.limit_s)
    scene.watch.enter(during(30))
    assert scene.look_at(START.limit_s + 1800 + SLACK_S)
    assert scene.watch.stuck("why").outstanding == ()
    assert scene.watch.stuck("why").why == "why"


@pytest.mark.parametrize(("minutes", "more_s"), [(1, 60), (30, 1800)])
def test_the_whole_has_a_limit(minutes: float, more_s: float) -> None:
    assert longest_s(minutes) - longest_s(0) == more_s
    assert longest_s(0) > START.limit_s + SLACK_S
