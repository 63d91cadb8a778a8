import pytest

from gpuwarden.connections import ConnectionBounds, ConnectionTable, Phase

BOUNDS = ConnectionBounds(connections=4, head_s=5.0, idle_s=60.0, busy_s=30.0)


def table(**phases: Phase) -> ConnectionTable[str]:
    """One with these connections, each a second younger than the one before."""
    made: ConnectionTable[str] = ConnectionTable(BOUNDS)
    for now, (name, phase) in enumerate(phases.items()):
        made.add(name, now)
        made.move(name, phase, now)
    return made


WAITING, IDLE, BUSY = Phase.WAITING, Phase.IDLE, Phase.BUSY


def test_there_is_room_until_the_bound() -> None:
    made: ConnectionTable[str] = ConnectionTable(BOUNDS)
    for name in "abc":
        made.add(name, 0.0)
        assert not made.is_full
    made.add("d", 0.0)
    assert made.is_full
    made.remove("b")
    made.remove("b")
    assert (len(made), made.is_full, "b" in made, "a" in made) == (3, False, False, True)


@pytest.mark.parametrize(
    ("phases", "gives_way"),
    [
        ({"a": WAITING, "b": WAITING, "c": BUSY}, "a"),
        ({"a": BUSY, "b": WAITING, "c": WAITING}, "b"),
        ({"a": IDLE, "b": WAITING, "c": WAITING}, "b"),
        ({"a": WAITING, "b": IDLE, "c": IDLE}, "b"),
        ({"a": IDLE, "b": WAITING}, "b"),
        ({"a": IDLE, "b": BUSY}, "a"),
        ({"a": BUSY, "b": BUSY}, None),
    ],
)
def test_the_oldest_of_the_larger_crowd_without_a_whole_request_gives_way(
    phases: dict[str, Phase], gives_way: str | None
) -> None:
    assert table(**phases).in_the_way() == gives_way


def test_a_connection_that_enters_a_phase_again_is_the_youngest_in_it() -> None:
    made = table(a=WAITING, b=WAITING)
    made.move("a", WAITING, 9.0)
    assert made.in_the_way() == "b"


def test_each_phase_has_its_own_deadline() -> None:
    made = table(a=WAITING, b=IDLE, c=BUSY)
    assert made.overdue(4.9) == []
    assert made.overdue(5.0) == [("a", WAITING)]
    assert made.overdue(32.0) == [("a", WAITING), ("c", BUSY)]
    assert made.overdue(61.0) == [("a", WAITING), ("b", IDLE), ("c", BUSY)]


def test_a_deadline_runs_from_the_begin_of_the_phase() -> None:
    made = table(a=WAITING)
    made.move("a", BUSY, 4.0)
    made.move("a", IDLE, 10.0)
    made.move("a", WAITING, 50.0)
    assert made.overdue(54.9) == []
    assert made.overdue(55.0) == [("a", WAITING)]


def test_a_connection_that_has_ended_does_not_come_back() -> None:
    made = table(a=WAITING)
    made.remove("a")
    made.move("a", BUSY, 1.0)
    assert (len(made), made.phase("a"), made.overdue(1000.0)) == (0, None, [])
