"""The list of survivors must be exact."""

from dataclasses import replace

import pytest

from tests.mutation.mutant import Key
from tests.mutation.survivors import (
    LIST,
    Listed,
    Verdict,
    as_entry,
    below_floor,
    faults,
    listed,
    new_survivors,
    scores,
    unknown_paths,
)

KEY = Key("p/a.py", "f", "compare", "if a < 'b':", 'if a <= "\\b":')
ENTRY = Listed(KEY, "cannot be told apart")
SURVIVED, KILLED = Verdict(KEY, survived=True), Verdict(KEY, survived=False)
OTHER = replace(KEY, function="g")


def test_a_listed_survivor_with_a_reason_is_no_fault() -> None:
    assert faults([SURVIVED], [ENTRY]) == []
    assert new_survivors([SURVIVED], [ENTRY]) == {}


def test_a_survivor_that_is_not_listed_is_new() -> None:
    assert new_survivors([SURVIVED, Verdict(OTHER, survived=True)], [ENTRY]) == {OTHER: 1}


def test_an_entry_whose_mutant_is_killed_is_stale() -> None:
    [text] = faults([KILLED], [ENTRY])
    assert "stale entry, 0 survive, 1 listed" in text


def test_an_entry_without_a_mutant_is_stale() -> None:
    [text] = faults([SURVIVED], [ENTRY, Listed(OTHER, "gone")])
    assert "stale entry, there is no such mutant" in text
    assert "@@ g @@" in text


def test_a_second_survivor_of_the_same_name_is_a_fault() -> None:
    assert "2 survive, 1 listed" in faults([SURVIVED, SURVIVED], [ENTRY])[0]
    assert faults([SURVIVED, SURVIVED], [replace(ENTRY, times=2)]) == []


def test_an_entry_without_a_reason_is_a_fault() -> None:
    assert "without a reason" in faults([SURVIVED], [replace(ENTRY, reason=" ")])[0]


def test_entries_of_sources_that_were_not_tried_are_left_alone() -> None:
    elsewhere = Listed(replace(KEY, path="p/b.py"), "why")
    assert faults([SURVIVED], [ENTRY, elsewhere]) == []
    assert unknown_paths([ENTRY, elsewhere], {"p/a.py", "p/b.py"}) == []
    assert "p/b.py is not mutated" in unknown_paths([ENTRY, elsewhere], {"p/a.py"})[0]


def test_an_entry_reads_back() -> None:
    assert listed(as_entry(KEY, 2)) == [Listed(KEY, "", 2)]


def test_an_entry_with_an_unknown_field_is_refused() -> None:
    with pytest.raises(ValueError, match=r"survivor 1 of survivors\.toml"):
        listed(as_entry(KEY) + "line = 7\n")


def test_the_floor_holds_for_each_package_and_for_all() -> None:
    good = [Verdict(replace(KEY, path="q/a.py"), survived=False, timed_out=True)] * 381
    weak = [KILLED] * 18 + [SURVIVED]
    found = scores([*good, *weak], ["p", "q", "unused"])
    assert [(x.name, x.mutants, x.killed, x.timed_out) for x in found] == [
        ("p", 19, 18, 0),
        ("q", 381, 381, 381),
        ("all", 400, 399, 381),
    ]
    assert below_floor(found) == ["p: 94.7 % killed, at least 95 % are expected"]
    assert below_floor(found, {"p"}) == []


def test_every_entry_of_the_list_has_a_reason_and_stands_once() -> None:
    entries = listed(LIST.read_text())
    assert [x.key for x in entries if not x.reason.strip()] == []
    assert len({x.key for x in entries}) == len(entries)
