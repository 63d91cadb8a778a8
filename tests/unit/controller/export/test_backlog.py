"""What waits, in which order, under which number, and what others have delivered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.export.backlog import (
    SHARDS,
    Backlog,
    Position,
    PositionTextError,
    positions_text,
    read_positions,
    shard_of,
)
from controller.export.records import ExportRecord, Facts
from tests.builders.exported import CLUSTER, facts

A, B, C = (facts(0, level=level) for level in ("L0", "L1", "L2"))
SHARD = shard_of(A.uuid)


def backlog(*noted: Facts, most: int = 100) -> Backlog:
    made = Backlog(CLUSTER, most)
    for each in noted:
        made.note(each)
    return made


def at(change: int, last: Facts) -> dict[str, Position]:
    return {last.uuid: Position(change, last.digest)}


def levels(made: Backlog, most: int = 100) -> list[tuple[int, str]]:
    return [(x.change, x.level) for x in made.take(most)]


def test_changes_of_a_gpu_are_numbered_from_one_in_their_order() -> None:
    made = backlog(A, B, A)
    assert levels(made) == [(1, "L0"), (2, "L1"), (3, "L0")]
    assert len(made) == 3


def test_what_is_shown_again_is_no_change() -> None:
    assert len(backlog(A, facts(0, level="L0", evidence="f" * 64), A)) == 1


def test_what_was_taken_waits_until_it_is_delivered() -> None:
    made = backlog(A, B)
    taken = made.take(1)
    assert made.take(1) == taken
    assert made.delivered(taken) == {SHARD}
    assert made.positions(SHARD) == at(1, A)
    assert levels(made) == [(2, "L1")]
    assert len(made) == 1


def test_delivered_twice_counts_once() -> None:
    made = backlog(A, B)
    taken = made.take(1)
    made.delivered(taken)
    assert made.delivered(taken) == frozenset()
    assert levels(made) == [(2, "L1")]


def test_numbers_go_on_where_a_predecessor_stopped() -> None:
    made = backlog(B)
    made.settle(SHARD, at(4, A))
    assert levels(made) == [(5, "L1")]


def test_what_was_delivered_last_is_no_change_though_it_is_noted_after_that_was_read() -> None:
    made = backlog()
    made.settle(SHARD, at(4, A))
    made.note(A)
    assert levels(made) == []
    assert len(made) == 0
    made.note(B)
    made.note(A)
    assert levels(made) == [(5, "L1"), (6, "L0")]
    assert len(made) == 2


def test_of_what_waits_only_the_oldest_can_be_what_was_delivered_last() -> None:
    made = backlog(A, B, A)
    made.settle(SHARD, at(1, A))
    assert levels(made) == [(2, "L1"), (3, "L0")]
    made.delivered(made.take(1))
    assert levels(made) == [(3, "L0")]


def test_the_same_change_has_the_same_key_at_another_replica() -> None:
    one, other = backlog(A, B), backlog(A, B)
    one.delivered(one.take(1))
    other.settle(SHARD, at(1, A))
    assert [x.key for x in one.take(9)] == [x.key for x in other.take(9)]


@pytest.mark.parametrize(
    ("noted", "before", "stored", "left"),
    [
        ([A], None, (1, A), []),
        ([A, B], None, (1, A), [(2, "L1")]),
        ([A, B], None, (2, B), []),
        ([A, B, A], None, (1, A), [(2, "L1"), (3, "L0")]),
        ([B, A], (1, A), (1, A), [(2, "L1"), (3, "L0")]),
        ([B, A], (1, A), (2, B), [(3, "L0")]),
        ([B, A], (1, A), (3, A), []),
        ([B, A, B, A], (1, A), (3, A), [(4, "L1"), (5, "L0")]),
        ([C], (1, A), (2, B), [(3, "L2")]),
        ([B, C], (1, A), (4, C), []),
        ([B, A, C], (5, A), (6, C), []),
    ],
    ids=[
        "all delivered",
        "the first delivered",
        "both delivered",
        "back to what it was, not delivered",
        "nothing delivered, though the last looks like it",
        "the first of two",
        "both of two",
        "two of four, of which two are alike",
        "another replica saw more",
        "another replica saw more, and ours too",
        "another replica saw less",
    ],
)
def test_a_replica_drops_what_it_sees_delivered(
    noted: list[Facts],
    before: tuple[int, Facts] | None,
    stored: tuple[int, Facts],
    left: list[tuple[int, str]],
) -> None:
    made = backlog()
    if before is not None:
        made.settle(SHARD, at(*before))
    for each in noted:
        made.note(each)
    made.settle(SHARD, at(*stored))
    assert levels(made) == left
    assert len(made) == len(left)


def test_positions_that_are_gone_are_forgotten() -> None:
    made = backlog()
    made.settle(SHARD, at(3, A))
    made.settle(SHARD, {})
    made.note(B)
    assert levels(made) == [(1, "L1")]


def test_beyond_the_bound_the_newest_of_each_gpu_is_kept() -> None:
    other = facts(1)
    made = backlog(A, other, B, C, most=2)
    assert made.dropped == 2
    assert {(x.uuid, x.level) for x in made.take(9)} == {(A.uuid, "L2"), (other.uuid, "L1")}
    assert len(made) == 2
    made.note(facts(2))
    assert len(made) == 3  # a first one of a GPU is never dropped
    assert made.dropped == 2


def test_what_was_dropped_in_flight_is_not_delivered_later() -> None:
    made = backlog(A, most=1)
    taken = made.take(1)
    made.note(B)
    made.delivered(taken)
    assert levels(made) == [(2, "L1")]


def test_a_batch_is_of_few_shards_and_no_shard_starves() -> None:
    made = backlog(*(facts(n) for n in range(64)))
    seen: list[ExportRecord] = []
    while batch := made.take(8):
        shards = [shard_of(x.uuid) for x in batch]
        assert len(set(shards)) <= 4
        seen += batch
        made.delivered(batch)
        made.note(facts(100 + len(seen)))
        if len(seen) >= 64:
            break
    assert {shard_of(x.uuid) for x in seen} == set(range(SHARDS))


@given(st.dictionaries(st.uuids().map(str), st.tuples(st.integers(1), st.uuids().map(str))))
def test_positions_can_be_read_again(found: dict[str, tuple[int, str]]) -> None:
    positions = {uuid: Position(*x) for uuid, x in found.items()}
    assert read_positions(positions_text(positions)) == positions


@pytest.mark.parametrize("text", ["", "[]", "1", '{"a":1}', '{"a":"x.b"}', "[" * 100_000])
def test_another_text_is_no_document_of_positions(text: str) -> None:
    with pytest.raises(PositionTextError):
        read_positions(text)
