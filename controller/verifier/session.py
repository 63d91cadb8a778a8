"""Steps 1 to 10: whether a peer may open a stream, for which node, and how well it is confirmed.

Nothing of ours is parsed before step 10. Hello is not signed: TLS says whose it is and the
challenge binds its digest. A superseded process is not refused for its Hello: only its answer to a
challenge issued afterwards proves that it lives beside its successor.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec
from cryptography import x509

from controller.fleet.attestation_result import StreamState
from controller.fleet.directory import KnownNode
from controller.fleet.enrollment import AUTOMATIC, EnrollmentRecord
from controller.policy import Level
from controller.verifier.context import (
    Limits,
    Snapshots,
    SpireFacts,
    SpireQuestion,
    Standing,
    StreamFacts,
)
from gpuwarden.evidence.model import PROTOCOL, Hello
from gpuwarden.evidence.strict_json import DecodeError, decode, quote
from gpuwarden.identity.chain import ChainError, ChainProof, verify_chain
from gpuwarden.identity.spiffe_id import (
    Role,
    SpiffeId,
    SpiffeIdError,
    is_node_name,
    parse_spiffe_id,
    peer_name,
)
from gpuwarden.reasons import ReasonCode, Refusal

_SHOWN: Final = 300
_REASON: Final = 200
MAX_HELLO_BYTES: Final = 64 * 1024
_INSTANCE: Final = re.compile(r"[0-9a-f]{32}")
_PLAIN: Final = re.compile(r"[\x21-\x7e]{1,128}")


def check_limits(facts: StreamFacts, bounds: Limits) -> Refusal | None:
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


def check_tls(facts: StreamFacts) -> Refusal | None:
    """Step 2: a client certificate that this very handshake has checked."""
    if not facts.chain:
        return Refusal(ReasonCode.TLS_NO_CLIENT_CERT, "the peer showed no certificate")
    if facts.resumed:
        return Refusal(ReasonCode.TLS_RESUMED, "a resumed session skips the certificate checks")
    return None


def peer_identity(facts: StreamFacts, trust_domain: str) -> SpiffeId | Refusal:
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


def check_chain(
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


@dataclass(frozen=True, slots=True)
class NodeStanding:
    """A node that the directory knows and that is not quarantined, and how well it is confirmed."""

    node: KnownNode
    standing: Standing


UNCONFIRMED: Final = NodeStanding(KnownNode(), Standing(Level.NONE))
"""For failure notices, which nobody has to confirm."""


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
    """Step 6: stores fresh, node in the directory, no quarantine entry."""
    if now_ns >= known.enrollment.fresh_until_ns:
        return Refusal(ReasonCode.ENROLLMENT_STALE, "the enrollments are too old to rely on")
    if now_ns >= known.directory.fresh_until_ns:
        return Refusal(ReasonCode.DIRECTORY_STALE, "the list of nodes is too old to rely on")
    node = known.directory.nodes.get(name)
    if node is None:
        return Refusal(ReasonCode.NODE_UNKNOWN, f"the cluster has no node {name}")
    return check_quarantine(known, name) or node


def check_quarantine(known: Snapshots, name: str) -> Refusal | None:
    """The last part of step 6."""
    record = known.enrollment.records.get(name)
    if record is None or record.denial is None:
        return None
    denied = record.denial
    who = "the controller" if denied.actor == AUTOMATIC else quote(denied.actor)
    return Refusal(
        ReasonCode.NODE_DENIED,
        f"quarantined by {who}: {denied.code} {quote(denied.reason, _REASON)}",
    )


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
                ReasonCode.PROTOCOL_UNSUPPORTED,
                f"protocol {protocol}, {PROTOCOL} is expected",
            )
        hello = decode(data, Hello, max_bytes=MAX_HELLO_BYTES)
    except DecodeError as error:
        return Refusal(ReasonCode.MSG_MALFORMED, f"Hello: {error}")
    return _malformed(hello, node) or hello


def superseded(record: EnrollmentRecord | None, instance: str) -> bool:
    """Whether another process has taken over from `instance`."""
    return record is not None and instance in record.superseded


def check_superseded(stream: StreamState, record: EnrollmentRecord | None) -> Refusal | None:
    """Another process took over while this stream was open: it renews nothing and ends."""
    if not stream.superseded_at_open and superseded(record, stream.hello.instance_id):
        return Refusal(ReasonCode.STREAM_SUPERSEDED, "a newer agent process answers for the node")
    return None


def check_duplicate(stream: StreamState, record: EnrollmentRecord | None) -> Refusal | None:
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
