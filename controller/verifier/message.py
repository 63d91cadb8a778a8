"""Steps 11 to 15: whether a message is authentic, for us, an answer to our challenge, and the next.

A payload is parsed only after its signature has been verified, and from the very bytes that were
verified. Whether it is acceptable is not decided here (see `appraisal`).
"""

import re
from dataclasses import dataclass, replace
from hmac import compare_digest
from typing import Final

from cryptography import x509

from controller.fleet.attestation_result import StreamState
from controller.verifier.challenge import ID_BYTES, NONCE_BYTES, IssuedChallenge
from controller.verifier.context import (
    WANT_REPORT,
    Limits,
    ReceivedMessage,
    Snapshots,
    SpireFacts,
    VerifierSettings,
)
from controller.verifier.session import (
    UNCONFIRMED,
    NodeStanding,
    check_chain,
    check_duplicate,
    check_quarantine,
    check_superseded,
    node_standing,
)
from gpuwarden.evidence.envelope import (
    MAX_SIGNATURE_BYTES,
    AlgorithmDeniedError,
    SignatureInvalidError,
    evidence_digest,
    verify,
)
from gpuwarden.evidence.known_inventory import KnownInventory, evidence_showing
from gpuwarden.evidence.model import (
    FAILURE_TYPES,
    MAX_FAILURES,
    PROTOCOL,
    TYPE_EVIDENCE,
    TYPE_EVIDENCE_WITH_PODS,
    TYPE_FAILURE_NOTICE,
    TYPE_FAILURES,
    WANT_FAILURES,
    WANT_PODS,
    Evidence,
    EvidenceHeader,
    EvidenceWithPods,
    Failure,
    FailureNotice,
    FailureNotices,
)
from gpuwarden.evidence.strict_json import DecodeError, decode, quote
from gpuwarden.moment import Moment
from gpuwarden.reasons import ReasonCode, Refusal

_TYPES: Final = frozenset({TYPE_EVIDENCE, TYPE_EVIDENCE_WITH_PODS}) | FAILURE_TYPES
_WANTED: Final = {TYPE_EVIDENCE_WITH_PODS: WANT_PODS, TYPE_FAILURES: WANT_FAILURES}
"""Payload type -> what a challenge must want before it may be sent."""
_DECIMAL: Final = re.compile(r"0|[1-9][0-9]{0,18}")
_SECOND_MS: Final = 1000
FAILURE_NOTICE_KINDS: Final = frozenset({"xid", "gpu-lost", "driver-reload", "nvml-unavailable"})


class _Header(EvidenceHeader, frozen=True, forbid_unknown_fields=False):
    """The binding fields of a payload whose rest cannot be read."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A payload that is bound like evidence but whose inventory is no such document."""

    header: EvidenceHeader
    error: str


