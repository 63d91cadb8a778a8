from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from agent.challenge import (
    ChallengeDefect,
    ChallengeRefusal,
    Expectation,
    OpenChallenge,
    SignedChallenge,
    verify_challenge,
)
from gpuwarden.evidence.canonical import canonical_json, sha256_hex
from gpuwarden.evidence.model import TYPE_EVIDENCE
from gpuwarden.identity.spiffe_id import parse_spiffe_id
from sandbox.spiffe.ca import utc_now
from tests.builders.ca import SpiffeCa
from tests.builders.challenges import CLUSTER, CONTROLLER, challenge, signed, signed_bytes

NOW = utc_now()
CA = SpiffeCa(at=NOW)
SVID = CA.svid(CONTROLLER)
LEAF = b"our leaf"
HELLO = b"our hello"


def expectation(**changes: Any) -> Expectation:
    return replace(
        Expectation(
            controller=parse_spiffe_id(CONTROLLER),
            trust_domain=CA.trust_domain,
            cluster=CLUSTER,
            hello_sha256=sha256_hex(HELLO),
            leaf_sha256=sha256_hex(LEAF),
            stream_id=None,
            used_stream_ids=frozenset(),
            used_nonces=frozenset(),
        ),
        **changes,
    )


def judge(
    message: SignedChallenge,
    expected: Expectation | None = None,
    *,
    roots: tuple[x509.Certificate, ...] = CA.roots,
    later: timedelta = timedelta(0),
) -> OpenChallenge | ChallengeRefusal:
    return verify_challenge(message, expected or expectation(), roots=roots, now=NOW + later)


def defect_of(judged: OpenChallenge | ChallengeRefusal) -> ChallengeDefect:
    assert isinstance(judged, ChallengeRefusal), judged
    assert judged.detail
    assert "\n" not in judged.detail
    return judged.defect


def test_a_challenge_of_the_configured_controller_is_open() -> None:
    document = challenge(HELLO, LEAF)
    message = signed(document, SVID)
    assert judge(message) == OpenChallenge(document, sha256_hex(message.payload))


def test_any_replica_may_sign_with_its_own_leaf_and_the_next_ones_too() -> None:
    first = challenge(HELLO, LEAF)
    second = challenge(HELLO, LEAF, stream_id=first.stream_id)
    expected = expectation(
        stream_id=first.stream_id,
        used_stream_ids=frozenset({first.stream_id}),
        used_nonces=frozenset({first.nonce, first.spare_nonce}),
    )
    assert isinstance(judge(signed(second, CA.svid(CONTROLLER)), expected), OpenChallenge)


CHANGED: tuple[tuple[ChallengeDefect, dict[str, Any]], ...] = (
    (ChallengeDefect.PROTOCOL, {"protocol": 2}),
    (ChallengeDefect.IDENTITY, {"controller": "spiffe://example.org/gpuwarden/agent/n"}),
    (ChallengeDefect.DOMAIN, {"trust_domain": "other.org"}),
    (ChallengeDefect.DOMAIN, {"cluster": "other"}),
    (ChallengeDefect.HELLO, {"hello_sha256": "0" * 64}),
    (ChallengeDefect.LEAF, {"leaf_sha256": "0" * 64}),
    (ChallengeDefect.BOUNDS, {"stream_id": "AB" * 16}),
    (ChallengeDefect.BOUNDS, {"challenge_id": "ab" * 15}),
    (ChallengeDefect.BOUNDS, {"nonce": "ab" * 31}),
    (ChallengeDefect.BOUNDS, {"spare_nonce": "x" * 64}),
    (ChallengeDefect.BOUNDS, {"ttl_ms": 0}),
    (ChallengeDefect.BOUNDS, {"ttl_ms": 60_001}),
    (ChallengeDefect.BOUNDS, {"interval_ms": -1}),
    (ChallengeDefect.BOUNDS, {"interval_ms": 60_001}),
    (ChallengeDefect.BOUNDS, {"want": ()}),
    (ChallengeDefect.REPLAY, {"nonce": "ab" * 32, "spare_nonce": "ab" * 32}),
)


@pytest.mark.parametrize(("defect", "changes"), CHANGED)
def test_what_a_challenge_says_must_fit_this_stream(
    defect: ChallengeDefect, changes: dict[str, Any]
) -> None:
    assert defect_of(judge(signed(challenge(HELLO, LEAF, **changes), SVID))) is defect


def test_a_challenge_of_another_stream_is_refused() -> None:
    message = signed(challenge(HELLO, LEAF), SVID)
    assert defect_of(judge(message, expectation(stream_id="0" * 32))) is ChallengeDefect.STREAM


