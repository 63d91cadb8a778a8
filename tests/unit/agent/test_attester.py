from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from agent.attester import (
    MAX_EVIDENCE_BYTES,
    AttestedStream,
    EvidenceTooLargeError,
    NotChallengedError,
)
from agent.challenge import ChallengeDefect, ChallengeRefusal
from agent.claims.allocations import AllocationReading, unread
from agent.claims.pods import NOT_LOOKED, PodsReading
from gpuwarden.evidence.canonical import canonical_json, sha256_hex
from gpuwarden.evidence.envelope import evidence_digest, verify
from gpuwarden.evidence.model import (
    TYPE_EVIDENCE,
    TYPE_EVIDENCE_WITH_PODS,
    TYPE_FAILURE_NOTICE,
    TYPE_FAILURES,
    ZERO_DIGEST,
    Allocation,
    Challenge,
    Evidence,
    EvidenceWithPods,
    FailedRead,
    FailureNotice,
    FailureNotices,
    Hello,
    WitnessedCheckpoint,
)
from gpuwarden.evidence.strict_json import decode
from sandbox.spiffe.ca import utc_now
from tests.builders.attesting import AGENT, AT, NODE, SvidSigner, attester, reading, xid
from tests.builders.ca import SpiffeCa
from tests.builders.challenges import CONTROLLER, challenge, signed
from tests.builders.inventory import gpu_uuid

NOW: datetime = utc_now()
CA = SpiffeCa(at=NOW)
SVID = CA.svid(AGENT)
SIGNER = SvidSigner(SVID)
CONTROLLER_SVID = CA.svid(CONTROLLER)
CHECKPOINTS = (WitnessedCheckpoint(origin="main/0", checkpoint="main/0\n1\nAAAA\n"),)
UNREAD = PodsReading(None, (FailedRead(fact="pods", gpu=None, call="x", error="TIMEOUT"),))
HELLO = attester().hello(CHECKPOINTS)


def opened(**changes: Any) -> tuple[AttestedStream, Challenge]:
    return challenged(attester().open_stream(HELLO, SVID.leaf), **changes)


def challenged(stream: AttestedStream, **changes: Any) -> tuple[AttestedStream, Challenge]:
    document = challenge(HELLO, SVID.leaf.public_bytes(Encoding.DER), **changes)
    after = attester().challenged(
        stream, signed(document, CONTROLLER_SVID), roots=CA.roots, now=NOW
    )
    assert isinstance(after, AttestedStream), after
    return after, document


def test_hello_says_who_speaks() -> None:
    hello = decode(HELLO, Hello, max_bytes=4096)
    assert canonical_json(hello) == HELLO
    assert (hello.protocol, hello.node_name, hello.instance_id) == (1, NODE, "ab" * 16)
    assert hello.checkpoints == CHECKPOINTS


def test_a_stream_is_bound_to_its_hello_and_leaf() -> None:
    stream = attester().open_stream(HELLO, SVID.leaf)
    assert stream.hello_sha256 == sha256_hex(HELLO)
    assert stream.leaf_sha256 == SVID.leaf.fingerprint(SHA256()).hex()
    assert (stream.seq, stream.prev) == (0, ZERO_DIGEST)


def test_evidence_answers_its_challenge() -> None:
    stream, document = opened()
    failed = (FailedRead(fact="vbios", gpu=None, call="nvmlX", error="UNKNOWN"),)
    message = attester().evidence(
        stream, reading(2, failed=failed), CHECKPOINTS, signer=SIGNER, at=AT
    )
    outer = message.request.evidence
    assert (outer.stream_id.hex(), outer.challenge_id.hex()) == (
        document.stream_id,
        document.challenge_id,
    )
    assert outer.nonce.hex() == document.nonce
    assert outer.envelope.payload_type == TYPE_EVIDENCE
    verify(SVID.leaf, TYPE_EVIDENCE, outer.envelope.payload, outer.envelope.signature)
    evidence = decode(outer.envelope.payload, Evidence, max_bytes=MAX_EVIDENCE_BYTES)
    assert canonical_json(evidence) == outer.envelope.payload
    assert evidence.audience == CONTROLLER
    assert evidence.node_name == NODE
    assert evidence.stream_id == document.stream_id
    assert evidence.challenge_id == document.challenge_id
    assert evidence.nonce == document.nonce
    assert evidence.challenge_sha256 == sha256_hex(canonical_json(document))
    assert (evidence.seq, evidence.prev) == (1, ZERO_DIGEST)
    assert (evidence.wall_ms, evidence.boottime_ms) == ("1800000000000", "5000")
    assert evidence.inventory == reading(2).inventory
    assert evidence.failed_reads == failed
    assert evidence.checkpoints == CHECKPOINTS
    assert evidence.allocations is None


def test_kubelets_allocations_and_why_there_are_none_are_signed() -> None:
    held = Allocation("team-a", "job", "main", "nvidia.com/gpu", gpu_uuid(1))
    vbios = FailedRead(fact="vbios", gpu=None, call="nvmlX", error="UNKNOWN")
    for found in (AllocationReading((held,)), AllocationReading(()), unread("UNAVAILABLE", "gone")):
        stream, _ = opened()
        given = replace(reading(failed=(vbios,)), allocations=found)
        message = attester().evidence(stream, given, (), signer=SIGNER, at=AT)
        payload = message.request.evidence.envelope.payload
        evidence = decode(payload, Evidence, max_bytes=MAX_EVIDENCE_BYTES)
        assert evidence.allocations == found.allocations
        assert evidence.failed_reads == (vbios, *found.failed_reads)


