"""Who a caller is, which gRPC methods it may call, and how much one peer uses.

A method that is not in the table is refused for everybody, also when a service is registered. Must
not do IO, nor look at requests or the fleet.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from cryptography import x509

from controller.ledger.record import PodGone, PodSeen
from controller.ledger.restore import LivePod
from controller.verifier import session
from controller.verifier.context import StreamFacts
from gpuwarden.evidence.strict_json import quote
from gpuwarden.identity.chain import parse_chain
from gpuwarden.identity.spiffe_id import Role, peer_name
from gpuwarden.moment import NS_PER_S
from gpuwarden.reasons import ReasonCode, Refusal


@dataclass(frozen=True, slots=True)
class FoundPod:
    """A pod at its newest."""

    sight: PodSeen | PodGone
    held: LivePod | None
    """What it says that it holds; None where it is unbound, gone, or holds nothing."""


@dataclass(frozen=True, slots=True)
class BoundPod:
    """The pod that a token was made for."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class TokenIdentity:
    """What the API server says about a token that counts for `api.audience`."""

    username: str
    pod: BoundPod | None
    """None for a token that is bound to no pod."""


class TokenReviewUnavailableError(Exception):
    """The API server did not say what the token is worth; never holds a token."""


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody with an identity of the cluster, as the API server names them."""

    username: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """In the order of its keys."""


# --- authorization: one table, default deny


class CallerKind(StrEnum):
    """What a caller has proven to be."""

    AGENT = "agent"
    CONTROLLER = "controller"
    INSPECTOR = "inspector"
    OPERATOR = "operator"
    LOCAL = "local"
    """Could open the controller's unix socket (mode 0600)."""
    TENANT = "tenant"
    """A person of the cluster without a role: asks about pods of namespaces that they may read."""
    NONE = "none"
    """Nothing proven: no certificate, or none that counts."""


KIND_OF_ROLE: Final[Mapping[Role, CallerKind]] = MappingProxyType(
    {role: CallerKind(role.value) for role in Role}
)

_AGENTS: Final = frozenset({CallerKind.AGENT})
_READERS: Final = frozenset({CallerKind.INSPECTOR, CallerKind.OPERATOR, CallerKind.LOCAL})
_OPERATORS: Final = frozenset({CallerKind.OPERATOR, CallerKind.LOCAL})
_READERS_AND_TENANTS: Final = _READERS | {CallerKind.TENANT}
"""What a tenant asks is answered about one namespace, whose pods the tenant may read."""
_KNOWN: Final = _AGENTS | _READERS

_FLEET: Final = "/gpuwarden.wire.v1.FleetService"
_OPERATOR: Final = "/gpuwarden.wire.v1.OperatorService"
_PLACEMENT: Final = "/gpuwarden.wire.v1.PlacementService"
_SUPPORT: Final = "/gpuwarden.wire.v1.SupportService"
_AUDIT: Final = "/gpuwarden.wire.v1.AuditService"
_HEALTH: Final = "/grpc.health.v1.Health"

ALLOWED_CALLERS: Final[Mapping[str, frozenset[CallerKind]]] = MappingProxyType(
    {
        "/gpuwarden.wire.v1.AttestationService/Attest": _AGENTS,
        f"{_FLEET}/ListNodes": _READERS,
        f"{_FLEET}/GetNode": _READERS,
        f"{_FLEET}/WatchNodes": _READERS,
        f"{_FLEET}/ListGpus": _READERS,
        f"{_FLEET}/ListClasses": _READERS,
        f"{_FLEET}/GetClass": _READERS,
        f"{_FLEET}/ExplainNode": _READERS,
        f"{_FLEET}/FitPod": _READERS_AND_TENANTS,
        f"{_FLEET}/GetStatus": _READERS,
        f"{_OPERATOR}/AcceptNode": _OPERATORS,
        f"{_OPERATOR}/QuarantineNode": _OPERATORS,
        f"{_OPERATOR}/ReleaseNode": _OPERATORS,
        f"{_OPERATOR}/ReleaseGpu": _OPERATORS,
        f"{_PLACEMENT}/ListReservations": _READERS_AND_TENANTS,
        f"{_PLACEMENT}/ExplainPod": _READERS_AND_TENANTS,
        f"{_PLACEMENT}/CheckProtection": _READERS,
        f"{_PLACEMENT}/ListUse": _READERS,
        f"{_SUPPORT}/Collect": _READERS,
        f"{_AUDIT}/ReadRecords": _READERS,
        f"{_AUDIT}/FindGpus": _READERS,
        f"{_AUDIT}/ReadGpuRecords": _READERS,
        f"{_HEALTH}/Check": _KNOWN,
        f"{_HEALTH}/List": _KNOWN,
        f"{_HEALTH}/Watch": _KNOWN,
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _READERS,
    }
)
"""Full method name -> caller kinds that may call it."""


