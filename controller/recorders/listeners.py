"""Records what clients of a listener do before anything is asked: logs and metrics.

Whoever reaches a port can do it without end. So everything is counted, few lines are written, and
none is an error. Must not decide anything.
"""

from collections.abc import Callable

from controller.web.handshakes import HandshakeFailure
from controller.web.listener import ConnectionEnd, HttpServer
from gpuwarden.telemetry import names
from gpuwarden.telemetry.limited import LimitedLog
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

_QUIET = frozenset({ConnectionEnd.IDLE})
"""What happens to well-behaved clients too."""


class ListenerRecorder:
    """Implements `ListenerObserver`; recorders of what a listener answers inherit it."""

    def __init__(self, listener: str, instruments: Instruments) -> None:
        self._log = logger(listener)
        self._limited = LimitedLog(self._log, instruments)
        self._listener = listener
        self._material_refused = instruments.counter(names.TLS_MATERIAL_REFUSED).labels(listener)
        self._completed = instruments.counter(names.HANDSHAKES_COMPLETED).labels(listener)
        self._failures = instruments.counter(names.HANDSHAKE_FAILURES)
        self._ends = instruments.counter(names.CONNECTIONS_CUT)
        self._malformed = instruments.counter(names.REQUESTS_MALFORMED).labels(listener)

    def certificate_changed(self, error: str | None) -> None:
        """The listener's certificate files have changed and were taken, or refused with `error`."""
        if error is None:
            self._log.info(Event.LISTENER_OPEN, listener=self._listener, certificate="renewed")
        else:
            self._material_refused.inc()
            self._log.error(Event.TLS_MATERIAL_REFUSED, listener=self._listener, reason=error)

    def handshake_completed(self) -> None:
        """A TLS handshake ended well."""
        self._completed.inc()

    def handshake_failed(self, cause: HandshakeFailure, peer: str, reason: str) -> None:
        """A TLS handshake did not."""
        self._failures.labels(self._listener, cause.value).inc()
        self._limited.warning(
            Event.TLS_HANDSHAKE_FAILED,
            key=cause,
            listener=self._listener,
            cause=cause.value,
            peer=peer,
            reason=reason,
        )

    def connection_cut(self, cause: ConnectionEnd, peer: str) -> None:
        """The listener ended a connection."""
        self._ends.labels(self._listener, cause.value).inc()
        if cause not in _QUIET:
            self._limited.warning(
                Event.CONNECTIONS_CUT,
                key=cause,
                listener=self._listener,
                cause=cause.value,
                peer=peer,
            )

    def malformed(self, reason: str) -> None:
        """The framing of a request could not be read."""
        self._malformed.inc()
        self._limited.warning(
            Event.REQUEST_MALFORMED, listener=self._listener, reason=reason.splitlines()[0]
        )


def show_listener(server: HttpServer, instruments: Instruments) -> None:
    """Have gauges worked out when Prometheus asks: connections, and how long its chain lasts."""
    connections: Callable[[], float] = server.__len__
    instruments.gauge(names.CONNECTIONS).labels(server.name).set_function(connections)
    if server.has_tls:
        left = instruments.gauge(names.SERVING_CERTIFICATE_EXPIRY).labels(server.name)
        left.set_function(server.seconds_left)
    if server.clients is not None:
        ends = instruments.gauge(names.CLIENT_CERTIFICATE_EXPIRY).labels(server.name)
        ends.set_function(server.client_seconds_left)