@pytest.mark.parametrize("found", [PodsReading(("0" * 32,)), NOT_LOOKED, UNREAD])
def test_pods_are_reported_where_the_challenge_asks_for_them(found: PodsReading) -> None:
    stream, _ = opened(want=("inventory", "pods"))
    given = replace(reading(), pods=found)
    message = attester().evidence(stream, given, (), signer=SIGNER, at=AT)
    envelope = message.request.evidence.envelope
    assert envelope.payload_type == TYPE_EVIDENCE_WITH_PODS
    verify(SVID.leaf, TYPE_EVIDENCE_WITH_PODS, envelope.payload, envelope.signature)
    evidence = decode(envelope.payload, EvidenceWithPods, max_bytes=MAX_EVIDENCE_BYTES)
    assert canonical_json(evidence) == envelope.payload
    assert evidence.pods == found.pods
    assert evidence.failed_reads == found.failed_reads
    assert message.digest == evidence_digest(TYPE_EVIDENCE_WITH_PODS, envelope.payload)


def test_seq_and_prev_chain_evidence_and_bad_news() -> None:
    stream, first = opened()
    one = attester().evidence(stream, reading(), (), signer=SIGNER, at=AT)
    assert one.digest == evidence_digest(TYPE_EVIDENCE, one.request.evidence.envelope.payload)
    two = attester().failure_notice(one.stream, [xid()], signer=SIGNER, at=AT)
    outer = two.request.evidence
    assert outer.nonce.hex() == first.spare_nonce
    assert outer.envelope.payload_type == TYPE_FAILURE_NOTICE
    verify(SVID.leaf, TYPE_FAILURE_NOTICE, outer.envelope.payload, outer.envelope.signature)
    news = decode(outer.envelope.payload, FailureNotice, max_bytes=4096)
    assert (news.seq, news.prev, news.kind, news.xid) == (2, one.digest, "xid", 79)
    assert news.nonce == first.spare_nonce
    stream, second = challenged(two.stream, stream_id=first.stream_id)
    three = attester().evidence(stream, reading(), (), signer=SIGNER, at=AT)
    evidence = decode(three.request.evidence.envelope.payload, Evidence, max_bytes=4096)
    assert (evidence.seq, evidence.prev, evidence.nonce) == (3, two.digest, second.nonce)


def test_one_notice_names_several_failures_where_the_challenge_wants_it() -> None:
    stream, _ = opened(want=("inventory", "failures"))
    events = (replace(xid(48), happened_ms=7), replace(xid(94), happened_ms=9, count=3))
    message = attester().failure_notice(stream, events, signer=SIGNER, at=AT)
    envelope = message.request.evidence.envelope
    assert envelope.payload_type == TYPE_FAILURES
    news = decode(envelope.payload, FailureNotices, max_bytes=4096)
    assert [(x.xid, x.happened_ms, x.count) for x in news.failures] == [(48, "7", 1), (94, "9", 3)]


def test_no_evidence_without_a_challenge() -> None:
    stream = attester().open_stream(HELLO, SVID.leaf)
    with pytest.raises(NotChallengedError):
        attester().evidence(stream, reading(), (), signer=SIGNER, at=AT)
    with pytest.raises(NotChallengedError):
        attester().failure_notice(stream, [xid()], signer=SIGNER, at=AT)


def test_each_nonce_is_used_once() -> None:
    stream, _ = opened()
    told = attester().failure_notice(stream, [xid()], signer=SIGNER, at=AT)
    with pytest.raises(NotChallengedError):
        attester().failure_notice(told.stream, [xid()], signer=SIGNER, at=AT)
    answered = attester().evidence(told.stream, reading(), (), signer=SIGNER, at=AT)
    with pytest.raises(NotChallengedError):
        attester().evidence(answered.stream, reading(), (), signer=SIGNER, at=AT)


def test_a_challenge_comes_once() -> None:
    stream, document = opened()
    again = attester().challenged(
        stream, signed(document, CONTROLLER_SVID), roots=CA.roots, now=NOW
    )
    assert isinstance(again, ChallengeRefusal)
    assert again.defect is ChallengeDefect.REPLAY


def test_a_stream_id_of_an_earlier_stream_is_refused() -> None:
    document = challenge(HELLO, SVID.leaf.public_bytes(Encoding.DER))
    judged = attester().challenged(
        attester().open_stream(HELLO, SVID.leaf),
        signed(document, CONTROLLER_SVID),
        roots=CA.roots,
        now=NOW,
        used_stream_ids={document.stream_id},
    )
    assert isinstance(judged, ChallengeRefusal)
    assert judged.defect is ChallengeDefect.REPLAY


def test_evidence_that_nobody_would_take_is_not_made() -> None:
    stream, _ = opened()
    failed = tuple(
        FailedRead(fact="f" * 200, gpu=None, call="c", error=str(number)) for number in range(1500)
    )
    with pytest.raises(EvidenceTooLargeError, match=str(MAX_EVIDENCE_BYTES)):
        attester().evidence(stream, reading(failed=failed), (), signer=SIGNER, at=AT)


def test_a_controller_of_another_cluster_is_refused() -> None:
    message = signed(
        challenge(HELLO, SVID.leaf.public_bytes(Encoding.DER), cluster="other"), CONTROLLER_SVID
    )
    stream = attester().open_stream(HELLO, SVID.leaf)
    judged = replace(attester(), cluster="main").challenged(
        stream, message, roots=CA.roots, now=NOW
    )
    assert isinstance(judged, ChallengeRefusal)
    assert judged.defect is ChallengeDefect.DOMAIN