def test_a_replayed_stream_is_refused() -> None:
    document = challenge(HELLO, LEAF)
    expected = expectation(used_stream_ids=frozenset({document.stream_id}))
    assert defect_of(judge(signed(document, SVID), expected)) is ChallengeDefect.REPLAY


@pytest.mark.parametrize("field", ["nonce", "spare_nonce"])
def test_a_nonce_is_good_once_per_stream(field: str) -> None:
    document = challenge(HELLO, LEAF)
    expected = expectation(
        stream_id=document.stream_id, used_nonces=frozenset({getattr(document, field)})
    )
    assert defect_of(judge(signed(document, SVID), expected)) is ChallengeDefect.REPLAY


def test_another_workload_of_the_trust_domain_is_not_the_controller() -> None:
    rogue = CA.svid("spiffe://example.org/gpuwarden/agent/node-9")
    judged = judge(signed(challenge(HELLO, LEAF), rogue))
    assert defect_of(judged) is ChallengeDefect.IDENTITY


def test_a_foreign_authority_is_not_believed() -> None:
    foreign = SpiffeCa(at=NOW).svid(CONTROLLER)
    assert defect_of(judge(signed(challenge(HELLO, LEAF), foreign))) is ChallengeDefect.CHAIN


def test_an_expired_controller_is_not_believed() -> None:
    message = signed(challenge(HELLO, LEAF), SVID)
    judged = judge(message, later=timedelta(hours=2))
    assert isinstance(judged, ChallengeRefusal)
    assert judged.defect is ChallengeDefect.CHAIN
    assert judged.detail.startswith("SVID_EXPIRED")


def test_two_names_in_the_leaf_are_none() -> None:
    key, chain = CA.issue(CONTROLLER, uris=(CONTROLLER, "spiffe://example.org/x"))
    judged = judge(signed(challenge(HELLO, LEAF), replace(SVID, private_key=key, chain=chain)))
    assert defect_of(judged) in {ChallengeDefect.IDENTITY, ChallengeDefect.CHAIN}


@pytest.mark.parametrize(
    ("change", "defect"),
    [
        (lambda m: replace(m, signature=b""), ChallengeDefect.SIGNATURE),
        (lambda m: replace(m, signature=bytes(1025)), ChallengeDefect.MALFORMED),
        (lambda m: replace(m, payload=m.payload + b" "), ChallengeDefect.SIGNATURE),
        (lambda m: replace(m, payload=bytes(65_537)), ChallengeDefect.MALFORMED),
        (lambda m: replace(m, payload_type=TYPE_EVIDENCE), ChallengeDefect.MALFORMED),
        (lambda m: replace(m, chain_der=()), ChallengeDefect.CHAIN),
        (lambda m: replace(m, chain_der=m.chain_der * 9), ChallengeDefect.CHAIN),
        (lambda m: replace(m, chain_der=(b"junk",)), ChallengeDefect.CHAIN),
    ],
)
def test_an_envelope_that_does_not_hold_is_refused(
    change: Callable[[SignedChallenge], SignedChallenge], defect: ChallengeDefect
) -> None:
    message = signed(challenge(HELLO, LEAF), SVID)
    assert defect_of(judge(change(message))) is defect


def test_a_signature_over_another_type_is_no_signature() -> None:
    as_evidence = signed(challenge(HELLO, LEAF), SVID, TYPE_EVIDENCE)
    message = replace(as_evidence, payload_type=signed(challenge(HELLO, LEAF), SVID).payload_type)
    assert defect_of(judge(message)) is ChallengeDefect.SIGNATURE


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b"\xff", b'{"protocol":1.0}'])
def test_a_signed_document_that_is_no_challenge_is_refused(payload: bytes) -> None:
    assert defect_of(judge(signed_bytes(payload, SVID))) is ChallengeDefect.MALFORMED


def test_unknown_fields_are_refused() -> None:
    payload = canonical_json(challenge(HELLO, LEAF))[:-1] + b',"zz":1}'
    assert defect_of(judge(signed_bytes(payload, SVID))) is ChallengeDefect.MALFORMED


def test_the_leaf_digest_is_that_of_the_der() -> None:
    agent = CA.svid("spiffe://example.org/gpuwarden/agent/node-1")
    der = agent.leaf.public_bytes(Encoding.DER)
    expected = expectation(leaf_sha256=agent.leaf.fingerprint(SHA256()).hex())
    assert isinstance(judge(signed(challenge(HELLO, der), SVID), expected), OpenChallenge)
