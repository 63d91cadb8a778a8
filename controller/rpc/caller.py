"""Who a caller is, from what TLS proved: steps 2 to 5 for every method, not only Attest.

Pure: session facts, roots and `now` in, a caller or a refusal out. Must not know
methods; `authorization.py` decides what a caller may do.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cryptography import x509

from controller.rpc.authorization import KIND_OF_ROLE, CallerKind
from controller.verifier import peer
from controller.verifier.context import StreamFacts
from gpuwarden.evidence.strict_json import quote
from gpuwarden.identity.chain import parse_chain
from gpuwarden.identity.spiffe_id import peer_name
from gpuwarden.reasons import ReasonCode, Refusal


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller whose identity holds at the time of asking."""

    kind: CallerKind
    name: str
    """SPIFFE ID, or `local`."""
    not_after: datetime | None
    """When the identity ends, UTC; None for the unix socket."""


LOCAL: Final = Caller(CallerKind.LOCAL, "local", None)

_PRESENT: Final[ContextVar[Caller | None]] = ContextVar("caller", default=None)


def owner_of_socket(uid: int) -> Caller:
    """Whoever could open the unix socket: its owner, or root, which cannot be told apart."""
    return Caller(CallerKind.LOCAL, f"local uid {uid}", None)


def present_caller() -> Caller:
    """Who called the method that runs now; raises LookupError outside of one."""
    caller = _PRESENT.get()
    if caller is None:
        raise LookupError("no call is being answered here")
    return caller


@contextmanager
def calling(caller: Caller | None) -> Iterator[None]:
    """While a method runs for `caller`."""
    token = _PRESENT.set(caller)
    try:
        yield
    finally:
        _PRESENT.reset(token)


def caller_of(
    facts: StreamFacts,
    roots: Sequence[x509.Certificate],
    *,
    trust_domain: str,
    path_prefix: str,
    at: datetime,
) -> Caller | Refusal:
    """The caller behind a TLS session as of `at` (aware), or the first step it fails."""
    if refusal := peer.tls(facts):
        return refusal
    identity = peer.identity(facts, trust_domain)
    if isinstance(identity, Refusal):
        return identity
    proof = peer.chain(facts.chain, roots, at)
    if isinstance(proof, Refusal):
        return proof
    name = peer_name(identity, path_prefix)
    if name is None:
        return Refusal(ReasonCode.PEER_ROLE_UNKNOWN, f"path {quote(identity.path)} has no role")
    leaf = parse_chain(facts.chain)[0]
    return Caller(KIND_OF_ROLE[name.role], str(identity), leaf.not_valid_after_utc)
