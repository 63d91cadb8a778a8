"""How much one peer, and all peers together, may ask for: step 1 of verification.

Counts every open stream, accepted or not. State with bounded memory; decisions
take `now_ns` (CLOCK_BOOTTIME) and return values. Must not do IO.
"""

from dataclasses import dataclass, field

from gpuwarden.reasons import ReasonCode, Refusal

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds; the defaults leave room for make-before-break and a reconnect."""

    streams: int = 20_000
    """Open streams in all."""
    streams_per_peer: int = 4
    rate_per_peer: float = 4.0
    """Messages and stream openings a second, sustained."""
    burst_per_peer: int = 20
    peers: int = 40_000
    """Peers remembered; above that, idle ones are forgotten first."""


@dataclass(slots=True)
class _Peer:
    tokens: float
    refilled_ns: int
    streams: int = 0


@dataclass(slots=True)
class StreamLimits:
    """Open streams and a token bucket per peer. Not thread-safe: one event loop owns it."""

    limits: Limits
    _peers: dict[str, _Peer] = field(default_factory=dict)
    _open: int = 0

    @property
    def open_streams(self) -> int:
        """Streams open now, accepted or not."""
        return self._open

    def open(self, peer: str, now_ns: int) -> Refusal | None:
        """Count a new stream of `peer`, or say why it may not be; pair with `close`."""
        if self._open >= self.limits.streams:
            return Refusal(ReasonCode.LIMIT_STREAMS, f"{self._open} streams are open in all")
        known = self._peer(peer, now_ns)
        if known.streams >= self.limits.streams_per_peer:
            return Refusal(ReasonCode.LIMIT_STREAMS, f"{known.streams} streams of this peer")
        if not self._take(known, now_ns):
            return Refusal(ReasonCode.LIMIT_RATE, "too many streams opened by this peer")
        known.streams += 1
        self._open += 1
        return None

    def message(self, peer: str, now_ns: int) -> Refusal | None:
        """Count one message of `peer`, or say that it comes too fast."""
        if self._take(self._peer(peer, now_ns), now_ns):
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
            known = _Peer(float(self.limits.burst_per_peer), now_ns)
        self._peers[peer] = known
        return known

    def _take(self, peer: _Peer, now_ns: int) -> bool:
        elapsed = max(0, now_ns - peer.refilled_ns) / _NS
        full = float(self.limits.burst_per_peer)
        peer.tokens = min(full, peer.tokens + elapsed * self.limits.rate_per_peer)
        peer.refilled_ns = max(now_ns, peer.refilled_ns)
        if peer.tokens < 1.0:
            return False
        peer.tokens -= 1.0
        return True

    def _forget_idle(self) -> None:
        """Drop the peer that was idle longest; peers with open streams are never dropped."""
        if len(self._peers) < self.limits.peers:
            return
        idle = next((name for name, peer in self._peers.items() if peer.streams == 0), None)
        if idle is not None:
            del self._peers[idle]
