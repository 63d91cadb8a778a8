"""Counts the connections of the agents' listener that never came to a call.

gRPC tells nobody how a handshake ends, from whom it was, or why it failed. It tells that one
begins, and from which address a call comes. A connection that begins and brings no call in time
is counted as failed: the client did not finish TLS, was refused, or refused the controller.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

GRACE_S: Final = 15.0
"""More than gRPC gives a handshake; agents and the command line call at once after it."""
CONNECTIONS: Final = 16_384
"""Addresses that are remembered; a connection lives half an hour at most."""


class BegunHandshakes:
    """One for the listener. `begun` may be called on any thread."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._open: list[float] = []
        self._seen: OrderedDict[str, None] = OrderedDict()

    def begun(self) -> None:
        """A handshake begins."""
        with self._lock:
            self._open.append(self._monotonic())

    def called(self, peer: str) -> None:
        """A call came over the connection from this address and port: its handshake ended well."""
        if peer in self._seen:
            return
        self._seen[peer] = None
        if len(self._seen) > CONNECTIONS:
            self._seen.popitem(last=False)
        with self._lock:
            if self._open:
                self._open.pop()  # the newest: older ones had the time to call

    def take_failed(self) -> int:
        """How many have failed since the last time."""
        with self._lock:
            limit = self._monotonic() - GRACE_S
            kept = [begun for begun in self._open if begun > limit]
            failed = len(self._open) - len(kept)
            self._open = kept
        return failed
