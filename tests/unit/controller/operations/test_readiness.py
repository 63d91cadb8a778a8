from dataclasses import replace

import pytest

from controller.operations.readiness import (
    ClockAnchor,
    ReadinessFacts,
    first_round,
    readiness,
    window_ns,
)

MS = 1_000_000
S = 1000 * MS

READY = ReadinessFacts(
    first_round=None,
    svid_valid=True,
    svid_state="ok",
    audit_error=None,
    stores_error=None,
    directory_error=None,
    clock_suspect=False,
    draining=False,
)


def test_the_window_is_one_late_round_and_its_answer() -> None:
    assert window_ns(25 * S, 15 * S) == 42_500 * MS


def test_not_ready_until_every_agent_could_have_been_heard() -> None:
    end = 5 * S + 42_500 * MS
    text = first_round(5 * S, 25 * S, 15 * S, end - MS)
    assert text == "first round: 1 ms left to hear from every agent"
    assert first_round(5 * S, 25 * S, 15 * S, end - 1) == text
    assert first_round(5 * S, 25 * S, 15 * S, end) is None


def test_not_ready_while_not_listening() -> None:
    assert first_round(None, 25 * S, 15 * S, 10**15) == "first round: not listening for agents yet"


def test_ready_when_no_condition_is_against_it() -> None:
    assert readiness(READY).ready


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"first_round": "first round: wait"}, "first round: wait"),
        ({"draining": True}, "draining: the process is about to end"),
        ({"svid_valid": False, "svid_state": "none since 3 s"}, "svid: none since 3 s"),
        ({"audit_error": "disk full"}, "audit: disk full"),
        ({"stores_error": "stale"}, "stores: stale"),
        ({"directory_error": "stale"}, "directory: stale"),
        ({"certificates_error": "waiting for x"}, "certificates: waiting for x"),
    ],
)
def test_each_reason_alone_makes_it_unready(change: dict[str, object], reason: str) -> None:
    now = readiness(replace(READY, **change))  # type: ignore[arg-type]  # parametrised
    assert now.reasons == (reason,)


def test_reasons_are_reported_together_in_order() -> None:
    facts = replace(
        READY, draining=True, svid_valid=False, audit_error="full", first_round="first round: x"
    )
    assert [line.split(":")[0] for line in readiness(facts).reasons] == [
        "draining",
        "first round",
        "svid",
        "audit",
    ]


def test_warnings_do_not_make_it_unready() -> None:
    facts = replace(READY, clock_suspect=True, insecure=("InsecureStaticNodes: a list",))
    now = readiness(facts)
    assert now.ready
    assert now.warnings == (
        "InsecureStaticNodes: a list",
        "CONTROLLER_CLOCK_SUSPECT: wall clock moved against the boot-time clock",
    )


def test_what_the_ledger_waits_for_is_a_warning() -> None:
    now = readiness(replace(READY, ledger_uncertainty="the log is away"))
    assert now.ready
    assert now.warnings == ("ledger: the log is away",)


ANCHOR = ClockAnchor(boottime_ns=100 * S, wall_ns=5000 * S, tolerance_ns=30 * S)


@pytest.mark.parametrize(
    ("elapsed", "step", "suspect"),
    [
        (0, 0, False),
        (10, 30, False),
        (10, 31, True),
        (10, -31, True),
        (100_000, 120, False),
        (100_000, 131, True),
        (100_000, -131, True),
    ],
)
def test_a_step_is_suspect_and_drift_is_not(elapsed: int, step: int, suspect: bool) -> None:
    now, wall = (100 + elapsed) * S, (5000 + elapsed + step) * S
    assert ANCHOR.suspect(now, wall) is suspect
    assert ANCHOR.offset_ns(now, wall) == step * S


def test_what_listeners_warn_of_is_a_warning() -> None:
    now = readiness(replace(READY, listener_warnings=("admission: nobody gets in",)))
    assert now.ready
    assert now.warnings == ("admission: nobody gets in",)


def test_a_watch_that_is_down_is_a_warning() -> None:
    now = readiness(replace(READY, cluster_warnings=("kubernetes: pods",)))
    assert (now.ready, now.warnings) == (True, ("kubernetes: pods",))


def test_a_managed_certificate_that_is_not_renewed_is_a_warning() -> None:
    now = readiness(replace(READY, certificate_warnings=("certificates: Secret x",)))
    assert (now.ready, now.warnings) == (True, ("certificates: Secret x",))
