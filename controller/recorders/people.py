"""Records what becomes of the access for people: certificates, and questions about them.

Whoever may port-forward can cause these without end, so all is counted and few lines are written.
Must not decide anything. No token comes here.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from gpuwarden.telemetry import names
from gpuwarden.telemetry.limited import LimitedLog
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

LISTENER: Final = "access"


class PeopleRecorder:
    """One for the process."""

    def __init__(self, instruments: Instruments) -> None:
        self._log = logger("controller")
        self._limited = LimitedLog(self._log, instruments)
        self._instruments = instruments
        self._material_refused = instruments.counter(names.TLS_MATERIAL_REFUSED).labels(LISTENER)
        self._failures = instruments.counter(names.HANDSHAKE_FAILURES)
        self._reviews = instruments.counter(names.ACCESS_REVIEWS)

    def show_certificate(self, seconds_left: Callable[[], float]) -> None:
        """Have the end of the serving certificate worked out when Prometheus asks."""
        gauge = self._instruments.gauge(names.SERVING_CERTIFICATE_EXPIRY).labels(LISTENER)
        gauge.set_function(seconds_left)

    def reviewed(self, question: str, result: str) -> None:
        """A question to the API server, about a token or a right."""
        self._reviews.labels(question, result).inc()

    def certificate_changed(self, error: str | None) -> None:
        """The certificate files have changed and were taken, or refused with `error`."""
        if error is None:
            self._log.info(Event.LISTENER_OPEN, listener=LISTENER, certificate="renewed")
        else:
            self._material_refused.inc()
            self._log.error(Event.TLS_MATERIAL_REFUSED, listener=LISTENER, reason=error)

    def not_served(self, listener: str, reason: str) -> None:
        """A handshake without material to serve with; called on gRPC's threads."""
        self._failures.labels(listener, "no-material").inc()
        self._limited.warning(
            Event.TLS_MATERIAL_REFUSED, key=(listener, reason), listener=listener, reason=reason
        )

    def no_authority(self, path: Path, error: Exception) -> None:
        """The file of the authorities that people verify by cannot be read."""
        reason = f"access.tls.ca: {path}: {type(error).__name__}"
        self._limited.error(
            Event.TLS_MATERIAL_REFUSED, key=reason, listener=LISTENER, reason=reason
        )
