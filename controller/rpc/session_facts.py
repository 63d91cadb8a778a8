"""gRPC's `auth_context` as the facts that the Verifier judges a stream by.

The names are read twice, once by TLS and once from the leaf itself, so that the
Verifier can see whether both mean the same peer. Never raises, decides nothing.
"""

from collections.abc import Iterable, Mapping

from controller.rpc.peer_usage import Occupancy
from controller.verifier.context import StreamFacts
from gpuwarden.evidence.canonical import sha256_hex
from gpuwarden.identity.chain import ChainError, parse_chain, uri_sans
from gpuwarden.identity.peer import PeerFacts, peer_facts
from gpuwarden.identity.spiffe_id import SpiffeIdError

_ALONE = Occupancy(0, 0, rate_exceeded=False)


def stream_facts(
    auth_context: Mapping[str, Iterable[bytes]], occupancy: Occupancy = _ALONE
) -> StreamFacts:
    """What TLS says about the session, with what else is open on this server."""
    peer = _peer(auth_context)
    return StreamFacts(
        chain=peer.chain,
        uri_sans=_names_in_leaf(peer),
        peer_spiffe_id=peer.uri_sans[0] if len(peer.uri_sans) == 1 else None,
        resumed=peer.resumed,
        open_streams=occupancy.open_streams,
        peer_streams=occupancy.peer_streams,
        rate_exceeded=occupancy.rate_exceeded,
    )


def peer_key(auth_context: Mapping[str, Iterable[bytes]]) -> str:
    """Under which name a peer's usage is counted: its one SPIFFE ID, else its certificate."""
    peer = _peer(auth_context)
    if len(peer.uri_sans) == 1:
        return peer.uri_sans[0]
    return sha256_hex(peer.leaf_der) if peer.leaf_der else ""


def _peer(auth_context: Mapping[str, Iterable[bytes]]) -> PeerFacts:
    return peer_facts({name: tuple(values) for name, values in auth_context.items()})


def _names_in_leaf(peer: PeerFacts) -> tuple[str, ...]:
    try:
        return uri_sans(parse_chain(peer.chain)[0])
    except (ChainError, SpiffeIdError):
        # The leaf is refused for its chain; its names as TLS has read them let step 4 say so.
        return peer.uri_sans
