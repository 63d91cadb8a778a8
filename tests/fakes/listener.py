"""Remembers what a listener reports of its clients."""

import asyncio

from controller.web.handshakes import HandshakeFailure
from controller.web.listener import ConnectionEnd


class SeenConnections:
    """A `ListenerObserver`."""

    def __init__(self) -> None:
        self.certificates: list[str | None] = []
        self.taken = asyncio.Event()
        """Set when new certificate files have been taken."""
        self.completed = 0
        self.refused: list[tuple[HandshakeFailure, str, str]] = []
        """Cause, address and reason of each."""
        self.refusal = asyncio.Event()
        """Set at each failure; a test clears it."""
        self.cuts: list[ConnectionEnd] = []
        self.framing: list[str] = []

    def certificate_changed(self, error: str | None) -> None:
        self.certificates.append(error)
        if error is None:
            self.taken.set()

    def handshake_completed(self) -> None:
        self.completed += 1

    def handshake_failed(self, cause: HandshakeFailure, peer: str, reason: str) -> None:
        self.refused.append((cause, peer, reason))
        self.refusal.set()

    def connection_cut(self, cause: ConnectionEnd, _peer: str) -> None:
        self.cuts.append(cause)

    def malformed(self, reason: str) -> None:
        self.framing.append(reason)
