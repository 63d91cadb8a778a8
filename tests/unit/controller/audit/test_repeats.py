from dataclasses import replace

import pytest

from controller.audit.repeats import RepeatCounter
from controller.placement.filter_and_score import not_ready_record
from controller.record import Record
from gpuwarden.audit.record import RecordKind

NOW = 1_772_366_400_000_000_000
HOUR_NS = 3_600_000_000_000
ROUND = Record(RecordKind.EVIDENCE_REPEATED, "a", "node/n1", "accepted", ("ACCEPTED",), {"seq": 1})
REFUSED = Record(RecordKind.EVIDENCE_REFUSED, "a", "node/n1", "refused", ("SIG_INVALID",), {"n": 1})
ACCEPTED = replace(ROUND, kind=RecordKind.EVIDENCE_ACCEPTED)


def test_rounds_of_an_hour_become_one_record() -> None:
    counter = RepeatCounter()
    for n in range(144):
        assert counter.absorb(replace(ROUND, refs={"seq": n}), NOW + n * 25_000_000_000)

    assert counter.take_due(NOW + HOUR_NS - 1) == []
    assert counter.take_due(NOW + HOUR_NS) == [
        replace(
            ROUND,
            refs={
                "count": 144,
                "since": "2026-03-01T12:00:00.000Z",
                "until": "2026-03-01T12:59:35.000Z",
                "last": {"seq": 143},
            },
        )
    ]
    assert counter.take_due(NOW + 2 * HOUR_NS) == []


def test_answers_that_nothing_is_decided_yet_are_counted_after_the_first() -> None:
    counter, answer = RepeatCounter(), not_ready_record()
    absorbed = [counter.absorb(answer, NOW + n) for n in range(1000)]

    assert absorbed == [False] + [True] * 999
    (summary,) = counter.take_due(NOW + HOUR_NS)
    assert (summary.kind, summary.decision) == (RecordKind.FILTER_DECISION, "not-ready")
    assert summary.codes == ("CONTROLLER_NOT_READY",)
    assert summary.refs["count"] == 999
    assert not counter.absorb(answer, NOW + HOUR_NS)


def test_each_counter_has_an_hour_of_its_own() -> None:
    counter = RepeatCounter()
    other = replace(ROUND, subject="node/n2")
    counter.absorb(ROUND, NOW)
    counter.absorb(other, NOW + 10)
    counter.absorb(ROUND, NOW + 20)

    assert [x.subject for x in counter.take_due(NOW + HOUR_NS)] == ["node/n1"]
    assert counter.take_due(NOW + HOUR_NS + 9) == []
    assert [x.subject for x in counter.take_due(NOW + HOUR_NS + 10)] == ["node/n2"]
    counter.absorb(ROUND, NOW + 2 * HOUR_NS)
    assert [x.refs["count"] for x in counter.take_due(NOW + 3 * HOUR_NS)] == [1]


def test_a_counter_that_has_just_begun_is_not_over() -> None:
    counter = RepeatCounter()
    counter.absorb(ROUND, NOW)
    counter.absorb(replace(ROUND, subject="node/n2"), NOW + HOUR_NS)

    assert [x.subject for x in counter.take_due(NOW + HOUR_NS)] == ["node/n1"]


def test_an_acceptance_ends_what_is_left_of_several_codes() -> None:
    counter = RepeatCounter()
    other = replace(REFUSED, codes=("SEQ_GAP",))
    counter.absorb(REFUSED, NOW)
    counter.absorb(other, NOW + 10)
    counter.take_due(NOW + HOUR_NS)
    counter.absorb(ACCEPTED, NOW + HOUR_NS)

    assert not counter.absorb(other, NOW + HOUR_NS)


def test_an_acceptance_ends_repeats_and_not_the_rounds() -> None:
    counter = RepeatCounter()
    counter.absorb(ROUND, NOW)
    counter.absorb(ACCEPTED, NOW)

    assert counter.take_due(NOW) == []
    counter.absorb(ROUND, NOW)
    assert [x.refs["count"] for x in counter.take_all()] == [2]


def test_what_is_known_is_counted_apart_even_when_no_more_fits() -> None:
    counter = RepeatCounter(max_open=2)
    for record in (ROUND, REFUSED, ROUND, REFUSED, replace(ROUND, subject="node/n2")):
        counter.absorb(record, NOW)

    found = [(x.subject, x.refs["count"]) for x in counter.take_all()]
    assert found == [("node/n1", 2), ("node/n1", 1), ("*", 1)]


def test_only_the_way_back_ends_what_is_counted() -> None:
    counter = RepeatCounter()
    counter.absorb(REFUSED, NOW)
    assert not counter.absorb(_state("lease-ended"), NOW)
    assert counter.absorb(REFUSED, NOW)
    assert not counter.absorb(_state("released"), NOW)
    assert not counter.absorb(REFUSED, NOW)


def test_a_hundred_thousand_counters_may_be_open() -> None:
    assert RepeatCounter()._max_open == 100_000


