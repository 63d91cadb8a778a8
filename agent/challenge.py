"""Judges a challenge: made by the configured controller, now, for this stream.

The challenge is how a controller proves itself beyond the TLS tunnel. Authenticity
comes before meaning: sizes, chain, name and signature first, then the document.
A refusal is a value; the caller ends the stream and counts the defect.

Pure: reads no clock and keeps nothing.
"""

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from cryptography import x509

from gpuwarden.evidence.canonical import sha256_hex
from gpuwarden.evidence.envelope import AlgorithmDeniedError, SignatureInvalidError, verify
from gpuwarden.evidence.model import PROTOCOL, TYPE_CHALLENGE, Challenge
from gpuwarden.evidence.strict_json import DecodeError, decode
from gpuwarden.identity.chain import ChainError, parse_chain, spiffe_id_of, verify_chain
from gpuwarden.identity.spiffe_id import SpiffeId, SpiffeIdError

MAX_CHALLENGE_BYTES: Final = 64 * 1024
MAX_SIGNATURE_BYTES: Final = 1024
MAX_TTL_MS: Final = 60_000
MAX_INTERVAL_MS: Final = 60_000
_ID = re.compile(r"[0-9a-f]{32}")
_NONCE = re.compile(r"[0-9a-f]{64}")
_WANT_INVENTORY: Final = "inventory"


class ChallengeDefect(StrEnum):
    """Why a challenge does not prove the controller; a metric label."""

    MALFORMED = "malformed"
    CHAIN = "chain"
    IDENTITY = "identity"
    SIGNATURE = "signature"
    PROTOCOL = "protocol"
    DOMAIN = "domain"
    HELLO = "hello"
    LEAF = "leaf"
    STREAM = "stream"
    BOUNDS = "bounds"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True)
class ChallengeRefusal:
    """A challenge that is not answered; `detail` is one line for people."""

    defect: ChallengeDefect
    detail: str


@dataclass(frozen=True, slots=True)
class SignedChallenge:
    """A challenge as received: the exact bytes, what signs them and with which certificates."""

    payload: bytes
    payload_type: str
    signature: bytes
    chain_der: tuple[bytes, ...]
    """Leaf first."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a challenge on this stream must state, and what it must not repeat."""

    controller: SpiffeId
    trust_domain: str
    cluster: str
    hello_sha256: str
    leaf_sha256: str
    stream_id: str | None
    """Of this stream; None before its first challenge."""
    used_stream_ids: Container[str]
    """Stream ids that other streams of this process have had."""
    used_nonces: Container[str]
    """Nonces and spare nonces of earlier challenges of this stream."""


@dataclass(frozen=True, slots=True)
class OpenChallenge:
    """A challenge that proved its controller and may be answered."""

    document: Challenge
    digest: str
    """Lower-case hex SHA-256 of the payload as received."""


def verify_challenge(
    signed: SignedChallenge,
    expected: Expectation,
    *,
    roots: Sequence[x509.Certificate],
    now: datetime,
) -> OpenChallenge | ChallengeRefusal:
    """Accept a challenge of the expected controller for this stream, or return what is wrong.

    `roots` are those of the own trust domain, `now` is aware wall time.
    """
    refusal = _misshapen(signed) or _unproven(signed, expected.controller, roots=roots, now=now)
    if refusal is not None:
        return refusal
    try:
        document = decode(signed.payload, Challenge, max_bytes=MAX_CHALLENGE_BYTES)
    except DecodeError as error:
        return ChallengeRefusal(ChallengeDefect.MALFORMED, str(error))
    refusal = (
        _foreign(document, expected)
        or _unbound(document, expected)
        or _out_of_bounds(document)
        or _repeated(document, expected)
    )
    if refusal is not None:
        return refusal
    return OpenChallenge(document, sha256_hex(signed.payload))


def _misshapen(signed: SignedChallenge) -> ChallengeRefusal | None:
    if signed.payload_type != TYPE_CHALLENGE:
        return ChallengeRefusal(
            ChallengeDefect.MALFORMED,
            f"payload type {signed.payload_type[:80]!r}, expected {TYPE_CHALLENGE}",
        )
    if len(signed.payload) > MAX_CHALLENGE_BYTES or len(signed.signature) > MAX_SIGNATURE_BYTES:
        return ChallengeRefusal(ChallengeDefect.MALFORMED, "larger than a challenge may be")
    return None


