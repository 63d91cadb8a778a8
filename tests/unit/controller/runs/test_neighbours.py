"""Which job types ran beside a pod for half of its time."""

import pytest

from controller.runs.neighbours import MOST_ENDED, MOST_TYPES, Neighbours, Stay


def beside(*stays: Stay) -> tuple[str, ...]:
    """Of a pod that ran from 100 to 200, at its end."""
    found = Neighbours()
    found.put("n", "own", Stay("own", 100))
    for number, stay in enumerate(stays):
        found.put("n", str(number), stay)
    return found.beside("n", "own", 100, 200)


@pytest.mark.parametrize(
    ("stays", "expected"),
    [
        ((Stay("a", 0),), ("a",)),
        ((Stay("a", 150),), ("a",)),
        ((Stay("a", 151),), ()),
        ((Stay("a", 0, 150),), ("a",)),
        ((Stay("a", 0, 149),), ()),
        ((Stay("a", 120, 170),), ("a",)),
        ((Stay("a", 0, 100),), ()),
        ((Stay("a", 200),), ()),
        ((Stay("b", 0), Stay("a", 0, 300)), ("a", "b")),
        ((Stay("own", 0),), ("own",)),
        # pods of one type take turns, or overlap
        ((Stay("a", 100, 125), Stay("a", 175, 200)), ("a",)),
        ((Stay("a", 100, 125), Stay("a", 176, 200)), ()),
        ((Stay("a", 100, 149), Stay("a", 100, 149)), ()),
        ((Stay("a", 100, 140), Stay("a", 120, 150)), ("a",)),
        ((Stay("a", 100, 149), Stay("a", 110, 120)), ()),
        ((Stay("a", 100, 140), Stay("b", 140, 200)), ("b",)),
    ],
)
def test_a_type_counts_that_was_there_for_half_of_the_time(
    stays: tuple[Stay, ...], expected: tuple[str, ...]
) -> None:
    assert beside(*stays) == expected


def test_other_nodes_and_the_pod_itself_do_not_count() -> None:
    found = Neighbours()
    found.put("n", "own", Stay("own", 0))
    found.put("m", "other", Stay("a", 0))
    assert found.beside("n", "own", 0, 10) == ()
    assert found.beside("m", "own", 0, 10) == ("a",)
    assert found.beside("?", "own", 0, 10) == ()


def test_a_pod_that_is_deleted_was_there_until_then() -> None:
    found = Neighbours()
    found.put("n", "own", Stay("own", 0))
    found.put("n", "other", Stay("a", 0))
    found.put("n", "ended", Stay("b", 0, 40))
    found.gone("n", "other", 49)
    found.gone("n", "ended", 90)
    found.gone("n", "unknown", 90)
    assert found.beside("n", "own", 0, 100) == ()
    assert found.beside("n", "own", 0, 98) == ("a",)
    assert found.beside("n", "own", 0, 80) == ("a", "b")


def test_what_no_running_pod_was_beside_is_forgotten() -> None:
    found = Neighbours()
    found.put("n", "first", Stay("a", 0))
    found.put("n", "own", Stay("own", 50))
    found.put("n", "first", Stay("a", 0, 50))
    assert set(found._stays["n"]) == {"own"}
    found.put("n", "next", Stay("a", 60, 70))
    assert set(found._stays["n"]) == {"own", "next"}
    found.put("n", "own", Stay("own", 50, 80))
    assert found._stays == {}


def test_it_is_bounded() -> None:
    found = Neighbours()
    found.put("n", "own", Stay("own", 0))
    for number in range(MOST_ENDED + 1):
        found.put("n", str(number), Stay(f"t{number:04}", 0, 10))
    assert len(found._stays["n"]) == MOST_ENDED + 1
    types = found.beside("n", "own", 0, 10)
    assert (types[0], types[-1], len(types)) == ("t0001", "t0064", MOST_TYPES)