def test_nothing_is_remembered_of_what_is_over() -> None:
    counter = RepeatCounter()
    for code in "ab":
        counter.absorb(replace(REFUSED, codes=(code,)), NOW)
    counter.take_due(NOW + HOUR_NS)

    assert (counter._open, counter._repeating, counter._ended) == ({}, {}, [])


def test_nodes_and_decisions_are_counted_apart() -> None:
    counter = RepeatCounter()
    for subject in ("node/n1", "node/n2", "node/n1"):
        counter.absorb(replace(ROUND, subject=subject), NOW)

    assert {r.subject: r.refs["count"] for r in counter.take_all()} == {"node/n1": 2, "node/n2": 1}


def test_first_refusal_is_logged_and_repeats_are_counted() -> None:
    counter = RepeatCounter()

    assert [counter.absorb(REFUSED, NOW) for _ in range(4)] == [False, True, True, True]
    (summary,) = counter.take_due(NOW + HOUR_NS)
    assert (summary.kind, summary.decision, summary.codes) == (
        RecordKind.EVIDENCE_REPEATED,
        "refused",
        ("SIG_INVALID",),
    )
    assert summary.refs["count"] == 3
    assert not counter.absorb(REFUSED, NOW + HOUR_NS)


def test_single_refusal_leaves_no_counter_record() -> None:
    counter = RepeatCounter()
    counter.absorb(REFUSED, NOW)

    assert counter.take_all() == []


def test_other_code_is_news() -> None:
    counter = RepeatCounter()
    counter.absorb(REFUSED, NOW)

    assert not counter.absorb(replace(REFUSED, codes=("SEQ_GAP",)), NOW)


def test_refusal_after_an_acceptance_is_news() -> None:
    counter = RepeatCounter()
    counter.absorb(REFUSED, NOW)
    counter.absorb(REFUSED, NOW + 1)

    assert not counter.absorb(ACCEPTED, NOW + 2)
    assert [summary.refs["count"] for summary in counter.take_due(NOW + 3)] == [1]
    assert counter.take_due(NOW + 3) == []
    assert not counter.absorb(REFUSED, NOW + 4)


def test_other_code_stays_known_when_one_hour_ends() -> None:
    counter = RepeatCounter()
    other = replace(REFUSED, codes=("SEQ_GAP",))
    counter.absorb(REFUSED, NOW)
    counter.absorb(other, NOW + 10)
    counter.take_due(NOW + HOUR_NS)

    assert counter.absorb(other, NOW + HOUR_NS)
    assert not counter.absorb(ACCEPTED, NOW + HOUR_NS)
    assert not counter.absorb(other, NOW + HOUR_NS)


@pytest.mark.parametrize("kind", [RecordKind.NODE_STATE, RecordKind.FILTER_DECISION])
def test_other_kinds_go_into_the_log(kind: RecordKind) -> None:
    assert not RepeatCounter().absorb(replace(ROUND, kind=kind), NOW)


def test_wall_clock_set_back_ends_the_count() -> None:
    counter = RepeatCounter()
    counter.absorb(ROUND, NOW)

    assert len(counter.take_due(NOW - 1)) == 1


def test_beyond_the_limit_events_are_counted_together() -> None:
    counter = RepeatCounter(max_open=2)
    names = [f"node/{n}" for n in range(6)]

    logged = [
        not counter.absorb(replace(REFUSED, subject=name, codes=("A", name)), NOW) for name in names
    ]

    assert logged == [True, True, False, False, False, False]
    (summary,) = counter.take_all()
    assert (summary.subject, summary.codes, summary.refs["count"]) == ("*", ("A",), 4)


def _state(decision: str, subject: str = "node/n1", **refs: str) -> Record:
    return Record(RecordKind.NODE_STATE, "a", subject, decision, ("X",), {"detail": "", **refs})


@pytest.mark.parametrize("decision", ["revoked", "quarantined", "claim-repelled", "failure-notice"])
def test_what_a_peer_can_bring_about_again_and_again_is_counted(decision: str) -> None:
    counter = RepeatCounter()
    found = [counter.absorb(_state(decision, gpu=f"GPU-{n}"), NOW) for n in range(100)]
    assert found == [False] + [True] * 99
    (summary,) = counter.take_due(NOW + HOUR_NS)
    assert (summary.kind, summary.decision) == (RecordKind.NODE_STATE, decision)
    assert summary.refs["count"] == 99


def test_each_gpu_that_goes_bad_is_news() -> None:
    counter = RepeatCounter()
    bad = [_state("gpu-unhealthy", gpu="GPU-1"), _state("gpu-unhealthy", gpu="GPU-2")]
    assert [counter.absorb(x, NOW) for x in (*bad, *bad)] == [False, False, True, True]


@pytest.mark.parametrize("state", ["lease-ended", "gpu-lost", "gpu-back", "released"])
def test_other_states_are_never_counted(state: str) -> None:
    counter = RepeatCounter()
    assert not any(counter.absorb(_state(state), NOW) for _ in range(3))


