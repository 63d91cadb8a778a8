from collections.abc import Callable
from dataclasses import replace

import pytest

from agent.session.machine import (
    REPEAT_NS,
    About,
    Acknowledged,
    Action,
    Answer,
    Challenged,
    ChallengeDenied,
    Due,
    End,
    EndReason,
    Event,
    EvidenceFailed,
    GpuFailed,
    Late,
    Malformed,
    PeerEnded,
    Phase,
    Read,
    ReadingDone,
    Report,
    SendNotice,
    State,
    StopAsked,
    StreamTiming,
    Verdict,
    VerdictReceived,
    greeted,
    step,
)
from tests.builders.attesting import reading, xid

S = 1_000_000_000
ONE, TWO = "01" * 16, "02" * 16
READING = reading()


def verdict(challenge_id: str = ONE, *, accepted: bool = True, **changes: object) -> Verdict:
    values: dict[str, object] = {
        "challenge_id": challenge_id,
        "accepted": accepted,
        "code": "ACCEPTED" if accepted else "INVENTORY_INCOMPLETE",
        "detail": "",
        "attestation_hash": "v1:sha256:00" if accepted else "",
        "level": "L0" if accepted else "",
        "fresh_for_ms": 90_000,
        "next_challenge_ms": 25_000,
    }
    return Verdict(**(values | changes))  # type: ignore[arg-type] # checked by the tests that use it


ACK = verdict(attestation_hash="")
"""Of a notice."""


def challenge(challenge_id: str = ONE) -> Challenged:
    return Challenged(challenge_id, ttl_ms=15_000, interval_ms=25_000)


def run(*events: Event, now_ns: int = 0) -> tuple[State, list[tuple[Action, ...]]]:
    state = greeted(now_ns, StreamTiming())
    log = []
    for event in events:
        state, actions = step(state, event, now_ns)
        log.append(actions)
    return state, log


def done(challenge_id: str = ONE) -> ReadingDone:
    return ReadingDone(challenge_id, READING)


def test_one_round() -> None:
    judged = verdict()
    state, log = run(challenge(), done(), VerdictReceived(judged))
    assert log == [(Read(ONE),), (Answer(READING),), (Report(judged, About.EVIDENCE),)]
    assert state.phase is Phase.WAITING
    assert state.deadline_ns == int(27.5 * S) + 10 * S


def test_a_round_after_a_refusal_goes_on() -> None:
    judged = verdict(accepted=False)
    state, log = run(challenge(), done(), VerdictReceived(judged), challenge(TWO))
    assert log[2] == (Report(judged, About.EVIDENCE),)
    assert log[3] == (Read(TWO),)
    assert state.phase is Phase.CHALLENGED


@pytest.mark.parametrize(
    ("events", "reason", "detail"),
    [
        ((Due(),), EndReason.SILENT, "no challenge after Hello"),
        ((challenge(), done(), Due()), EndReason.SILENT, "no verdict on evidence"),
        (
            (challenge(), done(), VerdictReceived(verdict()), Due()),
            EndReason.SILENT,
            "no next challenge",
        ),
        ((ChallengeDenied("chain: x"),), EndReason.UNPROVEN, "chain: x"),
        ((Malformed("empty"),), EndReason.PROTOCOL, "empty"),
        ((EvidenceFailed("too large"),), EndReason.LOCAL, "too large"),
        ((StopAsked("process ends"),), EndReason.STOPPED, "process ends"),
        ((PeerEnded("gone"),), EndReason.PEER, "gone"),
        ((VerdictReceived(verdict()),), EndReason.PROTOCOL, "accepted what was not sent"),
        (
            (challenge(), VerdictReceived(verdict())),
            EndReason.PROTOCOL,
            "accepted what was not sent",
        ),
        (
            (challenge(), done(), VerdictReceived(verdict(TWO))),
            EndReason.PROTOCOL,
            "accepted what was not sent",
        ),
        (
            (challenge(), done(), VerdictReceived(verdict()), VerdictReceived(verdict())),
            EndReason.PROTOCOL,
            "accepted what was not sent",
        ),
    ],
)
def test_what_ends_a_stream(events: tuple[Event, ...], reason: EndReason, detail: str) -> None:
    state, log = run(*events)
    assert log[-1][-1] == End(reason, detail)
    assert state.phase is Phase.ENDED
    assert state.deadline_ns is None


