from tests.whole_run.verdict import MAY_LACK, verdict

COLLECTED = [{"test": "a"}, {"test": "b"}]


def end(test: str, outcome: str, reason: str = "") -> dict[str, str]:
    return {"test": test, "outcome": outcome, "reason": reason}


def test_every_collected_test_passed() -> None:
    found = verdict(COLLECTED, [end("a", "passed"), end("b", "passed")])
    assert found.is_whole
    assert (found.collected, found.passed) == (2, 2)


def test_what_was_lost_on_the_way_is_named() -> None:
    found = verdict(COLLECTED, [end("a", "passed")])
    assert found.differences == ("b: was collected and never run",)


def test_what_nobody_collected_is_named() -> None:
    found = verdict(COLLECTED, [end("a", "passed"), end("b", "passed"), end("c", "passed")])
    assert found.differences == ("c: was run but not collected",)


def test_nothing_collected_is_no_success() -> None:
    assert verdict([], []).differences == ("no test was collected",)


def test_a_failure_in_the_clean_up_counts_whatever_comes_after() -> None:
    lines = [end("a", "passed"), end("a", "failed"), end("a", "passed"), end("b", "passed")]
    found = verdict(COLLECTED, lines)
    assert found.failed == ("a",)
    assert found.differences == ("a: failed",)


def test_a_known_lack_is_left_out_with_its_reason() -> None:
    reason = f"{MAY_LACK[2]}root: run as root"
    found = verdict(COLLECTED, [end("a", "passed"), end("b", "skipped", reason)])
    assert found.is_whole
    assert found.left_out == (("b", reason),)


def test_another_reason_leaves_nothing_out() -> None:
    found = verdict(COLLECTED, [end("a", "passed"), end("b", "skipped", "not today")])
    assert found.differences == ("b: was left out without a known reason: not today",)