@pytest.mark.parametrize("end", [ACCEPTED, _state("released")])
def test_a_state_after_the_way_back_is_news(end: Record) -> None:
    counter = RepeatCounter()
    counter.absorb(_state("quarantined"), NOW)
    assert counter.absorb(_state("quarantined"), NOW)
    assert not counter.absorb(end, NOW)
    assert not counter.absorb(_state("quarantined"), NOW)


# --- What is asked about one pod again and again

POD = "pod/team-a/train-0"
REJECTED = Record(
    RecordKind.FILTER_DECISION,
    "kube-scheduler",
    POD,
    "rejected",
    ("GPU_BUSY",),
    {"uid": "u", "candidates": 3},
)
ADMISSION = Record(
    RecordKind.ADMISSION_DECISION,
    "controller",
    POD,
    "refused",
    ("GPU_BUSY",),
    {"step": "mutate", "owner": "ReplicaSet/x"},
)
BINDING = Record(
    RecordKind.BIND_DECISION,
    "kube-scheduler",
    POD,
    "refused",
    ("GPU_BUSY",),
    {"uid": "u", "node": "n"},
)
FINALIZE = Record(
    RecordKind.API_FINALIZE,
    "pod",
    POD,
    "refused",
    ("RESERVATION_UNKNOWN",),
    {"uid": "u", "reservation": "r", "gpu": "g"},
)
ABOUT_PODS = (REJECTED, ADMISSION, BINDING, FINALIZE)


@pytest.mark.parametrize("record", ABOUT_PODS, ids=lambda x: x.kind.value)
def test_equal_answers_about_a_pod_are_one_record_and_a_count(record: Record) -> None:
    counter = RepeatCounter()
    assert [counter.absorb(record, NOW + n) for n in range(41)] == [False, *[True] * 40]
    (summary,) = counter.take_due(NOW + HOUR_NS)
    assert (summary.kind, summary.subject, summary.codes) == (record.kind, POD, record.codes)
    assert (summary.refs["count"], summary.refs["last"]) == (40, record.refs)
    assert not counter.absorb(record, NOW + HOUR_NS)


@pytest.mark.parametrize(
    ("record", "other"),
    [(x, replace(x, codes=("QUOTA_EXCEEDED",))) for x in ABOUT_PODS]
    + [(x, replace(x, subject="pod/team-a/train-1")) for x in ABOUT_PODS]
    + [
        (x, replace(x, refs={**x.refs, key: "another"}))
        for x, key in (
            (REJECTED, "uid"),
            (REJECTED, "verb"),
            (ADMISSION, "step"),
            (ADMISSION, "owner"),
            (BINDING, "uid"),
            (BINDING, "node"),
            (FINALIZE, "uid"),
            (FINALIZE, "reservation"),
            (FINALIZE, "gpu"),
        )
    ]
    + [(REJECTED, replace(REJECTED, decision="passed")), (BINDING, ADMISSION)],
)
def test_another_answer_is_news(record: Record, other: Record) -> None:
    counter = RepeatCounter()
    counter.absorb(record, NOW)
    assert not counter.absorb(other, NOW)


def test_other_numbers_of_nodes_are_no_news() -> None:
    counter = RepeatCounter()
    counter.absorb(REJECTED, NOW)
    assert counter.absorb(replace(REJECTED, refs={"uid": "u", "candidates": 4}), NOW)
    passed = replace(REJECTED, decision="passed")
    assert [counter.absorb(passed, NOW) for _ in range(2)] == [False, True]


@pytest.mark.parametrize(
    "record",
    [
        replace(BINDING, decision="allowed"),
        replace(BINDING, decision="reported"),
        replace(ADMISSION, decision="admitted"),
        replace(ADMISSION, decision="reported"),
        replace(FINALIZE, decision="confirmed"),
    ],
    ids=lambda x: f"{x.kind.value} {x.decision}",
)
def test_what_is_granted_or_only_reported_is_always_written(record: Record) -> None:
    counter = RepeatCounter()
    assert [counter.absorb(record, NOW) for _ in range(3)] == [False] * 3


def test_that_a_pod_may_be_bound_ends_what_is_counted_of_it() -> None:
    counter = RepeatCounter()
    for record in (REJECTED, REJECTED, BINDING, BINDING):
        counter.absorb(record, NOW)
    assert counter.take_due(NOW) == []
    assert not counter.absorb(replace(BINDING, decision="allowed"), NOW)
    assert [x.refs["count"] for x in counter.take_due(NOW)] == [1, 1]
    assert not counter.absorb(REJECTED, NOW)


def test_pods_beyond_what_fits_are_counted_together_by_kind() -> None:
    counter = RepeatCounter(max_open=1)
    counter.absorb(ROUND, NOW)
    for number in range(3):
        assert counter.absorb(replace(REJECTED, refs={"uid": str(number)}), NOW)
    counter.absorb(BINDING, NOW)
    found = [(x.kind, x.subject, x.refs["count"]) for x in counter.take_all()]
    assert found == [
        (RecordKind.EVIDENCE_REPEATED, "node/n1", 1),
        (RecordKind.FILTER_DECISION, "*", 3),
        (RecordKind.BIND_DECISION, "*", 1),
    ]