@pytest.mark.parametrize("code", ["STREAM_SUPERSEDED", "DUPLICATE_AGENT"])
@pytest.mark.parametrize(
    "last",
    [
        lambda code: PeerEnded("aborted", code),
        lambda code: VerdictReceived(verdict("", accepted=False, code=code)),
    ],
)
def test_superseded_is_distinguished(code: str, last: Callable[[str], Event]) -> None:
    _, log = run(challenge(), last(code))
    end = log[-1][-1]
    assert isinstance(end, End)
    assert (end.reason, end.code) == (EndReason.SUPERSEDED, code)


def test_a_refused_stream_says_why() -> None:
    judged = verdict("", accepted=False, code="NODE_DENIED", next_challenge_ms=0, detail="by x")
    _, log = run(VerdictReceived(judged))
    assert log == [
        (Report(judged, About.STREAM), End(EndReason.REFUSED, "by x", "NODE_DENIED")),
    ]


def test_a_revocation_between_rounds_is_reported_and_survived() -> None:
    judged = verdict("", accepted=False, code="NODE_DENIED")
    state, log = run(challenge(), done(), VerdictReceived(verdict()), VerdictReceived(judged))
    assert log[-1] == (Report(judged, About.STREAM),)
    assert state.phase is Phase.WAITING


def test_a_late_reading_costs_the_round_only() -> None:
    state, log = run(challenge(), Due(), done(), challenge(TWO))
    assert log[1:] == [(Late(ONE),), (), (Read(TWO),)]
    assert state.phase is Phase.CHALLENGED


def test_a_newer_challenge_takes_over_while_reading() -> None:
    _, log = run(challenge(), challenge(TWO), done(ONE), done(TWO))
    assert log == [(Read(ONE),), (Read(TWO),), (), (Answer(READING),)]


def test_a_verdict_may_cross_the_next_challenge() -> None:
    state, log = run(challenge(), done(), challenge(TWO), VerdictReceived(verdict(ONE)))
    assert log[-1] == (Report(verdict(ONE), About.EVIDENCE),)
    assert state.phase is Phase.CHALLENGED
    state, log = run(challenge(), done(), challenge(TWO), done(TWO), VerdictReceived(verdict(ONE)))
    assert log[-1] == (Report(verdict(ONE), About.EVIDENCE),)
    assert state.phase is Phase.ANSWERED


def test_a_refusal_that_may_be_the_news_s_does_not_take_the_evidence_s_place() -> None:
    refused = verdict(accepted=False, code="LIMIT_RATE")
    state, log = run(
        challenge(), GpuFailed(xid()), done(), VerdictReceived(refused), VerdictReceived(verdict())
    )
    assert log[-1] == (Report(verdict(), About.EVIDENCE),)
    assert state.phase is Phase.WAITING


def test_deadlines_follow_the_phase() -> None:
    state = greeted(100 * S, StreamTiming())
    assert state.deadline_ns == 110 * S
    state, _ = step(state, challenge(), 101 * S)
    assert state.deadline_ns == 116 * S
    state, _ = step(state, done(), 102 * S)
    assert state.deadline_ns == 117 * S
    late, _ = step(greeted(0, StreamTiming()), challenge(), 0)
    late, _ = step(late, Due(), 15 * S)
    assert late.deadline_ns == 15 * S + int(27.5 * S) + 10 * S


def test_a_failure_notice_is_reported_at_once_and_once() -> None:
    first, second = xid(79), xid(48)
    state, log = run(challenge(), GpuFailed(first), GpuFailed(second), GpuFailed(second))
    assert log[1:] == [(SendNotice((first,)),), (), ()]
    assert state.queue == (second,)
    state, _ = step(state, VerdictReceived(ACK), 0)
    state, actions = step(state, challenge(TWO), 0)
    assert actions == (SendNotice((second,)), Read(TWO))
    assert not state.has_spare


