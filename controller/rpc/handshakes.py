"""Counts the connections of the agents' listener that never came to a call, and tells from whom.

gRPC tells nobody how a handshake ends, from whom it was, or why it failed. It tells that one
begins, and from which address a call comes. A connection that begins and brings no call in time
is counted as failed: the client did not finish TLS, was refused, or refused the controller. While
some fail, the kernel is asked who is connected whenever a handshake begins. The addresses that
bring no call are those that failed; why, only the client knows.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

GRACE_S: Final = 15.0
"""More than gRPC gives a handshake; agents and the command line call at once after it."""
CONNECTIONS: Final = 16_384
"""Addresses that are remembered; a connection lives half an hour at most."""
LOOKS_S: Final = 300.0
"""How long after a failure the kernel is asked; it costs milliseconds with many connections."""
LOOK_S: Final = 1.0
"""Between two questions."""
SUSPECTS: Final = 256
"""Addresses that may fail, at one time."""


@dataclass(frozen=True, slots=True)
class FailedHandshakes:
    """What has failed since the last time."""

    count: int = 0
    peers: tuple[str, ...] = ()
    """Addresses as far as they were seen; of the first failures after a while there are none."""


class BegunHandshakes:
    """One for the listener. `begun` may be called on any thread."""

    def __init__(
        self,
        monotonic: Callable[[], float],
        connected: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        """`connected`: the addresses from which there are connections now, as gRPC writes them."""
        self._monotonic = monotonic
        self._connected = connected
        self._lock = threading.Lock()
        self._open: list[float] = []
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._known: frozenset[str] | None = None
        """Who was connected when the kernel was last asked; None while nobody fails."""
        self._suspects: dict[str, float] = {}
        """Who has come since, and when."""
        self._looked = self._failed = 0.0

    def begun(self) -> None:
        """A handshake begins."""
        now = self._monotonic()
        with self._lock:
            self._open.append(now)
            is_due = self._known is not None and now - self._looked >= LOOK_S
            if is_due:
                self._looked = now
        if is_due:
            self._look(now)

    def called(self, peer: str) -> None:
        """A call came over the connection from this address and port: its handshake ended well."""
        peer = unquote(peer)
        if peer in self._seen:
            return
        self._seen[peer] = None
        if len(self._seen) > CONNECTIONS:
            self._seen.popitem(last=False)
        with self._lock:
            if self._open:
                self._open.pop()  # the newest: older ones had the time to call
            self._suspects.pop(peer, None)

    def take_failed(self) -> FailedHandshakes:
        """What has failed since the last time."""
        now = self._monotonic()
        with self._lock:
            kept = [begun for begun in self._open if begun > now - GRACE_S]
            count = len(self._open) - len(kept)
            self._open = kept
            over = [peer for peer, since in self._suspects.items() if since <= now - GRACE_S]
            for peer in over:
                del self._suspects[peer]
        if count:
            self._failed = now
            if self._known is None:
                self._look(now)
        elif now - self._failed > LOOKS_S:
            with self._lock:
                self._known, self._suspects = None, {}
        return FailedHandshakes(count, tuple(over) if count else ())

    def _look(self, now: float) -> None:
        found = self._connected()
        with self._lock:
            new = frozenset[str]() if self._known is None else found - self._known
            self._known = found
            for peer in sorted(new)[: SUSPECTS - len(self._suspects)]:
                self._suspects[peer] = now
