import pytest

from controller.scoring.exploration import DecisionType, ExplorationWindow

EXPLORE, EXPLOIT, FORCED = DecisionType.EXPLORE, DecisionType.EXPLOIT, DecisionType.FORCED


def eager(window: ExplorationWindow, decisions: int) -> list[bool]:
    """What it allows to whoever always wants to explore."""
    found = []
    for _ in range(decisions):
        found.append(window.allows_one())
        window.note(EXPLORE if found[-1] else EXPLOIT)
    return found


@pytest.mark.parametrize("cap", [0.0, 0.1, 0.25, 0.5, 1.0])
def test_the_cap_holds_in_every_window_and_is_used(cap: float) -> None:
    size = 20
    found = eager(ExplorationWindow(cap, size), 200)
    for end in range(size, len(found) + 1):
        assert sum(found[end - size : end]) <= cap * size + (1 if cap else 0)
    assert sum(found) >= cap * 200 - 1


def test_only_explorations_count() -> None:
    window = ExplorationWindow(0.25, 8)
    for decision in (FORCED, FORCED, EXPLOIT, EXPLORE):
        window.note(decision)
    assert window.ratio == 0.25


def test_old_decisions_leave() -> None:
    window = ExplorationWindow(0.5, 4)
    window.note(EXPLORE)
    assert window.ratio == 1.0
    for _ in range(3):
        window.note(EXPLOIT)
    assert window.ratio == 0.25
    window.note(EXPLOIT)
    assert window.ratio == 0.0


def test_one_that_leaves_makes_room() -> None:
    window = ExplorationWindow(0.5, 2)
    window.note(EXPLORE)
    window.note(EXPLORE)
    assert window.allows_one()
    window.note(EXPLOIT)
    window.note(EXPLORE)
    assert window.allows_one()


def test_nothing_was_decided_yet() -> None:
    window = ExplorationWindow(0.25, 4)
    assert (window.ratio, window.allows_one()) == (0.0, True)
