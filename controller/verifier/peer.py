"""Steps 1 to 5: whether this peer may speak here, and as which node. Parses nothing of ours."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from cryptography import x509

from controller.verifier.context import Limits, StreamFacts
from gpuwarden.evidence.strict_json import quote
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