def authorize(method: str, caller: CallerKind) -> Refusal | None:
    """None when `caller` may call `method`, else ROLE_DENIED; unknown methods are denied."""
    if caller in ALLOWED_CALLERS.get(method, frozenset()):
        return None
    return Refusal(ReasonCode.ROLE_DENIED, f"{caller} may not call {method}")


# --- the caller, from what TLS proved (verification steps 2 to 5, for every method)


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller whose identity holds at the time of asking."""

    kind: CallerKind
    name: str
    """SPIFFE ID, `local`, or `user` and the name of a person of the cluster."""
    not_after: datetime | None
    """When the identity ends, UTC; None for the unix socket and for tokens."""
    person: Person | None = None
    """Whoever has an identity of the cluster."""


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
    if refusal := session.check_tls(facts):
        return refusal
    identity = session.peer_identity(facts, trust_domain)
    if isinstance(identity, Refusal):
        return identity
    proof = session.check_chain(facts.chain, roots, at)
    if isinstance(proof, Refusal):
        return proof
    name = peer_name(identity, path_prefix)
    if name is None:
        return Refusal(ReasonCode.PEER_ROLE_UNKNOWN, f"path {quote(identity.path)} has no role")
    leaf = parse_chain(facts.chain)[0]
    return Caller(KIND_OF_ROLE[name.role], str(identity), leaf.not_valid_after_utc)


# --- usage by peer (verification step 1); bounded memory, times are CLOCK_BOOTTIME


@dataclass(frozen=True, slots=True)
class Rate:
    """A token bucket: `per_second` sustained, `burst` at once."""

    per_second: float
    burst: int


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What a new stream finds: others that are open, and whether its peer opens too many."""

    open_streams: int
    peer_streams: int
    rate_exceeded: bool


@dataclass(slots=True)
class _Bucket:
    rate: Rate
    tokens: float
    refilled_ns: int

    def take(self, now_ns: int) -> bool:
        elapsed = max(0, now_ns - self.refilled_ns) / NS_PER_S
        self.tokens = min(float(self.rate.burst), self.tokens + elapsed * self.rate.per_second)
        self.refilled_ns = max(now_ns, self.refilled_ns)
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True

    def wait_ns(self) -> int:
        """From the last `take` until one succeeds."""
        return math.ceil(max(0.0, 1.0 - self.tokens) / self.rate.per_second * NS_PER_S)


@dataclass(slots=True)
class _Peer:
    openings: _Bucket
    messages: _Bucket
    streams: int = 0


@dataclass(slots=True)
class PeerUsage:
    """Open streams and rates per peer. Not thread-safe: one event loop owns it."""

    openings: Rate
    messages: Rate
    max_peers: int = 40_000
    """Peers remembered; above that, the one idle for longest is forgotten first."""
    _peers: dict[str, _Peer] = field(default_factory=dict)
    _open: int = 0

    @property
    def open_streams(self) -> int:
        """Streams open now, accepted or not."""
        return self._open

    @property
    def known_peers(self) -> int:
        """Peers remembered now."""
        return len(self._peers)

    def open(self, peer: str, now_ns: int) -> Occupancy:
        """Count a new stream of `peer`, whatever becomes of it; pair with `close`."""
        known = self._peer(peer, now_ns)
        found = Occupancy(self._open, known.streams, not known.openings.take(now_ns))
        known.streams += 1
        self._open += 1
        return found

    def close(self, peer: str) -> None:
        """Undo one `open`."""
        self._peers[peer].streams -= 1
        self._open -= 1

    def message(self, peer: str, now_ns: int) -> Refusal | None:
        """Count one message of `peer`, or say that it comes too fast."""
        if self._peer(peer, now_ns).messages.take(now_ns):
            return None
        return Refusal(ReasonCode.LIMIT_RATE, "too many messages of this peer")

    def wait_ns(self, peer: str) -> int:
        """For how long from its last message on the next one of `peer` comes too fast."""
        known = self._peers.get(peer)
        return 0 if known is None else known.messages.wait_ns()

    def _peer(self, peer: str, now_ns: int) -> _Peer:
        known = self._peers.pop(peer, None)
        if known is None:
            self._forget_idle()
            known = _Peer(_full(self.openings, now_ns), _full(self.messages, now_ns))
        self._peers[peer] = known
        return known

    def _forget_idle(self) -> None:
        """Drop the peer that was idle longest; peers with open streams are never dropped."""
        if len(self._peers) < self.max_peers:
            return
        idle = next((name for name, peer in self._peers.items() if peer.streams == 0), None)
        if idle is not None:
            del self._peers[idle]


def _full(rate: Rate, now_ns: int) -> _Bucket:
    return _Bucket(rate, float(rate.burst), now_ns)
