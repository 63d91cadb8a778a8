"""A made-up soak: what of it is a fault, and how it is told."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.soak.log_lines import ErrorLine, Kind, Sorted
from tests.soak.report import (
    WIDTH,
    Agents,
    Ledger,
    Memory,
    Placed,
    Report,
    Shape,
    Stuck,
    differences,
    document,
    faults,
    memory_of,
    percentile,
    table,
    unfinished,
)
from tests.soak.slope import Sample, Slope, Trend

SHAPE = Shape(30, 200, 60, 60, 120, 100)
FLAT = Memory("controller-0", 28, 90_000, 91_000, Slope(3, -4, 9), Trend.FLAT)
KNOWN = Kind("replica gone", 3, "the replica was killed and the call was under way to it")
WELL = Report(
    shape=SHAPE,
    kills=14,
    rotations=29,
    certificates_taken={"admission": 40, "extender": 41},
    memory=(FLAT,),
    pods=Placed(1800, 1790, {"Succeeded": 1700, "deleted": 90}, (), (), 130, 2100),
    ledger=Ledger(31, (), 0),
    agents=Agents(900, 40_000, 5800, {"STREAM_SUPERSEDED": 12, "CHALLENGE_EXPIRED": 1}, {}),
    logs=Sorted((KNOWN,), ()),
    audit={"controller-0": "", "controller-1": ""},
)


def test_a_soak_without_faults() -> None:
    assert faults(WELL) == []
    assert table(WELL).endswith("soak: passed\n")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            lambda x: replace(x, memory=(replace(FLAT, trend=Trend.GROWS),)),
            "memory of controller-0",
        ),
        (
            lambda x: replace(x, memory=(replace(FLAT, slope=None, trend=Trend.UNDECIDED),)),
            "not shown to be flat: too few samples",
        ),
        (lambda x: replace(x, memory=(replace(FLAT, trend=Trend.SHORT),)), "no memory was judged"),
        (lambda x: replace(x, pods=replace(x.pods, left=("a",))), "never bound: a"),
        (lambda x: replace(x, pods=replace(x.pods, twice=("g: a, b",))), "in two pods: g: a, b"),
        (lambda x: replace(x, pods=replace(x.pods, bound=0)), "no pods were bound"),
        (lambda x: replace(x, ledger=replace(x.ledger, differences=("x",))), "API differ: x"),
        (lambda x: replace(x, ledger=replace(x.ledger, left=2)), "2 reservations are left"),
        (lambda x: replace(x, ledger=replace(x.ledger, compared=0)), "no reservations were there"),
        (
            lambda x: replace(x, logs=Sorted((), (ErrorLine("etcd", "disk"),))),
            "an unexplained error of etcd: disk",
        ),
        (
            lambda x: replace(x, agents=replace(x.agents, refused={"NONCE_UNKNOWN": 1})),
            "refused: NONCE_UNKNOWN, 1 times",
        ),
        (
            lambda x: replace(x, agents=replace(x.agents, alarms={"LOG_RESET": 1})),
            "accuse an audit log: LOG_RESET",
        ),
        (lambda x: replace(x, agents=replace(x.agents, rotated=0)), "no SVIDs were taken"),
        (lambda x: replace(x, audit={"controller-1": "at 7"}), "controller-1 is broken: at 7"),
        (lambda x: replace(x, failed=("kill: ProgramError()",)), "ended early: kill: ProgramError"),
        (
            lambda x: replace(x, stuck=(Stuck("bind", 120, ("pod soak-1", "pod soak-2")),)),
            "not done after 120 s: bind; outstanding: pod soak-1; pod soak-2",
        ),
        (
            lambda x: replace(x, stuck=(Stuck("bind", 3, (), "a thread has raised"),)),
            "bind (a thread has raised); outstanding: nothing that is known",
        ),
        (lambda x: replace(x, kills=0), "no replicas were killed"),
        (lambda x: replace(x, rotations=0), "no certificates were rotated"),
        (lambda x: replace(x, certificates_taken={}), "no serving certificates were taken"),
    ],
)
def test_each_fault_is_one_line(change: Callable[[Report], Report], fault: str) -> None:
    changed = change(WELL)
    (found,) = faults(changed)
    assert fault in found
    assert document(changed)["faults"] == [found]
    assert "soak: FAILED, 1 faults" in table(changed)


def test_without_a_whole_report_there_is_where_it_was() -> None:
    read = json.loads(json.dumps(unfinished(Stuck("start", 660, ("controller-0",), "limit"))))
    assert read["faults"] == ["not done after 660 s: start (limit); outstanding: controller-0"]
    assert read["stuck"][0]["outstanding"] == ["controller-0"]


def test_the_table_fits_a_terminal_and_says_what_was_measured() -> None:
    long = replace(WELL, logs=Sorted((KNOWN,), (ErrorLine("etcd", "word " * 200),) * 12))
    lines = table(long).splitlines()
    assert [x for x in lines if len(x) > WIDTH] == []
    assert " ".join(lines[3].split()) == "controller-0 28.0 87.9 88.9 3.0 -4.0 to 9.0 flat"
    assert "to bind    p50 130 ms, p99 2100 ms" in lines
    assert "     3  replica gone" in lines
    assert lines[-1] == "  and 2 more"


def test_the_document_is_json() -> None:
    read = json.loads(json.dumps(document(WELL)))
    assert read["memory"][0]["slope"] == {"kib_per_min": 3, "low": -4, "high": 9}
    assert read["logs"]["explained"][0]["count"] == 3


def test_memory_is_judged_by_what_comes_after_the_warm_up() -> None:
    samples = [Sample(s, 1000 + min(s, 600) * 10) for s in range(0, 1801, 5)]
    (found,) = memory_of({("agents", 7): samples}, 1)
    flat = Memory("agents", 30, 1000, 7000, Slope(0, 0, 0), Trend.FLAT, found.points)
    assert found == flat
    assert [x.kib for x in found.points] == [7000] * 12
    assert found.points[0].at_s >= 600


def test_of_a_program_that_was_started_again_the_longest_life_is_judged() -> None:
    short, long = ([Sample(s, s) for s in range(most)] for most in (100, 1801))
    lives = {("b", 1): short, ("b", 2): long, ("b", 3): short, ("a", 4): short}
    found = memory_of(lives, 59)
    assert [(x.process, x.minutes, x.trend) for x in found] == [
        ("a", 1.65, Trend.SHORT),
        ("b", 30, Trend.GROWS),
    ]
    assert found[1].slope == Slope(60, 60, 60)
    half = [Sample(s, s) for s in range(901)]
    assert [x.trend for x in memory_of({("a", 1): half, ("b", 2): long}, 59)] == [Trend.GROWS] * 2
    assert memory_of({}, 59) == ()


def test_what_one_side_has_alone() -> None:
    assert differences({"ledger": ["a", "b"], "pods": ["b", "a"]}) == []
    assert differences({"ledger": ["a", "b", "b"], "pods": ["b", "c"]}) == [
        "only ledger have a",
        "only ledger have b",
        "only pods have c",
    ]


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.5, None),
        ([7], 0.99, 7),
        ([3, 1, 2], 0.5, 2),
        (range(1, 101), 0.99, 99),
        (range(1, 102), 0.99, 100),
        ([1, 2], 0.5, 1),
    ],
)
def test_percentiles(values: list[float], share: float, expected: float | None) -> None:
    assert percentile(values, share) == expected
