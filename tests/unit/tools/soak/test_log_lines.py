"""Lines as the programs of a soak write them: which are errors, and which kinds are known."""

import json
from datetime import datetime

import pytest

from tests.soak.log_lines import (
    LATE_S,
    Cause,
    ErrorLine,
    Expected,
    Format,
    Kind,
    Sorted,
    Span,
    errors_in,
    sort,
)

KILLED = Expected("replica gone", "kube-", "connection refused", "it was killed")
ANY_REFUSAL = Expected("refusal", "kube-apiserver", "refused", "somebody refused")


def of_ours(**fields: object) -> str:
    return json.dumps({"timestamp": "2026-01-01T00:00:00Z", **fields})


@pytest.mark.parametrize("level", ["warning", "error", "critical"])
def test_our_warnings_and_errors_count(level: str) -> None:
    line = of_ours(level=level, event="kube.event.failed", reason="409")
    (found,) = errors_in("controller-0", line, Format.OURS, 2026)
    assert found == ErrorLine("controller-0", 'kube.event.failed {"reason": "409"}', 1767225600.0)


def test_what_is_well_and_copies_of_audit_records_do_not_count() -> None:
    record = json.dumps({"v": "gpuwarden.dev/audit/v1", "level": "error"})
    lines = [of_ours(level="info", event="process.started"), record, ""]
    assert errors_in("controller-0", "\n".join(lines), Format.OURS, 2026) == []


@pytest.mark.parametrize("text", ["Traceback (most recent call last):", "[1]", '{"v": "gpuw'])
def test_what_is_no_log_line_of_ours_counts(text: str) -> None:
    assert errors_in("controller-0", text, Format.OURS, 2026) == [ErrorLine("controller-0", text)]


def test_errors_of_klog() -> None:
    written = """
I1129 06:35:16.001535      83 controller.go:201] "Started"
W1129 06:35:16.001535      83 controller.go:202] "Hm"
E1129 06:35:16.001535      83 status.go:71] "Unhandled Error" err="x"
\tsecond line of the message
F1129 06:35:16.001535   29513 run.go:5] gone
panic: runtime error
goroutine 7 [running]:
"""
    assert [x.text for x in errors_in("kube-scheduler", written, Format.KLOG, 2026)] == [
        'status.go:71 "Unhandled Error" err="x"',
        "run.go:5 gone",
        "panic: runtime error",
        "goroutine 7 [running]:",
    ]


def test_errors_of_zap() -> None:
    error, torn = '{"level":"error","msg":"failed to"}', "fatal: no disk"
    written = f'{{"level":"warn","msg":"slow"}}\n{error}\n{torn}'
    assert [x.text for x in errors_in("etcd", written, Format.ZAP, 2026)] == [error, torn]


def test_errors_of_the_soak_itself() -> None:
    written = "WARNING 1767225600.250 asyncio: slow\nTraceback (most recent call last):"
    assert [x.text for x in errors_in("agents", written, Format.PLAIN, 2026)] == [
        "asyncio slow",
        "Traceback (most recent call last):",
    ]


def test_lines_say_when_as_far_as_they_do() -> None:
    line = 'E1129 06:35:16.250000      83 status.go:71] "x"'
    (of_klog,) = errors_in("kube-scheduler", line, Format.KLOG, 2026)
    local = datetime(2026, 11, 29, 6, 35, 16, 250_000).astimezone()
    assert of_klog.at == local.timestamp()
    found = errors_in("agents", "ERROR 1767225600.250 a: b\nTraceback", Format.PLAIN, 2026)
    assert [x.at for x in found] == [1767225600.25, None]
    (timeless,) = errors_in("controller-0", '{"level": "error"}', Format.OURS, 2026)
    assert timeless.at is None


@pytest.mark.parametrize(
    ("program", "at", "fits"),
    [
        ("controller-1", 100, True),
        ("controller-1", 99.9, False),
        ("controller-1", 110 + LATE_S, True),
        ("controller-1", 110.1 + LATE_S, False),
        ("controller-1", None, False),
        ("controller-0", 105, False),
        ("controller-1", 205, False),
    ],
)
def test_what_a_kill_brings_may_be_said_while_it_lasts(
    program: str, at: float | None, *, fits: bool
) -> None:
    killed = Expected("gone", "controller-", "held", "killed", during=(Cause.KILL,), own=True)
    spans = (Span(Cause.KILL, 100, 110, "controller-1"), Span(Cause.ROTATION, 200, 210))
    found = sort([ErrorLine(program, "held", at)], [killed], spans)
    assert bool(found.explained) is fits


def test_a_span_counts_for_all_programs_where_the_kind_is_not_about_the_own_one() -> None:
    killed = Expected("gone", "", "refused", "killed", during=(Cause.KILL, Cause.STOP), late_s=1)
    line = ErrorLine("agents", "refused", 111)
    for cause, explained in ((Cause.KILL, 1), (Cause.STOP, 1), (Cause.ROTATION, 0)):
        found = sort([line], [killed], [Span(cause, 100, 110, "controller-1")])
        assert len(found.explained) == explained


def test_each_line_is_of_the_first_kind_that_fits_or_unexplained() -> None:
    known = ErrorLine("kube-apiserver", "dial: connection refused")
    other = ErrorLine("kube-apiserver", "quota refused")
    of_another_program = ErrorLine("etcd", "connection refused")
    found = sort([known, other, known, of_another_program], [KILLED, ANY_REFUSAL])
    assert found == Sorted(
        (Kind("replica gone", 2, "it was killed"), Kind("refusal", 1, "somebody refused")),
        (of_another_program,),
    )


def test_a_kind_that_was_not_seen_is_not_told() -> None:
    assert sort([], [KILLED]) == Sorted((), ())