def _unproven(
    signed: SignedChallenge,
    controller: SpiffeId,
    *,
    roots: Sequence[x509.Certificate],
    now: datetime,
) -> ChallengeRefusal | None:
    try:
        verify_chain(signed.chain_der, roots, now)
        leaf = parse_chain(signed.chain_der)[0]
    except ChainError as error:
        return ChallengeRefusal(ChallengeDefect.CHAIN, f"{error.code}: {error}")
    try:
        signer = spiffe_id_of(leaf)
    except SpiffeIdError as error:
        return ChallengeRefusal(ChallengeDefect.IDENTITY, str(error))
    if signer != controller:
        return ChallengeRefusal(
            ChallengeDefect.IDENTITY, f"signed by {signer}, expected {controller}"
        )
    try:
        verify(leaf, signed.payload_type, signed.payload, signed.signature)
    except (AlgorithmDeniedError, SignatureInvalidError) as error:
        return ChallengeRefusal(ChallengeDefect.SIGNATURE, str(error))
    return None


def _foreign(document: Challenge, expected: Expectation) -> ChallengeRefusal | None:
    if document.protocol != PROTOCOL:
        return ChallengeRefusal(
            ChallengeDefect.PROTOCOL, f"protocol {document.protocol}, expected {PROTOCOL}"
        )
    if document.controller != str(expected.controller):
        return ChallengeRefusal(
            ChallengeDefect.IDENTITY,
            f"speaks for {document.controller[:80]!r}, expected {expected.controller}",
        )
    if document.trust_domain != expected.trust_domain:
        return ChallengeRefusal(
            ChallengeDefect.DOMAIN,
            f"trust domain {document.trust_domain[:80]!r}, expected {expected.trust_domain!r}",
        )
    if document.cluster != expected.cluster:
        return ChallengeRefusal(
            ChallengeDefect.DOMAIN,
            f"cluster {document.cluster[:80]!r}, expected {expected.cluster!r}",
        )
    return None


def _unbound(document: Challenge, expected: Expectation) -> ChallengeRefusal | None:
    if document.hello_sha256 != expected.hello_sha256:
        return ChallengeRefusal(
            ChallengeDefect.HELLO, "answers a Hello that this agent did not send"
        )
    if document.leaf_sha256 != expected.leaf_sha256:
        return ChallengeRefusal(
            ChallengeDefect.LEAF, "made for another certificate than that of this TLS session"
        )
    if expected.stream_id is not None and document.stream_id != expected.stream_id:
        return ChallengeRefusal(ChallengeDefect.STREAM, "names another stream than this one")
    return None


def _out_of_bounds(document: Challenge) -> ChallengeRefusal | None:
    for name, value in (("streamId", document.stream_id), ("challengeId", document.challenge_id)):
        if not _ID.fullmatch(value):
            return ChallengeRefusal(
                ChallengeDefect.BOUNDS, f"{name} is not 32 lower-case hex digits"
            )
    for name, value in (("nonce", document.nonce), ("spareNonce", document.spare_nonce)):
        if not _NONCE.fullmatch(value):
            return ChallengeRefusal(
                ChallengeDefect.BOUNDS, f"{name} is not 64 lower-case hex digits"
            )
    for name, number, limit in (
        ("ttlMs", document.ttl_ms, MAX_TTL_MS),
        ("intervalMs", document.interval_ms, MAX_INTERVAL_MS),
    ):
        if not 0 < number <= limit:
            return ChallengeRefusal(
                ChallengeDefect.BOUNDS, f"{name} is {number}, expected 1 to {limit}"
            )
    if _WANT_INVENTORY not in document.want:
        return ChallengeRefusal(ChallengeDefect.BOUNDS, "does not want an inventory")
    return None


def _repeated(document: Challenge, expected: Expectation) -> ChallengeRefusal | None:
    if document.nonce == document.spare_nonce:
        return ChallengeRefusal(ChallengeDefect.REPLAY, "nonce and spare nonce are the same")
    if document.nonce in expected.used_nonces or document.spare_nonce in expected.used_nonces:
        return ChallengeRefusal(ChallengeDefect.REPLAY, "a nonce was used before on this stream")
    if expected.stream_id is None and document.stream_id in expected.used_stream_ids:
        return ChallengeRefusal(ChallengeDefect.REPLAY, "the stream id was used before")
    return None
