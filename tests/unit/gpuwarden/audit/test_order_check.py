"""Who wrote behind the end of a log, and where its clock went back."""

from collections.abc import Sequence

import pytest

from gpuwarden.audit.chain import Verified, verify_lines
from gpuwarden.audit.order_check import MAX_KEPT, OrderCheck, OrderFacts, Remark, Remarks
from gpuwarden.audit.record import decode_record
from tests.builders.audit_log import GENESIS, line


def facts(records: Sequence[tuple[str, str]]) -> OrderFacts:
    """Of a whole log with these kinds and times of day."""
    check = OrderCheck()
    for seq, (kind, time) in enumerate(records, start=1):
        text = line(seq, GENESIS, kind=kind, ts=f"2026-03-01T{time}Z")
        check.take(decode_record(text[:-1]))
    return check.facts


def at(kinds: str) -> list[tuple[str, str]]:
    return [(kind, "12:00:00.000") for kind in kinds.split()]


@pytest.mark.parametrize(
    "kinds",
    [
        "log.start node.state checkpoint log.stop",
        "log.start log.stop log.start node.state",
        "node.state checkpoint log.stop",
        "log.start log.stop log.key log.start node.state log.stop",
    ],
)
def test_a_log_that_its_writers_began_and_ended_is_in_order(kinds: str) -> None:
    assert facts(at(kinds)) == OrderFacts()


@pytest.mark.parametrize(
    ("kinds", "appended"),
    [
        ("log.start log.stop node.state", [3]),
        ("log.start log.stop log.stop", [3]),
        ("log.start log.stop node.state log.stop log.start node.state", [3, 4]),
        ("log.start log.stop log.key node.state log.start", [4]),
        ("log.start log.stop checkpoint log.gap", [3, 4]),
    ],
)
def test_records_behind_the_end_of_a_log_were_appended(kinds: str, appended: list[int]) -> None:
    found = facts(at(kinds)).appended
    assert [one.seq for one in found.first] == appended
    assert found.count == len(appended)
    kind = kinds.split()[appended[0] - 1]
    assert found.first[0].what == f"{kind} behind the end of a closed log"


def test_a_start_that_found_unsigned_records_is_named() -> None:
    start = line(1, GENESIS, kind="log.start", refs={"unsigned": {"first": 1}})
    result = verify_lines([start])
    assert isinstance(result, Verified)
    what = "the log was opened with records that no checkpoint covered"
    assert result.order.unsigned == Remarks(1, (Remark(1, what),))


def backwards(*records: tuple[str, str]) -> list[tuple[int, str]]:
    return [(one.seq, one.what) for one in facts(records).backwards.first]


def test_a_time_that_goes_back_is_named_once_for_each_step() -> None:
    found = backwards(
        ("node.state", "12:00:00.000"),
        ("node.state", "11:00:00.000"),
        ("node.state", "11:00:01.000"),
        ("node.state", "10:59:55.999"),
    )
    assert found == [
        (2, "2026-03-01T11:00:00.000Z is 3600 s before record 1"),
        (4, "2026-03-01T10:59:55.999Z is 5 s before record 3"),
    ]


def test_the_last_of_the_latest_records_is_named() -> None:
    found = backwards(
        ("node.state", "12:00:00.000"),
        ("node.state", "12:00:00.000"),
        ("node.state", "11:00:00.000"),
    )
    assert found == [(3, "2026-03-01T11:00:00.000Z is 3600 s before record 2")]


def test_the_order_of_threads_is_no_step_of_the_clock() -> None:
    assert backwards(("node.state", "12:00:05.000"), ("node.state", "12:00:00.000")) == []
    slow = [("node.state", f"12:00:{20 - 3 * step:02}.000") for step in range(4)]
    assert [seq for seq, _ in backwards(*slow)] == [3]


@pytest.mark.parametrize("kind", ["log.start", "log.gap", "log.key"])
def test_records_that_waited_for_the_log_may_be_older_than_its_opening(kind: str) -> None:
    assert (
        backwards(
            ("node.state", "12:00:00.000"),
            (kind, "13:00:00.000"),
            ("node.state", "12:10:00.000"),
        )
        == []
    )
    older = backwards(("node.state", "12:00:00.000"), (kind, "11:00:00.000"))
    assert [seq for seq, _ in older] == [2]
    waited = backwards(
        ("node.state", "12:00:00.000"), (kind, "13:00:00.000"), ("node.state", "11:00:00.000")
    )
    assert waited == [(3, "2026-03-01T11:00:00.000Z is 3600 s before record 1")]


def test_what_only_looks_like_a_time_is_not_compared() -> None:
    assert backwards(("node.state", "99:00:00.000"), ("node.state", "12:00:00.000")) == []


def test_many_are_counted_and_the_first_are_named() -> None:
    remarks = Remarks()
    assert str(remarks) == ""
    for seq in range(1, MAX_KEPT + 3):
        remarks = remarks.and_(seq, "x")
    assert (remarks.count, len(remarks.first)) == (MAX_KEPT + 2, MAX_KEPT)
    assert str(remarks).endswith("record 8: x; and 2 more")
    assert str(Remarks(1, (Remark(7, "x"),))) == "record 7: x"
