"""Why TLS handshakes with clients fail, in a few words, and what a listener keeps of them. Pure.

TLS tells little: an alert of the client, or OpenSSL's reason. Each is one of a few causes, so that
metrics stay small; the reason goes to the log.
"""

import math
import ssl
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final


class HandshakeFailure(StrEnum):
    """The causes; docs/troubleshooting.md says what to do about each."""

    NO_CERTIFICATE = "no-certificate"
    """The client showed none, and one is demanded."""
    BAD_CERTIFICATE = "bad-certificate"
    """The client's is of another authority, has ended, or is not for clients."""
    REFUSED = "refused-by-client"
    """The client did not accept the listener's certificate, or something else of it."""
    NOT_TLS = "not-tls"
    """The client does not speak TLS, for example plain HTTP."""
    VERSION = "version"
    """No common version or cipher; TLS 1.3 is demanded."""
    CLOSED = "closed"
    """The client hung up before the end, as probes of a port do."""
    TIMEOUT = "timeout"
    """The client did not finish in time."""
    GAVE_WAY = "gave-way"
    """There was no room for a newer connection."""
    OTHER = "other"


BY_CLIENTS_WITH_A_CAUSE: Final = frozenset(
    {
        HandshakeFailure.NO_CERTIFICATE,
        HandshakeFailure.BAD_CERTIFICATE,
        HandshakeFailure.REFUSED,
        HandshakeFailure.VERSION,
        HandshakeFailure.NOT_TLS,
    }
)
"""What a client meets that wants to be served; the others can be scanners and probes."""

_REASONS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": HandshakeFailure.NO_CERTIFICATE,
    "CERTIFICATE_VERIFY_FAILED": HandshakeFailure.BAD_CERTIFICATE,
    "HTTP_REQUEST": HandshakeFailure.NOT_TLS,
    "HTTPS_PROXY_REQUEST": HandshakeFailure.NOT_TLS,
    "WRONG_VERSION_NUMBER": HandshakeFailure.NOT_TLS,
    "PACKET_LENGTH_TOO_LONG": HandshakeFailure.NOT_TLS,
    "RECORD_LAYER_FAILURE": HandshakeFailure.NOT_TLS,
    "UNSUPPORTED_PROTOCOL": HandshakeFailure.VERSION,
    "VERSION_TOO_LOW": HandshakeFailure.VERSION,
    "NO_SHARED_CIPHER": HandshakeFailure.VERSION,
    "UNEXPECTED_EOF_WHILE_READING": HandshakeFailure.CLOSED,
}
_SLOW: Final = "taking longer"
"""How asyncio and uvloop say that the time of a handshake is over."""
_REASON_TEXT: Final = 200


def failure_of(error: BaseException | None) -> HandshakeFailure:
    """The cause behind an exception of a handshake; None: the connection ended without one."""
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "").upper().replace(" ", "_")
        if "_ALERT_" in reason:
            return HandshakeFailure.REFUSED
        return _REASONS.get(reason, HandshakeFailure.OTHER)
    if isinstance(error, TimeoutError) or (error is not None and _SLOW in str(error)):
        return HandshakeFailure.TIMEOUT
    if error is None or isinstance(error, ConnectionError | EOFError):
        return HandshakeFailure.CLOSED
    return HandshakeFailure.OTHER


def reason_of(error: BaseException | None) -> str:
    """What TLS says, for people."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")[:_REASON_TEXT]
    return "the connection ended" if error is None else str(error)[:_REASON_TEXT]


_REMEMBERED: Final = timedelta(days=1)
_MOST: Final = 64
_LATE: Final = timedelta(days=14)


@dataclass(frozen=True, slots=True)
class _Shown:
    ends: datetime
    at: datetime


class ClientCertificates:
    """The certificates that a listener's clients have shown, and when the first of them ends.

    By address and subject, so that a renewed one takes the place of the one before. One that was
    not shown for a day is forgotten once another is: its client is gone, or has a new one.
    """

    def __init__(self) -> None:
        self._shown: dict[tuple[str, str], _Shown] = {}

    def show(self, host: str, subject: str, ends: datetime, now: datetime) -> None:
        """A client at `host` has shown one."""
        self._shown.pop((host, subject), None)
        kept = [(who, it) for who, it in self._shown.items() if now - it.at < _REMEMBERED]
        self._shown = dict(kept[-(_MOST - 1) :])
        self._shown[host, subject] = _Shown(ends, now)

    @property
    def ends(self) -> datetime | None:
        """When the first of them ends; None before any was shown."""
        first = self._first()
        return None if first is None else first[1].ends

    def seconds_left(self, now: datetime) -> float:
        """Until the first of them ends; NaN before any was shown."""
        first = self._first()
        return math.nan if first is None else (first[1].ends - now).total_seconds()

    def warning(self, now: datetime) -> str | None:
        """What readiness says while one of them ends within two weeks."""
        first = self._first()
        if first is None or first[1].ends - now >= _LATE:
            return None
        (host, subject), shown = first
        return (
            f"the certificate that the client {host} shows ({subject}) ends at"
            f" {shown.ends:%Y-%m-%dT%H:%M:%SZ}; renew it, or nothing that it asks is answered then"
        )

    def _first(self) -> tuple[tuple[str, str], _Shown] | None:
        return min(self._shown.items(), key=lambda x: x[1].ends, default=None)


@dataclass(slots=True)
class HandshakeRecord:
    """What one listener remembers: whether anybody got in, and who did not."""

    has_accepted: bool = False
    refused: int = 0
    last: str = ""
    """Cause, address and reason of the last refusal."""

    def accept(self) -> None:
        """A handshake ended well."""
        self.has_accepted = True

    def refuse(self, cause: HandshakeFailure, peer: str, reason: str) -> None:
        """A handshake failed."""
        if cause in BY_CLIENTS_WITH_A_CAUSE:
            self.refused += 1
            self.last = f"{cause}, from {peer}: {reason}"

    def warning(self) -> str | None:
        """What readiness says while nobody got in and somebody was refused."""
        if self.has_accepted or not self.refused:
            return None
        return (
            f"TLS handshakes fail and none has succeeded yet ({self.refused} refused, the last:"
            f" {self.last}); docs/troubleshooting.md#tls-handshakes-fail"
        )