def check_shape(
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
    """Whether it is of a type that the challenge did not ask for."""
    wanted = _WANTED.get(message.payload_type)
    return wanted is not None and isinstance(issued, IssuedChallenge) and wanted not in issued.want


def _well_formed(message: ReceivedMessage) -> bool:
    return (
        len(message.stream_id) == ID_BYTES
        and len(message.challenge_id) == ID_BYTES
        and len(message.nonce) == NONCE_BYTES
        and len(message.payload) > 0
        and 0 < len(message.signature) <= MAX_SIGNATURE_BYTES
    )


def check_signature(
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


def read_payload(message: ReceivedMessage, known: KnownInventory | None) -> "Payload | Refusal":
    """Parse verified bytes; an unreadable inventory still has a header to be checked first.

    `known` is what the stream has shown before.
    """
    if message.payload_type == TYPE_FAILURE_NOTICE:
        return _read_failure_notice(message.payload)
    if message.payload_type == TYPE_FAILURES:
        return _read_failures(message.payload)
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


def _read_failure_notice(payload: bytes) -> FailureNotice | Refusal:
    try:
        news = decode(payload, FailureNotice, max_bytes=len(payload))
    except DecodeError as error:
        return Refusal(ReasonCode.MSG_MALFORMED, f"failure notice: {error}")
    return _unknown_kind(news.kind) or news


def _read_failures(payload: bytes) -> FailureNotices | Refusal:
    try:
        news = decode(payload, FailureNotices, max_bytes=len(payload))
    except DecodeError as error:
        return Refusal(ReasonCode.MSG_MALFORMED, f"failure notice: {error}")
    if not 1 <= len(news.failures) <= MAX_FAILURES:
        return Refusal(
            ReasonCode.MSG_MALFORMED,
            f"failure notice: {len(news.failures)} failures, 1 to {MAX_FAILURES} are expected",
        )
    return next(filter(None, map(_malformed_failure, news.failures)), None) or news


def _malformed_failure(failure: Failure) -> Refusal | None:
    if not _DECIMAL.fullmatch(failure.happened_ms):
        return Refusal(
            ReasonCode.MSG_MALFORMED,
            f"failure notice: time {quote(failure.happened_ms)} is not decimal milliseconds",
        )
    return _unknown_kind(failure.kind)


def _unknown_kind(kind: str) -> Refusal | None:
    if kind in FAILURE_NOTICE_KINDS:
        return None
    return Refusal(ReasonCode.MSG_MALFORMED, f"failure notice: kind {quote(kind)} is not known")


def failures_in(news: FailureNotice | FailureNotices) -> tuple[Failure, ...]:
    """What happened; the older form names one failure, and for its time that of its signature."""
    if isinstance(news, FailureNotices):
        return news.failures
    return (
        Failure(
            kind=news.kind,
            gpu=news.gpu,
            xid=news.xid,
            detail=news.detail,
            happened_ms=news.boottime_ms,
            count=1,
        ),
    )


@dataclass(frozen=True, slots=True)
class Times:
    """The node's clocks in a payload, milliseconds."""

    wall_ms: int
    boottime_ms: int


def read_times(header: EvidenceHeader) -> Times | Refusal:
    """The payload's times; part of its shape, so step 11."""
    for text in (header.wall_ms, header.boottime_ms):
        if not _DECIMAL.fullmatch(text):
            return Refusal(
                ReasonCode.MSG_MALFORMED, f"time {quote(text)} is not decimal milliseconds"
            )
    return Times(int(header.wall_ms), int(header.boottime_ms))


def check_protocol(header: EvidenceHeader) -> Refusal | None:
    """Step 10 again, now under the signature."""
    if header.protocol != PROTOCOL:
        return Refusal(
            ReasonCode.PROTOCOL_UNSUPPORTED,
            f"payload of protocol {header.protocol}, {PROTOCOL} is expected",
        )
    return None


def check_binding(
    header: EvidenceHeader,
    issued: IssuedChallenge,
    stream: StreamState,
    settings: VerifierSettings,
    *,
    spare: bool,
) -> Refusal | None:
    """Step 14: audience, node name, nonce, digest of the challenge."""
    if (header.audience, header.trust_domain) != (settings.audience, settings.trust_domain):
        return Refusal(
            ReasonCode.AUDIENCE_MISMATCH,
            f"evidence for {quote(header.audience)}, we are {settings.audience}",
        )
    if header.node_name != stream.node:
        return Refusal(
            ReasonCode.NODE_NAME_MISMATCH,
            f"evidence of {quote(header.node_name)}, the certificate is {stream.node}'s",
        )
    if not _same_nonce(header, issued, spare=spare):
        return Refusal(
            ReasonCode.INNER_NONCE_MISMATCH, "the signed stream, challenge or nonce is another"
        )
    if not _same(header.challenge_sha256, issued.sha256):
        return Refusal(ReasonCode.CHALLENGE_DIGEST_MISMATCH, "another challenge was answered")
    return None


def check_sequence(
    header: EvidenceHeader,
    times: Times,
    stream: StreamState,
    now: Moment,
    settings: VerifierSettings,
) -> Refusal | None:
    """Step 15: sequence, previous digest, boot, clocks."""
    if header.seq <= stream.seq:
        return Refusal(ReasonCode.SEQ_REPLAY, f"seq {header.seq} after {stream.seq}")
    if header.seq > stream.seq + 1:
        return Refusal(ReasonCode.SEQ_GAP, f"seq {header.seq} after {stream.seq}")
    if not _same(header.prev, stream.prev):
        return Refusal(ReasonCode.PREV_MISMATCH, "prev is not the digest of the evidence before")
    if (header.boot_id, header.instance_id) != (stream.hello.boot_id, stream.hello.instance_id):
        return Refusal(ReasonCode.BOOT_CHANGED, "boot or process is not the one that said hello")
    if stream.boottime_ms is not None and times.boottime_ms < stream.boottime_ms:
        return Refusal(
            ReasonCode.CLOCK_BACKWARDS,
            f"the node's boot time went back by {stream.boottime_ms - times.boottime_ms} ms",
        )
    return _skewed(times, now, settings)


def skew_warning(times: Times, now: Moment, settings: VerifierSettings) -> str | None:
    """A line for people where the node's wall clock is off, though not so far as to be refused."""
    skew = _skew_ms(times, now)
    return _skew_text(skew) if abs(skew) > settings.skew_warn_ms else None


def _skewed(times: Times, now: Moment, settings: VerifierSettings) -> Refusal | None:
    skew = _skew_ms(times, now)
    if abs(skew) > settings.skew_refuse_ms:
        return Refusal(ReasonCode.CLOCK_SKEW, _skew_text(skew))
    return None


def _skew_ms(times: Times, now: Moment) -> int:
    return times.wall_ms - now.wall_ms


def _skew_text(skew_ms: int) -> str:
    side = "ahead of" if skew_ms > 0 else "behind"
    return f"the node's clock is {abs(skew_ms) // _SECOND_MS} s {side} the controller's"


def _same_nonce(header: EvidenceHeader, issued: IssuedChallenge, *, spare: bool) -> bool:
    nonce = issued.spare_nonce if spare else issued.nonce
    return (
        _same(header.nonce, nonce)
        and _same(header.challenge_id, issued.challenge_id)
        and _same(header.stream_id, issued.stream_id)
    )


def _same(text: str, expected: str) -> bool:
    """Compare in constant time; `text` may be any Unicode."""
    return compare_digest(text.encode("utf-8"), expected.encode("utf-8"))


Payload = Evidence | FailureNotice | FailureNotices | Unreadable


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message with everything that decides about it."""

    stream: StreamState
    message: ReceivedMessage
    issued: IssuedChallenge | Refusal
    """The challenge that it answers, or why it answers none (step 12)."""
    known: Snapshots
    now: Moment

    @property
    def spare(self) -> bool:
        """Whether it comes under the spare nonce, as failure notices does."""
        return self.message.payload_type in FAILURE_TYPES


@dataclass(frozen=True, slots=True)
class Opened:
    """An authentic payload."""

    payload: Payload
    issued: IssuedChallenge
    digest: str
    stream: StreamState
    """The state after it."""
    warning: str | None


def recheck_session(arrival: Arrival, spire: SpireFacts) -> NodeStanding | Refusal:
    """Steps 4 to 10 again: whether this session may still speak for its node.

    Failure notices needs no store that is fresh and no SPIRE server that answers: neither could
    make it say less.
    """
    stream, known, now = arrival.stream, arrival.known, arrival.now
    proof = check_chain(stream.chain, known.roots, now.wall, stream.proof)
    if isinstance(proof, Refusal):
        return proof
    if arrival.spare:
        found: NodeStanding | Refusal = check_quarantine(known, stream.node) or UNCONFIRMED
    else:
        found = node_standing(spire, stream.peer, stream.node, known, now.boottime_ns)
    record = known.enrollment.records.get(stream.node)
    return found if isinstance(found, Refusal) else check_superseded(stream, record) or found


def open_message(arrival: Arrival, settings: VerifierSettings) -> Opened | Refusal:
    """Steps 11 to 15, and the part of step 10 that needs a signed answer."""
    issued, message = arrival.issued, arrival.message
    if refusal := check_shape(message, issued, settings.limits):
        return refusal
    if isinstance(issued, Refusal):
        return issued
    if refusal := check_signature(message, issued, arrival.stream):
        return refusal
    appraised = arrival.stream.appraised
    payload = read_payload(message, appraised.known if appraised else None)
    if isinstance(payload, Refusal):
        return payload
    return _bind(arrival, payload, issued, settings)


def _bind(
    arrival: Arrival, payload: Payload, issued: IssuedChallenge, settings: VerifierSettings
) -> Opened | Refusal:
    header = payload.header if isinstance(payload, Unreadable) else payload
    times = read_times(header)
    if isinstance(times, Refusal):
        return times
    if refusal := _unbound(arrival, header, times, issued, settings):
        return refusal
    digest = evidence_digest(arrival.message.payload_type, arrival.message.payload)
    stream = arrival.stream
    return Opened(
        payload,
        issued,
        digest,
        replace(
            stream,
            seq=header.seq,
            prev=digest,
            boottime_ms=times.boottime_ms,
            witnessed=payload.checkpoints if isinstance(payload, Evidence) else stream.witnessed,
        ),
        skew_warning(times, arrival.now, settings),
    )


def _unbound(
    arrival: Arrival,
    header: EvidenceHeader,
    times: Times,
    issued: IssuedChallenge,
    settings: VerifierSettings,
) -> Refusal | None:
    stream = arrival.stream
    return (
        check_protocol(header)
        or check_binding(header, issued, stream, settings, spare=arrival.spare)
        or check_sequence(header, times, stream, arrival.now, settings)
        or check_duplicate(stream, arrival.known.enrollment.records.get(stream.node))
    )
