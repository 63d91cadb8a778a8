from dataclasses import dataclass, field

import pytest

from controller.binding.asked_rounds import AskedRounds, AwaitedReport

S = 1_000_000_000
MS = 1_000_000
NODE = "gpu-1"


def awaited(since_s: float, heard_s: float = 0, *, half: bool = False) -> AwaitedReport:
    return AwaitedReport(int(since_s * S), int(heard_s * S), half)


@dataclass
class World:
    """One node; moments in seconds."""

    rounds: AskedRounds = field(default_factory=AskedRounds)

    def asked(self, at_s: float, report: AwaitedReport) -> bool:
        return self.rounds.due({NODE: report}, int(at_s * S)) == (NODE,)

    def first_after(self, begin_s: float, report: AwaitedReport) -> float:
        """When the node is asked, on a clock of milliseconds."""
        at_ms = int(begin_s * 1000)
        while self.rounds.due({NODE: report}, at_ms * MS) == ():
            at_ms += 1
        return at_ms / 1000


def test_a_node_is_asked_as_soon_as_a_pod_has_ended() -> None:
    world = World()
    assert world.asked(1000, awaited(1000, 990))
    assert world.rounds.next_ns is None


def test_a_node_without_a_report_is_asked_too() -> None:
    assert World().asked(1000, awaited(1000))
    assert World().asked(0.5, awaited(0.4))


def test_the_first_turn_of_those_who_wait_is_the_next_one() -> None:
    rounds = AskedRounds()
    waiting = {"gpu-1": awaited(1000, 999.9), "gpu-2": awaited(1000, 999.7)}
    assert rounds.due(waiting, 1000 * S) == ()
    assert rounds.next_ns == 1000 * S + 200 * MS


def test_nobody_awaited_is_nobody_asked() -> None:
    rounds = AskedRounds()
    assert rounds.next_ns is None
    assert rounds.due({}, 1000 * S) == ()
    assert rounds.next_ns is None


def test_a_node_that_has_just_had_its_ordinary_round_is_asked_half_a_second_later() -> None:
    world = World()
    assert not world.asked(1000, awaited(1000, 999.6))
    assert world.rounds.next_ns == 1000 * S + 100 * MS
    assert not world.asked(1000.0999, awaited(1000, 999.6))
    assert world.asked(1000.1, awaited(1000, 999.6))


@pytest.mark.parametrize("half", [True, False])
def test_after_an_answer_it_is_asked_again(half: bool) -> None:
    world = World()
    assert world.asked(1000, awaited(1000, 990))
    answered = awaited(1000, 1000.001, half=half)
    assert world.first_after(1000.2, answered) == 1000.501


def test_without_an_answer_it_is_asked_again_after_three_seconds() -> None:
    world = World()
    assert world.asked(1000, awaited(1000, 990))
    assert world.first_after(1000, awaited(1000, 990)) == 1003


def test_without_an_answer_a_half_shown_end_does_not_hasten_it() -> None:
    world = World()
    assert world.asked(1000, awaited(999, 999.5, half=True))
    assert world.first_after(1000, awaited(999, 999.5, half=True)) == 1003


def test_an_answer_to_the_very_challenge_is_an_answer() -> None:
    world = World()
    assert world.asked(1000, awaited(1000, 990))
    assert world.first_after(1000, awaited(1000, 1000)) == 1000.5


@pytest.mark.parametrize(("ran_s", "pause_s"), [(0, 0.5), (8, 0.5), (16, 1), (32, 2), (320, 20)])
def test_what_outlives_its_pod_is_asked_about_ever_more_rarely(
    ran_s: float, pause_s: float
) -> None:
    world = World()
    heard_s = 1000 + ran_s
    assert world.first_after(heard_s, awaited(1000, heard_s)) == heard_s + pause_s


def test_once_it_has_shown_nothing_it_is_asked_again_soon() -> None:
    world = World()
    assert world.first_after(1320, awaited(1000, 1320, half=True)) == 1320.5


