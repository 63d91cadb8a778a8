"""Steps 11 and 13: the shape of a message, and who signed exactly these bytes.

The payload is parsed only after its signature has been verified, and from the very
bytes that were verified.
"""

from dataclasses import dataclass
from typing import Final

from cryptography import x509

from controller.verifier.challenge import ID_BYTES, NONCE_BYTES, IssuedChallenge
from controller.verifier.context import (
    WANT_REPORT,
    Limits,
    ReceivedMessage,
    StreamState,
)
from gpuwarden.evidence.envelope import MAX_SIGNATURE_BYTES, verify
from gpuwarden.evidence.errors import AlgorithmDeniedError, DecodeError, SignatureInvalidError
from gpuwarden.evidence.model import (
    TYPE_BAD_NEWS,
    TYPE_EVIDENCE,
    TYPE_EVIDENCE_WITH_PODS,
    WANT_PODS,
    BadNews,
    Evidence,
    EvidenceHeader,
    EvidenceWithPods,
)
from gpuwarden.evidence.outline import KnownInventory, evidence_showing
from gpuwarden.evidence.strict_json import decode, quote
from gpuwarden.reasons import ReasonCode, Refusal

_TYPES: Final = frozenset({TYPE_EVIDENCE, TYPE_EVIDENCE_WITH_PODS, TYPE_BAD_NEWS})
BAD_NEWS_KINDS: Final = frozenset({"xid", "gpu-lost", "driver-reload", "nvml-unavailable"})


class _Header(EvidenceHeader, frozen=True, forbid_unknown_fields=False):
    """The binding fields of a payload whose rest cannot be read."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A payload that is bound like evidence but whose inventory is no such document."""

    header: EvidenceHeader
    error: str


def shape(
    message: ReceivedMessage, issued: IssuedChallenge | Refusal, limits: Limits
) -> Refusal | None:
    """Step 11: sizes, then shape, then payload type."""
    reports = isinstance(issued, IssuedChallenge) and WANT_REPORT in issued.want
    allowed = limits.message_bytes_with_reports if reports else limits.message_bytes
    if len(message.payload) > allowed:
        return Refusal(
            ReasonCode.MSG_TOO_LARGE,
            f"payload has {len(message.payload)} bytes, at most {allowed} are allowed",
        )
    if not _well_formed(message):
        return Refusal(
            ReasonCode.MSG_MALFORMED, "an id, nonce, payload or signature has no such size"
        )
    if message.payload_type not in _TYPES or _is_unasked(message, issued):
        return Refusal(ReasonCode.TYPE_UNEXPECTED, f"payload type {quote(message.payload_type)}")
    return None


def _is_unasked(message: ReceivedMessage, issued: IssuedChallenge | Refusal) -> bool:
    """Whether it tells of pods without having been asked to."""
    is_asked = not isinstance(issued, IssuedChallenge) or WANT_PODS in issued.want
    return message.payload_type == TYPE_EVIDENCE_WITH_PODS and not is_asked


def _well_formed(message: ReceivedMessage) -> bool:
    return (
        len(message.stream_id) == ID_BYTES
        and len(message.challenge_id) == ID_BYTES
        and len(message.nonce) == NONCE_BYTES
        and len(message.payload) > 0
        and 0 < len(message.signature) <= MAX_SIGNATURE_BYTES
    )


def signature(
    message: ReceivedMessage, issued: IssuedChallenge, stream: StreamState
) -> Refusal | None:
    """Step 13: signed by the leaf of this session, which the challenge was made for."""
    if issued.leaf_sha256 != stream.leaf_sha256:
        return Refusal(
            ReasonCode.SIGNER_MISMATCH,
            "the challenge was for another certificate than this session's",
        )
    return _signed_by(stream.leaf, message)


def _signed_by(leaf: x509.Certificate, message: ReceivedMessage) -> Refusal | None:
    try:
        verify(leaf, message.payload_type, message.payload, message.signature)
    except AlgorithmDeniedError as error:
        return Refusal(ReasonCode.SIG_ALG_DENIED, str(error))
    except SignatureInvalidError as error:
        return Refusal(ReasonCode.SIG_INVALID, str(error))
    return None


def read_payload(
    message: ReceivedMessage, known: KnownInventory | None
) -> Evidence | BadNews | Unreadable | Refusal:
    """Parse verified bytes; an unreadable inventory still has a header to be checked first.

    `known` is what the stream has shown before.
    """
    if message.payload_type == TYPE_BAD_NEWS:
        return _read_bad_news(message.payload)
    limit, kind = len(message.payload), _kind(message)
    if known is not None and (again := evidence_showing(known, message.payload, kind)) is not None:
        return again
    try:
        return decode(message.payload, kind, max_bytes=limit)
    except DecodeError as error:
        reason = str(error)
    try:
        return Unreadable(decode(message.payload, _Header, max_bytes=limit), reason)
    except DecodeError as error:
        return Refusal(ReasonCode.MSG_MALFORMED, f"evidence: {error}")


def _kind(message: ReceivedMessage) -> type[Evidence]:
    return EvidenceWithPods if message.payload_type == TYPE_EVIDENCE_WITH_PODS else Evidence


def _read_bad_news(payload: bytes) -> BadNews | Refusal:
    try:
        news = decode(payload, BadNews, max_bytes=len(payload))
    except DecodeError as error:
        return Refusal(ReasonCode.MSG_MALFORMED, f"bad news: {error}")
    if news.kind not in BAD_NEWS_KINDS:
        return Refusal(ReasonCode.MSG_MALFORMED, f"bad news: kind {quote(news.kind)} is not known")
    return news
