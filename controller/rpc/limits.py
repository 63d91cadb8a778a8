"""How much one peer, and all peers together, may ask for: step 1 of verification.

Counts every open stream, accepted or not. State with bounded memory; decisions
take `now_ns` (CLOCK_BOOTTIME) and return values. Must not do IO.
"""

from dataclasses import dataclass, field

from gpuwarden.reasons import ReasonCode, Refusal

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Rate:
    """A token bucket: `per_second` sustained, `burst` at once."""

    per_second: float
    burst: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds; the defaults leave room for make-before-break and a reconnect."""

    streams: int = 20_000
    """Open streams in all."""
    streams_per_peer: int = 4
    openings: Rate = Rate(1.0, 60)
    messages: Rate = Rate(4.0, 20)
    peers: int = 40_000
    """Peers remembered; above that, the one idle for longest is forgotten first."""


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


@dataclass(slots=True)
class _Peer:
    openings: _Bucket
    messages: _Bucket
    streams: int = 0


@dataclass(slots=True)
class StreamLimits:
    """Open streams and rates per peer. Not thread-safe: one event loop owns it."""

    limits: Limits
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

    def open(self, peer: str, now_ns: int) -> Refusal | None:
        """Count a new stream of `peer`, or say why it may not be; pair with `close`."""
        if self._open >= self.limits.streams:
            return Refusal(ReasonCode.LIMIT_STREAMS, f"{self._open} streams are open in all")
        known = self._peer(peer, now_ns)
        if known.streams >= self.limits.streams_per_peer:
            return Refusal(ReasonCode.LIMIT_STREAMS, f"{known.streams} streams of this peer")
        if not known.openings.take(now_ns):
            return Refusal(ReasonCode.LIMIT_RATE, "too many streams opened by this peer")
        known.streams += 1
        self._open += 1
        return None

    def message(self, peer: str, now_ns: int) -> Refusal | None:
        """Count one message of `peer`, or say that it comes too fast."""
        if self._peer(peer, now_ns).messages.take(now_ns):
            return None
        return Refusal(ReasonCode.LIMIT_RATE, "too many messages of this peer")

    def close(self, peer: str) -> None:
        """Undo one successful `open`."""
        self._peers[peer].streams -= 1
        self._open -= 1

    def _peer(self, peer: str, now_ns: int) -> _Peer:
        known = self._peers.pop(peer, None)
        if known is None:
            self._forget_idle()
            known = _Peer(_full(self.limits.openings, now_ns), _full(self.limits.messages, now_ns))
        self._peers[peer] = known
        return known

    def _forget_idle(self) -> None:
        """Drop the peer that was idle longest; peers with open streams are never dropped."""
        if len(self._peers) < self.limits.peers:
            return
        idle = next((name for name, peer in self._peers.items() if peer.streams == 0), None)
        if idle is not None:
            del self._peers[idle]


def _full(rate: Rate, now_ns: int) -> _Bucket:
    return _Bucket(rate, float(rate.burst), now_ns)
