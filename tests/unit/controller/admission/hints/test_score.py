"""Answers of a scorer that count, lies that do not, and when it is left alone."""

import msgspec
import pytest

from controller.admission.hints.score import (
    FAILURES_TO_OPEN,
    OPEN_NS,
    Breaker,
    Score,
    ScoreError,
    ScoreFault,
    read_score,
)
from tests.builders.hinted import A100_TYPE, H100_TYPE, answer

CANDIDATES = (A100_TYPE, H100_TYPE)


def read(body: bytes) -> Score:
    return read_score(body, CANDIDATES, "training")


def fault(body: bytes) -> ScoreFault:
    with pytest.raises(ScoreError) as caught:
        read(body)
    return caught.value.fault


def test_an_answer_chooses_one_of_the_candidates() -> None:
    assert read(answer(H100_TYPE, 85, ["serving"])) == Score(85.0, H100_TYPE, ("serving",))


def test_the_choice_may_stand_in_the_terms_or_in_the_selector() -> None:
    in_terms = msgspec.json.encode({"priority_score": 1, "terms": {"chosen_gpu": H100_TYPE}})
    assert read(in_terms) == Score(1.0, H100_TYPE)
    assert read(answer(H100_TYPE, terms={"chosen_gpu": H100_TYPE})).gpu_type == H100_TYPE
    assert read(answer(H100_TYPE, terms=None)).gpu_type == H100_TYPE


def candidates(*pairs: tuple[str, object]) -> list[dict[str, object]]:
    """As `gpuwarden-score` lists them, with more fields than count."""
    return [{"gpu_type": name, "score": score, "mu": 10.0} for name, score in pairs]


@pytest.mark.parametrize(
    ("pairs", "others"),
    [
        ([], ()),
        ([(A100_TYPE, 80), (H100_TYPE, 40)], ((H100_TYPE, 49),)),
        ([(A100_TYPE, 80), (H100_TYPE, 80)], ((H100_TYPE, 99),)),
        ([(A100_TYPE, 20), (H100_TYPE, 80)], ((H100_TYPE, 99),)),
        ([(H100_TYPE, 80)], ((H100_TYPE, 99),)),
        ([(A100_TYPE, 99), (H100_TYPE, 1)], ((H100_TYPE, 1),)),
        ([(A100_TYPE, 100), (H100_TYPE, 1)], ()),
        ([(A100_TYPE, 0), (H100_TYPE, 0)], ()),
        ([(A100_TYPE, 100), (H100_TYPE, 50), ("L4", 75)], (("L4", 74), (H100_TYPE, 49))),
        ([(A100_TYPE, 9), (H100_TYPE, 9), ("L4", 9)], ((H100_TYPE, 99), ("L4", 99))),
    ],
)
def test_other_candidates_weigh_what_their_scores_say(
    pairs: list[tuple[str, object]], others: tuple[tuple[str, int], ...]
) -> None:
    body = answer(A100_TYPE, candidates=candidates(*pairs))
    found = read_score(body, (*CANDIDATES, "L4"), "training")
    assert found.others == others
    assert found.weights == ((A100_TYPE, 100), *others)


def test_of_many_candidates_the_best_eight_count() -> None:
    names = [f"gpu-{x}" for x in range(10)]
    pairs = [(name, 90 - x) for x, name in enumerate(names)]
    found = read_score(answer("gpu-0", candidates=candidates(*pairs)), names, "training")
    assert [name for name, _ in found.weights] == names[:8]


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (candidates((H100_TYPE, 1), (H100_TYPE, 2)), ScoreFault.UNKNOWN_TYPE),
        (candidates(("B200", 1)), ScoreFault.UNKNOWN_TYPE),
        (candidates((H100_TYPE, 100.001)), ScoreFault.OUT_OF_RANGE),
        (candidates((H100_TYPE, -0.001)), ScoreFault.OUT_OF_RANGE),
        (candidates((H100_TYPE, "1")), ScoreFault.MALFORMED),
        ([H100_TYPE], ScoreFault.MALFORMED),
        ([{"gpu_type": H100_TYPE}], ScoreFault.MALFORMED),
        ({}, ScoreFault.MALFORMED),
    ],
)
def test_candidates_that_lie_make_the_answer_none(listed: object, expected: ScoreFault) -> None:
    assert fault(answer(A100_TYPE, candidates=listed)) is expected
    assert read(answer(A100_TYPE, candidates=None)).others == ()


@pytest.mark.parametrize("score", [0, 100, 0.0, 49.999])
def test_the_bounds_of_a_score_count(score: float) -> None:
    assert read(answer(score=score)).priority == score