def test_bad_news_before_the_first_challenge_waits_for_it() -> None:
    _, log = run(GpuFailed(xid()), challenge())
    assert log == [(), (SendNotice((xid(),)), Read(ONE))]


def test_none_of_many_is_lost() -> None:
    events = tuple(xid(number) for number in range(70))
    state, _ = run(*(GpuFailed(event) for event in events))
    state, actions = step(state, replace(challenge(), wants_failures=True), 0)
    assert actions == (SendNotice(events[:64]), Read(ONE))
    state, actions = step(state, VerdictReceived(ACK), 0)
    assert actions == (Report(ACK, About.NOTICE), Acknowledged(events[:64]))
    _, actions = step(state, replace(challenge(TWO), wants_failures=True), 0)
    assert actions == (SendNotice(events[64:]), Read(TWO))


def test_a_controller_that_wants_no_lists_is_sent_one_at_a_time() -> None:
    _, log = run(GpuFailed(xid(48)), GpuFailed(xid(94)), challenge())
    assert log[-1] == (SendNotice((xid(48),)), Read(ONE))


def test_what_was_refused_is_sent_again_before_anything_else() -> None:
    refused = verdict(accepted=False, code="ENROLLMENT_STALE")
    state, log = run(challenge(), GpuFailed(xid(48)), GpuFailed(xid(94)), VerdictReceived(refused))
    assert log[-1] == (Report(refused, About.NOTICE),)
    state, actions = step(state, challenge(TWO), 0)
    assert actions == (SendNotice((xid(48),)), Read(TWO))


def test_a_notice_that_crosses_a_new_challenge_is_sent_again_at_once() -> None:
    expired = verdict(accepted=False, code="CHALLENGE_EXPIRED")
    _, log = run(challenge(), GpuFailed(xid()), challenge(TWO), VerdictReceived(expired))
    assert log[2] == (Read(TWO),)
    assert log[3] == (Report(expired, About.NOTICE), SendNotice((xid(),)))


def test_the_same_failure_is_reported_again_only_after_a_while_and_is_counted() -> None:
    def at(ms: int) -> GpuFailed:
        return GpuFailed(replace(xid(), happened_ms=ms))

    state, _ = run(challenge(), at(1), VerdictReceived(ACK))
    for event in (at(1), at(2), at(3)):
        state, actions = step(state, event, 0)
        assert actions == ()
    state, actions = step(state, challenge(TWO), REPEAT_NS - 1)
    assert actions == (Read(TWO),)
    _, actions = step(state, challenge("03" * 16), REPEAT_NS)
    assert actions[0] == SendNotice((replace(xid(), happened_ms=3, count=2),))


def test_another_failure_does_not_wait_for_that() -> None:
    state, _ = run(challenge(), GpuFailed(xid(31)), VerdictReceived(ACK), challenge(TWO))
    _, actions = step(state, GpuFailed(xid(48)), 0)
    assert actions == (SendNotice((xid(48),)),)


def test_verdicts_on_news_do_not_accept_anything() -> None:
    state, log = run(
        challenge(), GpuFailed(xid()), VerdictReceived(ACK), done(), VerdictReceived(verdict())
    )
    assert log[2] == (Report(ACK, About.NOTICE), Acknowledged((xid(),)))
    assert log[4] == (Report(verdict(), About.EVIDENCE),)
    assert state.phase is Phase.WAITING


def test_a_refusal_of_news_after_the_evidence_leaves_the_round_alone() -> None:
    refused = verdict(accepted=False, code="CHALLENGE_EXPIRED")
    state, log = run(
        challenge(), done(), VerdictReceived(verdict()), GpuFailed(xid()), VerdictReceived(refused)
    )
    assert log[-1] == (Report(refused, About.NOTICE),)
    assert state.phase is Phase.WAITING


def test_an_ended_stream_does_nothing() -> None:
    state, _ = run(PeerEnded("gone"))
    for event in (challenge(), done(), Due(), GpuFailed(xid()), StopAsked("x")):
        assert step(state, event, 0) == (state, ())