def test_a_later_end_hastens_it_again() -> None:
    world = World()
    assert not world.asked(1321, awaited(1000, 1320))
    assert world.asked(1321, awaited(1321, 1320))


def test_an_hour_of_something_that_goes_on_costs_few_rounds() -> None:
    """Ordinary rounds go on, 25 seconds apart, and from some time on alone."""
    world, asked_s, heard_s = World(), list[float](), 0.0
    for tenth in range(36_000):
        now_s = 1000 + tenth / 10
        if tenth % 250 == 0:
            heard_s = now_s
        if world.asked(now_s, awaited(1000, heard_s)):
            asked_s.append(now_s)
            heard_s = now_s
    assert 50 < len(asked_s) < 80
    assert max(asked_s) < 1000 + 16 * 25


def test_pods_that_start_and_end_all_the_time_make_two_rounds_a_second() -> None:
    world, asked_s = World(), list[float]()
    for step in range(200):
        now_s = 1000 + step / 20
        heard_s = asked_s[-1] if asked_s else 990
        if step % 2:
            world.rounds.due({}, int(now_s * S))
        elif world.asked(now_s, awaited(now_s, heard_s)):
            asked_s.append(now_s)
    assert len(asked_s) == 20


def test_a_node_that_nothing_is_awaited_from_any_more_is_forgotten_half_a_second_later() -> None:
    world = World()
    assert world.asked(1000, awaited(1000, 990))
    assert world.rounds.due({}, 1000 * S + 499 * MS) == ()
    assert not world.asked(1000.499, awaited(1000.4, 990))
    assert world.rounds.due({}, 1000 * S + 500 * MS) == ()
    assert world.asked(1000.5, awaited(1000.4, 990))


# --- the whole fleet


def fleet(count: int, since_s: float = 1000, heard_s: float = 990) -> dict[str, AwaitedReport]:
    return {f"gpu-{number:04d}": awaited(since_s, heard_s) for number in range(count)}


def test_no_more_than_a_hundred_are_asked_at_once_and_in_each_second() -> None:
    rounds, nodes = AskedRounds(), fleet(300)
    first = rounds.due(nodes, 1000 * S)
    assert first == tuple(sorted(nodes))[:100]
    assert rounds.next_ns == 990 * S + 500 * MS
    assert rounds.due(nodes, 1000 * S + 9 * MS) == ()
    assert rounds.due(nodes, 1000 * S + 10 * MS) == ("gpu-0100",)
    assert rounds.due(nodes, 1000 * S + 19 * MS) == ()
    assert len(rounds.due(nodes, 1001 * S)) == 99
    assert len(rounds.due(nodes, 1002 * S)) == 100


def test_what_a_quiet_hour_did_not_use_is_lost() -> None:
    rounds = AskedRounds()
    rounds.due(fleet(1), 1000 * S)
    assert len(rounds.due(fleet(300, 5000, 4990), 5000 * S)) == 100


def test_whoever_waits_longest_is_asked_first() -> None:
    rounds, nodes = AskedRounds(), fleet(200)
    nodes["gpu-0150"] = awaited(1000, 980)
    assert rounds.due(nodes, 1000 * S)[0] == "gpu-0150"


def test_a_thousand_nodes_have_their_two_rounds_in_twenty_seconds() -> None:
    """Each answers within a tenth of a second, and is done after its second answer."""
    rounds, heard_s, answers = AskedRounds(), dict[str, float](), dict[str, int]()
    names, most, seconds = set(fleet(1000)), 0, list[int]()
    for tenth in range(210):
        now_s = 1000 + tenth / 10
        waiting = {x for x in names if answers.get(x, 0) < 2}
        nodes = {
            x: awaited(1000, heard_s.get(x, 990), half=answers.get(x, 0) == 1) for x in waiting
        }
        asked = rounds.due(nodes, int(now_s * S))
        for node in asked:
            heard_s[node], answers[node] = now_s + 0.01, answers.get(node, 0) + 1
        seconds.append(len(asked))
        most = max(most, sum(seconds[-10:]))
    assert sum(seconds) == 2000
    assert most <= 200
    assert set(answers.values()) == {2}
