from dataclasses import replace

import pytest

from controller.readiness import ReadinessFacts, readiness, window_ns

MS = 1_000_000
S = 1000 * MS

READY = ReadinessFacts(
    listening_since_ns=5 * S,
    interval_ns=25 * S,
    challenge_ttl_ns=15 * S,
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
    end = READY.listening_since_ns + 42_500 * MS  # type: ignore[operator]  # not None above
    before = readiness(READY, end - MS)
    assert before.reasons == ("first round: 1 ms left to hear from every agent",)
    assert not before.ready
    assert readiness(READY, end).ready


def test_not_ready_while_not_listening() -> None:
    facts = replace(READY, listening_since_ns=None)
    assert readiness(facts, 10**15).reasons == ("first round: not listening for agents yet",)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"draining": True}, "draining: the process is about to end"),
        ({"svid_valid": False, "svid_state": "none since 3 s"}, "svid: none since 3 s"),
        ({"audit_error": "disk full"}, "audit: disk full"),
        ({"stores_error": "stale"}, "stores: stale"),
        ({"directory_error": "stale"}, "directory: stale"),
    ],
)
def test_each_reason_alone_makes_it_unready(change: dict[str, object], reason: str) -> None:
    now = readiness(replace(READY, **change), 10**15)  # type: ignore[arg-type]  # parametrised
    assert now.reasons == (reason,)


def test_reasons_are_told_together_in_order() -> None:
    facts = replace(READY, draining=True, svid_valid=False, audit_error="full")
    assert [line.split(":")[0] for line in readiness(facts, 0).reasons] == [
        "draining",
        "first round",
        "svid",
        "audit",
    ]


def test_warnings_do_not_make_it_unready() -> None:
    facts = replace(READY, clock_suspect=True, insecure=("InsecureStaticNodes",))
    now = readiness(facts, 10**15)
    assert now.ready
    assert now.warnings == (
        "insecure stand-in in use: InsecureStaticNodes",
        "CONTROLLER_CLOCK_SUSPECT: wall clock moved against the boot-time clock",
    )
