from dataclasses import replace

import pytest

from controller.fleet.attestation_result import StreamState
from controller.verifier.challenge import (
    AuditHead,
    ChallengeStore,
    IssuedChallenge,
    build_challenge,
)
from controller.verifier.context import ReceivedMessage
from gpuwarden.evidence.canonical import canonical_json, sha256_hex
from gpuwarden.evidence.model import TYPE_FAILURE_NOTICE, Challenge
from gpuwarden.evidence.strict_json import decode
from gpuwarden.moment import Moment, wall_ns
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.ca import SpiffeCa
from tests.builders.evidence import BOOTTIME_NS, CLUSTER, SETTINGS, WALL, Scene, nonces

CA = SpiffeCa(at=WALL)
SCENE = Scene(ca=CA)
STREAM: StreamState = SCENE.opened()
TTL = SETTINGS.challenge_ttl_ns


def issued(number: int = 1, at: int = BOOTTIME_NS) -> IssuedChallenge:
    return replace(SCENE.challenge(STREAM, number), issued_ns=at, expires_ns=at + TTL)


def answer(challenge: IssuedChallenge, *, spare: bool = False) -> ReceivedMessage:
    scene = Scene(ca=CA, failure_notice=spare)
    return scene.signed(STREAM, challenge)


def code_of(popped: IssuedChallenge | Refusal) -> ReasonCode | None:
    return popped.code if isinstance(popped, Refusal) else None


def test_the_document_says_everything_the_answer_must_bind_to() -> None:
    payload, remembered = build_challenge(
        SETTINGS,
        STREAM,
        nonces(7),
        now=Moment(5, wall_ns(WALL)),
        interval_ns=24_500_000_000,
        want=("inventory", "hardware-report"),
        audit=AuditHead("origin\n1\nroot\n", ("p",), "key", ("change",)),
    )
    document = decode(payload, Challenge, max_bytes=4096)
    assert payload == canonical_json(document)
    assert document == Challenge(
        protocol=1,
        controller="spiffe://example.org/gpuwarden/controller",
        cluster=CLUSTER,
        trust_domain="example.org",
        stream_id=b"s".hex() * 16,
        challenge_id="00" * 15 + "07",
        nonce="01" + "00" * 30 + "07",
        spare_nonce="02" + "00" * 30 + "07",
        hello_sha256=sha256_hex(canonical_json(SCENE.hello_document())),
        leaf_sha256=STREAM.leaf_sha256,
        want=("inventory", "hardware-report"),
        ttl_ms=15_000,
        interval_ms=24_500,
        checkpoint="origin\n1\nroot\n",
        consistency_proof=("p",),
        wall_ms="1777896000000",
        log_key="key",
        log_key_changes=("change",),
    )
    assert remembered.sha256 == sha256_hex(payload)
    assert remembered.want == document.want
    assert remembered.expires_ns == 5 + TTL


def test_without_an_audit_log_nothing_is_claimed_about_it() -> None:
    payload, _ = build_challenge(SETTINGS, STREAM, nonces(1), now=Moment(0, wall_ns(WALL)))
    document = decode(payload, Challenge, max_bytes=4096)
    assert (document.checkpoint, document.consistency_proof) == (None, ())
    assert (document.log_key, document.log_key_changes) == (None, ())
    assert document.interval_ms == 25_000
    assert document.want == ("inventory",)


def test_times_are_whole_milliseconds() -> None:
    settings = replace(SETTINGS, challenge_ttl_ns=1_999_999)
    payload, _ = build_challenge(
        settings, STREAM, nonces(1), now=Moment(0, wall_ns(WALL)), interval_ns=2_000_000
    )
    document = decode(payload, Challenge, max_bytes=4096)
    assert (document.ttl_ms, document.interval_ms) == (1, 2)


def test_a_challenge_is_answered_once() -> None:
    challenge = issued()
    store, first = ChallengeStore().issue(challenge).pop(answer(challenge), BOOTTIME_NS)
    assert first == challenge
    _, second = store.pop(answer(challenge), BOOTTIME_NS)
    assert code_of(second) is ReasonCode.NONCE_REUSED


def test_a_wrong_presentation_uses_it_up_as_well() -> None:
    challenge = issued()
    wrong = replace(answer(challenge), nonce=b"n" * 32)
    store, first = ChallengeStore().issue(challenge).pop(wrong, BOOTTIME_NS)
    assert code_of(first) is ReasonCode.NONCE_MISMATCH
    _, second = store.pop(answer(challenge), BOOTTIME_NS)
    assert code_of(second) is ReasonCode.NONCE_REUSED


