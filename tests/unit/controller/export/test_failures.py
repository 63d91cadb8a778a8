"""What follows after a failure."""

from datetime import UTC, datetime

import pytest

from controller.export.failures import (
    LONGEST_WAIT_S,
    Attempts,
    Cure,
    DeliveryError,
    Step,
    cure_of_status,
    is_redirect,
    retry_after_s,
)

NOW = datetime(2026, 11, 29, 11, 45, tzinfo=UTC)


@pytest.mark.parametrize(
    ("cure", "tried", "records", "step"),
    [
        (Cure.TIME, 1, 10, Step.WAIT),
        (Cure.TIME, 2, 10, Step.WAIT),
        (Cure.TIME, 3, 10, Step.BURY),
        (Cure.TIME, 4, 10, Step.BURY),
        (Cure.LESS, 1, 2, Step.SPLIT),
        (Cure.LESS, 9, 2, Step.SPLIT),
        (Cure.LESS, 1, 1, Step.BURY),
        (Cure.NOTHING, 1, 10, Step.BURY),
    ],
)
def test_step(cure: Cure, tried: int, records: int, step: Step) -> None:
    assert Attempts(3).after(DeliveryError("x", cure), tried, records) is step


@pytest.mark.parametrize(
    ("status", "cure"),
    [
        (400, Cure.LESS),
        (413, Cure.LESS),
        (422, Cure.LESS),
        (408, Cure.TIME),
        (425, Cure.TIME),
        (429, Cure.TIME),
        (500, Cure.TIME),
        (503, Cure.TIME),
        (599, Cure.TIME),
        (401, Cure.NOTHING),
        (403, Cure.NOTHING),
        (404, Cure.NOTHING),
        (301, Cure.NOTHING),
        (308, Cure.NOTHING),
        (600, Cure.NOTHING),
    ],
)
def test_what_helps_against_a_status(status: int, cure: Cure) -> None:
    assert cure_of_status(status) is cure


def test_redirects() -> None:
    assert [x for x in (299, 300, 307, 399, 400) if is_redirect(x)] == [300, 307, 399]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, 0.0),
        ("", 0.0),
        ("7", 7.0),
        (" 7 ", 7.0),
        ("0", 0.0),
        ("99999", LONGEST_WAIT_S),
        ("-1", 0.0),
        ("soon", 0.0),
        ("Sun, 29 Nov 2026 11:45:30 GMT", 30.0),
        ("Sun, 29 Nov 2026 11:45:30 -0000", 30.0),
        ("Sun, 29 Nov 2026 11:44:30 GMT", 0.0),
        ("Sun, 29 Nov 2027 11:44:30 GMT", LONGEST_WAIT_S),
        ("Sun, 29 Nov 2026 11:45:30 +99999999999999999999", 0.0),
        ("Sun, 29 Nov 2026 99999999999999999999:00:00 GMT", 0.0),
        ("29 Nov 99999999999999999999 11:45:30 GMT", 0.0),
        ("Sun, 29 Nov 99999 11:45:30 GMT", 0.0),
        ("9" * 5000, LONGEST_WAIT_S),
    ],
)
def test_retry_after(header: str | None, seconds: float) -> None:
    assert retry_after_s(header, NOW) == seconds


def test_an_error_asks_for_no_time_by_itself() -> None:
    assert DeliveryError("x", Cure.TIME).retry_after_s == 0.0
