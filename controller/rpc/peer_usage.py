"""How much one peer, and all peers together, use now: what step 1 of verification judges.

Counts every open stream, accepted or not. State with bounded memory; takes `now_ns`
(CLOCK_BOOTTIME). Must not do IO, nor judge streams: the Verifier does.
"""

import math
from dataclasses import dataclass, field

from gpuwarden.reasons import ReasonCode, Refusal

_NS = 1_000_000_000


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
        elapsed = max(0, now_ns - self.refilled_ns) / _NS
        self.tokens = min(float(self.rate.burst), self.tokens + elapsed * self.rate.per_second)
        self.refilled_ns = max(now_ns, self.refilled_ns)
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True

    def wait_ns(self) -> int:
        """From the last `take` until one succeeds."""
        return math.ceil(max(0.0, 1.0 - self.tokens) / self.rate.per_second * _NS)


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
