"""Stream.

Holds: hello, peer, binding, standing, envelope, opening.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hmac import compare_digest
from typing import Final

import msgspec
from cryptography import x509

from controller.fleet.appraisal import StreamState
from controller.fleet.enrollment import AUTOMATIC, EnrollmentRecord, KnownNode
from controller.policy import Level
from controller.verifier.challenge import ID_BYTES, NONCE_BYTES, IssuedChallenge
from controller.verifier.context import (
    WANT_REPORT,
    Limits,
    ReceivedMessage,
    Snapshots,
    SpireFacts,
    SpireQuestion,
    Standing,
    StreamFacts,
    VerifierSettings,
)
from gpuwarden.evidence.envelope import MAX_SIGNATURE_BYTES, evidence_digest, verify
from gpuwarden.evidence.errors import AlgorithmDeniedError, DecodeError, SignatureInvalidError
from gpuwarden.evidence.model import (
    PROTOCOL,
    TYPE_BAD_NEWS,
    TYPE_EVIDENCE,
    TYPE_EVIDENCE_WITH_PODS,
    WANT_PODS,
    BadNews,
    Evidence,
    EvidenceHeader,
    EvidenceWithPods,
    Hello,
)
from gpuwarden.evidence.outline import KnownInventory, evidence_showing
from gpuwarden.evidence.strict_json import decode, quote
from gpuwarden.identity.chain import ChainError, ChainProof, verify_chain
from gpuwarden.identity.spiffe_id import (
    Role,
    SpiffeId,
    SpiffeIdError,
    is_node_name,
    parse_spiffe_id,
    peer_name,
)
from gpuwarden.moment import Moment
from gpuwarden.reasons import ReasonCode, Refusal

# --- hello
# Step 10: whether the peer speaks our protocol and is the process that answers for the node.
#
# Hello is not signed; TLS says whose it is and the challenge binds its digest. A process
# that was superseded is not refused for saying hello: only its answer to a challenge
# issued afterwards proves that it lives beside its successor.

MAX_HELLO_BYTES: Final = 64 * 1024
_INSTANCE: Final = re.compile(r"[0-9a-f]{32}")
_PLAIN: Final = re.compile(r"[\x21-\x7e]{1,128}")


class _Protocol(msgspec.Struct, frozen=True):
    """The one field that every version of Hello has."""

    protocol: int


def read_hello(data: bytes, node: str) -> Hello | Refusal:
    """The document in `data`, or why it is none; later protocols may have other fields."""
    if len(data) > MAX_HELLO_BYTES:
        return Refusal(ReasonCode.MSG_TOO_LARGE, f"Hello has {len(data)} bytes")
    try:
        protocol = decode(data, _Protocol, max_bytes=MAX_HELLO_BYTES).protocol
        if protocol != PROTOCOL:
            return Refusal(
                ReasonCode.PROTOCOL_UNSUPPORTED, f"protocol {protocol}, {PROTOCOL} is expected"
            )
        hello = decode(data, Hello, max_bytes=MAX_HELLO_BYTES)
    except DecodeError as error:
        return Refusal(ReasonCode.MSG_MALFORMED, f"Hello: {error}")
    return _malformed(hello, node) or hello


def superseded(record: EnrollmentRecord | None, instance: str) -> bool:
    """Whether another process has taken over from `instance`."""
    return record is not None and instance in record.superseded


def superseded_meanwhile(stream: StreamState, record: EnrollmentRecord | None) -> Refusal | None:
    """Another process took over while this stream was open: it renews nothing and ends."""
    if not stream.superseded_at_open and superseded(record, stream.hello.instance_id):
        return Refusal(ReasonCode.STREAM_SUPERSEDED, "a newer agent process answers for the node")
    return None


def duplicate(stream: StreamState, record: EnrollmentRecord | None) -> Refusal | None:
    """A process that was superseded before has answered a new challenge: two hold one identity."""
    if stream.superseded_at_open and superseded(record, stream.hello.instance_id):
        return Refusal(
            ReasonCode.DUPLICATE_AGENT, "a superseded agent process answered a new challenge"
        )
    return None


def _malformed(hello: Hello, node: str) -> Refusal | None:
    if not _INSTANCE.fullmatch(hello.instance_id):
        return Refusal(
            ReasonCode.MSG_MALFORMED, "Hello: instanceId is not 32 lower-case hex digits"
        )
    for name, text in (("bootId", hello.boot_id), ("agentVersion", hello.agent_version)):
        if not _PLAIN.fullmatch(text):
            return Refusal(
                ReasonCode.MSG_MALFORMED,
                f"Hello: {name} is not 1 to 128 printable ASCII characters",
            )
    if hello.node_name != node:
        return Refusal(
            ReasonCode.NODE_NAME_MISMATCH,
            f"Hello is from {quote(hello.node_name)}, the certificate is {node}'s",
        )
    return None


# --- peer
# Steps 1 to 5: whether this peer may speak here, and as which node. Parses nothing of ours.

_SHOWN: Final = 300


def limits(facts: StreamFacts, bounds: Limits) -> Refusal | None:
    """Step 1: streams of this peer and of all, and its rate."""
    if facts.open_streams >= bounds.streams:
        return Refusal(ReasonCode.LIMIT_STREAMS, f"{bounds.streams} streams are open")
    if facts.peer_streams >= bounds.streams_per_peer:
        return Refusal(
            ReasonCode.LIMIT_STREAMS, f"{bounds.streams_per_peer} streams of this peer are open"
        )
    if facts.rate_exceeded:
        return Refusal(ReasonCode.LIMIT_RATE, "too many streams of this peer in a short time")
    return None


def tls(facts: StreamFacts) -> Refusal | None:
    """Step 2: a client certificate that this very handshake has checked."""
    if not facts.chain:
        return Refusal(ReasonCode.TLS_NO_CLIENT_CERT, "the peer showed no certificate")
    if facts.resumed:
        return Refusal(ReasonCode.TLS_RESUMED, "a resumed session skips the certificate checks")
    return None


def identity(facts: StreamFacts, trust_domain: str) -> SpiffeId | Refusal:
    """Step 3: exactly one URI SAN, and that a SPIFFE ID of our trust domain."""
    if len(facts.uri_sans) != 1:
        return Refusal(
            ReasonCode.PEER_ID_INVALID, f"{len(facts.uri_sans)} URI SANs, exactly one is expected"
        )
    [uri] = facts.uri_sans
    if facts.peer_spiffe_id != uri:
        return Refusal(ReasonCode.PEER_ID_INVALID, "TLS and certificate name different peers")
    try:
        peer = parse_spiffe_id(uri)
    except SpiffeIdError as error:
        return Refusal(ReasonCode.PEER_ID_INVALID, quote(str(error), _SHOWN))
    if peer.trust_domain != trust_domain:
        return Refusal(
            ReasonCode.PEER_FOREIGN_DOMAIN,
            f"peer is of {quote(peer.trust_domain)}, {trust_domain} is expected",
        )
    return peer


def chain(
    chain_der: Sequence[bytes],
    roots: Sequence[x509.Certificate],
    at: datetime,
    proof: ChainProof | None = None,
) -> ChainProof | Refusal:
    """Step 4: the chain again, against the roots of now and not of the handshake.

    `proof` is an earlier answer; where it covers the question, it is the answer still.
    """
    if proof is not None and proof.covers(chain_der, roots, at):
        return proof
    try:
        return verify_chain(chain_der, roots, at)
    except ChainError as error:
        return Refusal(error.code, quote(str(error), _SHOWN))


def node_name(peer: SpiffeId, prefix: str) -> str | Refusal:
    """Step 5: the role must be agent, the rest of the path a node name."""
    name = peer_name(peer, prefix)
    if name is None or name.role is not Role.AGENT:
        return Refusal(
            ReasonCode.PEER_ROLE_UNKNOWN,
            f"path {quote(peer.path)} is not {prefix}/{Role.AGENT}/<node name>",
        )
    if not is_node_name(name.name):
        return Refusal(
            ReasonCode.NODE_NAME_INVALID, f"{quote(name.name)} is not an RFC 1123 subdomain"
        )
    return name.name


# --- binding
# Steps 14 and 15: whether the payload is for us, for this challenge, and next in line.

_DECIMAL: Final = re.compile(r"0|[1-9][0-9]{0,18}")
_SECOND_MS: Final = 1000


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


def protocol(header: EvidenceHeader) -> Refusal | None:
    """Step 10 again, now under the signature."""
    if header.protocol != PROTOCOL:
        return Refusal(
            ReasonCode.PROTOCOL_UNSUPPORTED,
            f"payload of protocol {header.protocol}, {PROTOCOL} is expected",
        )
    return None


def bound(
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


def in_line(
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


# --- standing
# Steps 6 to 9: whether the node is known and not denied, and what SPIRE says about it.

_REASON: Final = 200


@dataclass(frozen=True, slots=True)
class NodeStanding:
    """A node that the directory knows and nobody denied, and how well it is confirmed."""

    node: KnownNode
    standing: Standing


UNCONFIRMED: Final = NodeStanding(KnownNode(), Standing(Level.NONE))
"""For bad news, which nobody has to confirm."""


def node_standing(
    spire: SpireFacts, peer: SpiffeId, name: str, known: Snapshots, now_ns: int
) -> NodeStanding | Refusal:
    """Steps 6, 7, 8 and 9 in their order."""
    node = known_node(known, name, now_ns)
    if isinstance(node, Refusal):
        return node
    question = SpireQuestion(peer, name, node, known.policy, now_ns)
    if refusal := spire.entry(question):
        return refusal
    standing = spire.agent(question)
    if isinstance(standing, Refusal):
        return standing
    return spire.image(question) or NodeStanding(node, standing)


def known_node(known: Snapshots, name: str, now_ns: int) -> KnownNode | Refusal:
    """Step 6: stores fresh, node in the directory, no denial."""
    if now_ns >= known.enrollment.fresh_until_ns:
        return Refusal(ReasonCode.ENROLLMENT_STALE, "pins and denials are too old to rely on")
    if now_ns >= known.directory.fresh_until_ns:
        return Refusal(ReasonCode.DIRECTORY_STALE, "the list of nodes is too old to rely on")
    node = known.directory.nodes.get(name)
    if node is None:
        return Refusal(ReasonCode.NODE_UNKNOWN, f"the cluster has no node {name}")
    return denial(known, name) or node


def denial(known: Snapshots, name: str) -> Refusal | None:
    """The last part of step 6."""
    record = known.enrollment.records.get(name)
    if record is None or record.denial is None:
        return None
    denied = record.denial
    who = "the controller" if denied.actor == AUTOMATIC else quote(denied.actor)
    return Refusal(
        ReasonCode.NODE_DENIED,
        f"denied by {who}: {denied.code} {quote(denied.reason, _REASON)}",
    )


# --- envelope
# Steps 11 and 13: the shape of a message, and who signed exactly these bytes.
#
# The payload is parsed only after its signature has been verified, and from the very
# bytes that were verified.

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


# --- opening
# Steps 4 to 15 of a message: from received bytes to a payload that is known to be the node's.
#
# What is left afterwards is authentic, addressed to us, an answer to our challenge and
# the next in line; whether it is acceptable is judged elsewhere (see `judging`).

Payload = Evidence | BadNews | Unreadable


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message with everything it is judged by."""

    stream: StreamState
    message: ReceivedMessage
    issued: IssuedChallenge | Refusal
    """What popping its challenge gave."""
    known: Snapshots
    now: Moment

    @property
    def spare(self) -> bool:
        """Whether it comes under the spare nonce, as bad news does."""
        return self.message.payload_type == TYPE_BAD_NEWS