@pytest.mark.parametrize("score", [-0.001, 100.001, -1, 1e29])
def test_a_score_out_of_range_is_a_lie(score: float) -> None:
    assert fault(answer(score=score)) is ScoreFault.OUT_OF_RANGE


@pytest.mark.parametrize(
    "body",
    [
        answer(score="85"),
        answer(score=None),
        answer(score=True),
        answer(score=[85]),
        answer(avoid="serving"),
        answer(avoid=[1]),
        answer(terms={"chosen_gpu": 1}),
        answer(terms=[]),
        answer(gpu_selector={"nodeSelector": {"gpu.nvidia.com/class": ["a"]}}),
        answer(gpu_selector="a"),
        b'{"priority_score": NaN, "terms": {"chosen_gpu": "' + A100_TYPE.encode() + b'"}}',
        b'{"priority_score": Infinity}',
        b'{"priority_score": 1e999}',
        b'{"terms": {"chosen_gpu": "' + A100_TYPE.encode() + b'"}}',
        b"",
        b"[]",
        b"null",
        b"<html>",
        b"\xff\xfe",
        b"[" * 60_000,
    ],
)
def test_what_is_not_of_the_form_is_no_answer(body: bytes) -> None:
    assert fault(body) is ScoreFault.MALFORMED


@pytest.mark.parametrize(
    "body",
    [
        answer("B200"),
        answer("unknown"),
        answer(""),
        answer(A100_TYPE, terms={"chosen_gpu": H100_TYPE}),
        answer(A100_TYPE, terms={"chosen_gpu": "B200"}),
        answer(gpu_selector=None),
        answer(gpu_selector={}),
        answer(gpu_selector={"nodeSelector": {"zone": A100_TYPE}}),
    ],
)
def test_a_type_that_was_no_candidate_is_a_lie(body: bytes) -> None:
    assert fault(body) is ScoreFault.UNKNOWN_TYPE


def test_a_huge_answer_is_not_read() -> None:
    exact = answer(padding="")
    padded = answer(padding="x" * ((64 << 10) - len(exact)))
    assert len(padded) == 64 << 10
    assert read(padded).gpu_type == A100_TYPE
    assert fault(answer(padding="x" * ((64 << 10) - len(exact) + 1))) is ScoreFault.TOO_LARGE


def test_of_what_to_avoid_only_job_types_count_each_once_and_eight_at_most() -> None:
    many = ["training", "", "a b", "serving", "serving", *(f"t{i}" for i in range(9))]
    avoided = read(answer(avoid=many)).avoided
    assert avoided == ("serving", *(f"t{i}" for i in range(7)))
    assert read(answer(avoid=None)).avoided == ()


@pytest.mark.parametrize(
    ("priority", "shown"),
    [
        (85.0, "85"),
        (85.25, "85.25"),
        (85.256, "85.26"),
        (100.0, "100"),
        (0.0, "0"),
        (99.999, "100"),
    ],
)
def test_a_score_is_shown_like_a_whole_number_where_it_is_one(priority: float, shown: str) -> None:
    assert Score(priority, A100_TYPE).shown == shown


def test_an_error_has_its_fault_for_a_text_where_nothing_else_is_said() -> None:
    assert str(ScoreError(ScoreFault.TIMEOUT)) == "timeout"
    assert str(ScoreError(ScoreFault.TIMEOUT, "no answer within 1 s")) == "no answer within 1 s"


# --- The circuit breaker


def failed(times: int, now_ns: int = 0) -> Breaker:
    breaker = Breaker()
    for _ in range(times):
        breaker = breaker.failed(now_ns)
    return breaker


def test_some_failures_in_a_row_are_borne() -> None:
    assert FAILURES_TO_OPEN == 5
    assert failed(4).lets(0)
    assert failed(4).succeeded().failed(0).lets(0)
    assert failed(4).trying(7).lets(7)
    assert not failed(4).is_open


def test_after_five_nobody_is_asked_for_half_a_minute() -> None:
    breaker = failed(5, 100)
    assert OPEN_NS == 30_000_000_000
    assert not breaker.lets(100)
    assert not breaker.lets(100 + OPEN_NS - 1)
    assert breaker.lets(100 + OPEN_NS)
    assert breaker.is_open, "until it has answered"


def test_then_one_asks_and_the_others_wait_for_what_comes_of_it() -> None:
    now = OPEN_NS
    asking = failed(5).trying(now)
    assert not asking.lets(now)
    assert asking.succeeded() == Breaker()
    assert not asking.failed(now + 5).lets(now + 5 + OPEN_NS - 1)
    assert asking.failed(now + 5).lets(now + 5 + OPEN_NS)