def test_the_last_nanosecond_of_the_ttl_still_counts() -> None:
    challenge = issued()
    store = ChallengeStore().issue(challenge)
    assert code_of(store.pop(answer(challenge), BOOTTIME_NS + TTL)[1]) is None
    late = store.pop(answer(challenge), BOOTTIME_NS + TTL + 1)[1]
    assert code_of(late) is ReasonCode.CHALLENGE_EXPIRED


def test_an_older_challenge_may_be_answered_while_it_lives() -> None:
    older, newer = issued(1), issued(2)
    store = ChallengeStore().issue(older).issue(newer)
    store, first = store.pop(answer(older), BOOTTIME_NS)
    assert first == older
    assert store.pop(answer(newer), BOOTTIME_NS)[1] == newer
    assert code_of(store.pop(answer(older), BOOTTIME_NS)[1]) is ReasonCode.NONCE_REUSED


def test_the_spare_nonce_lives_beside_the_nonce_and_longer() -> None:
    challenge = issued()
    store, _ = ChallengeStore().issue(challenge).pop(answer(challenge), BOOTTIME_NS)
    store, news = store.pop(answer(challenge, spare=True), BOOTTIME_NS + 10 * TTL)
    assert news == challenge
    _, again = store.pop(answer(challenge, spare=True), BOOTTIME_NS + 10 * TTL)
    assert code_of(again) is ReasonCode.NONCE_REUSED


def test_bad_news_does_not_use_up_the_nonce() -> None:
    challenge = issued()
    store = ChallengeStore().issue(challenge)
    store, _ = store.pop(answer(challenge, spare=True), BOOTTIME_NS)
    assert store.pop(answer(challenge), BOOTTIME_NS)[1] == challenge


def test_the_next_challenge_ends_the_spare_nonce() -> None:
    older, newer = issued(1), issued(2)
    store = ChallengeStore().issue(older).issue(newer)
    assert (
        code_of(store.pop(answer(older, spare=True), BOOTTIME_NS)[1])
        is ReasonCode.CHALLENGE_EXPIRED
    )
    assert store.pop(answer(newer, spare=True), BOOTTIME_NS)[1] == newer


@pytest.mark.parametrize("spare", [False, True])
def test_the_nonce_of_one_kind_does_not_serve_the_other(spare: bool) -> None:
    challenge = issued()
    other = answer(challenge, spare=not spare)
    message = replace(answer(challenge, spare=spare), nonce=other.nonce)
    popped = ChallengeStore().issue(challenge).pop(message, BOOTTIME_NS)[1]
    assert code_of(popped) is ReasonCode.NONCE_MISMATCH


def test_memory_is_bounded_and_the_oldest_is_forgotten() -> None:
    store = ChallengeStore()
    challenges = [issued(number) for number in range(9)]
    for challenge in challenges:
        store = store.issue(challenge)
    assert len(store.entries) == 8
    assert code_of(store.pop(answer(challenges[0]), BOOTTIME_NS)[1]) is ReasonCode.CHALLENGE_UNKNOWN
    assert store.pop(answer(challenges[1]), BOOTTIME_NS)[1] == challenges[1]


def test_the_newest_challenge_is_open_until_it_is_answered() -> None:
    first, second = issued(1), issued(2, BOOTTIME_NS + 7)
    store = ChallengeStore()
    assert store.open_until_ns == 0
    store = store.issue(first)
    assert store.open_until_ns == BOOTTIME_NS + TTL
    store = store.issue(second)
    assert store.open_until_ns == BOOTTIME_NS + 7 + TTL
    store, _ = store.pop(answer(first), BOOTTIME_NS)
    store, _ = store.pop(answer(second, spare=True), BOOTTIME_NS)
    assert store.open_until_ns == BOOTTIME_NS + 7 + TTL
    store, _ = store.pop(answer(second), BOOTTIME_NS)
    assert store.open_until_ns == 0


def test_a_type_that_nobody_knows_is_no_way_to_try_a_nonce_twice() -> None:
    challenge = issued()
    strange = replace(answer(challenge), payload_type="x")
    store, _ = ChallengeStore().issue(challenge).pop(strange, BOOTTIME_NS)
    assert code_of(store.pop(answer(challenge), BOOTTIME_NS)[1]) is ReasonCode.NONCE_REUSED
    assert strange.payload_type != TYPE_FAILURE_NOTICE