@dataclass(frozen=True, slots=True)
class Opened:
    """An authentic payload."""

    payload: Payload
    issued: IssuedChallenge
    digest: str
    stream: StreamState
    """The state after it."""
    warning: str | None


def still_welcome(arrival: Arrival, spire: SpireFacts) -> NodeStanding | Refusal:
    """Steps 4 to 10 again: whether this session may still speak for its node.

    Bad news needs no store that is fresh and no SPIRE server that answers: neither could
    make it say less.
    """
    stream, known, now = arrival.stream, arrival.known, arrival.now
    proof = chain(stream.chain, known.roots, now.wall, stream.proof)
    if isinstance(proof, Refusal):
        return proof
    if arrival.spare:
        found: NodeStanding | Refusal = denial(known, stream.node) or UNCONFIRMED
    else:
        found = node_standing(spire, stream.peer, stream.node, known, now.boottime_ns)
    record = known.enrollment.records.get(stream.node)
    return found if isinstance(found, Refusal) else superseded_meanwhile(stream, record) or found


def open_message(arrival: Arrival, settings: VerifierSettings) -> Opened | Refusal:
    """Steps 11 to 15, and the part of step 10 that needs a signed answer."""
    issued, message = arrival.issued, arrival.message
    if refusal := shape(message, issued, settings.limits):
        return refusal
    if isinstance(issued, Refusal):
        return issued
    if refusal := signature(message, issued, arrival.stream):
        return refusal
    judged = arrival.stream.judged
    payload = read_payload(message, judged.known if judged else None)
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
        protocol(header)
        or bound(header, issued, stream, settings, spare=arrival.spare)
        or in_line(header, times, stream, arrival.now, settings)
        or duplicate(stream, arrival.known.enrollment.records.get(stream.node))
    )
