"""Server TLS from certificate files that change while it serves.

New handshakes get the newest files; open connections keep what they have. Files that
do not fit together (a torn write, a wrong key) leave the old certificate in place and
are reported. Blocking file reads of a few kilobytes; no network, no clock.
"""

import hashlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

Roots = tuple[x509.Certificate, ...]


class TlsFilesError(Exception):
    """The files cannot serve; names them and says why, never what is in them."""


class Reload(Enum):
    """What a look at the files found."""

    UNCHANGED = auto()
    CHANGED = auto()
    REFUSED = auto()


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: certificate chain, private key, and the CAs whose clients may connect."""

    certificate: Path
    private_key: Path = field(repr=False)
    client_ca: Path | None = None
    """None: clients are not asked for a certificate (loopback only)."""


class ServingTls:
    """The context to listen with. Make it once; call `reload` now and then."""

    def __init__(self, files: TlsFiles, client_roots: Callable[[], Roots] | None = None) -> None:
        """Load the files; raises TlsFilesError when they cannot serve now.

        With `client_roots` a client may show a certificate: each handshake has those of its
        moment. In the place of `client_ca`, which wants one of every client.
        """
        self._files = files
        self._client_roots = client_roots
        self._roots = None if client_roots is None else client_roots()
        self._digest = _digest(files)
        self._current = _context(files, self._roots)
        self.last_error: str | None = None
        """Why the newest files were refused; None while the newest are in use."""
        self.context = self._current
        self.context.sni_callback = self._choose

    def reload(self) -> Reload:
        """Take the files if they are new and fit together.

        Files that change between the digest and the load are taken as loaded, and once
        more at the next call.
        """
        try:
            digest = _digest(self._files)
            if digest == self._digest:
                self.last_error = None
                return Reload.UNCHANGED
            fresh = _context(self._files, self._roots)
        except TlsFilesError as error:
            self.last_error = str(error)
            return Reload.REFUSED
        self._digest, self._current, self.last_error = digest, fresh, None
        return Reload.CHANGED

    def _choose(
        self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _old: ssl.SSLContext
    ) -> None:
        """Swap certificate and trust store of one handshake (called with or without SNI)."""
        self._follow_roots()
        connection.context = self._current

    def _follow_roots(self) -> None:
        """Old roots stay while the files cannot be read: who is asked for a name checks again."""
        roots = None if self._client_roots is None else self._client_roots()
        if roots == self._roots:
            return
        try:
            self._current = _context(self._files, roots)
        except TlsFilesError as error:
            self.last_error = str(error)
        else:
            self._roots = roots


def _context(files: TlsFiles, roots: Roots | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # a resumed session would skip the check against the CAs of today
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(files.certificate, files.private_key)
        if files.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cafile=files.client_ca)
        elif roots is not None:
            context.verify_mode = ssl.CERT_OPTIONAL
            if roots:
                context.load_verify_locations(
                    cadata=b"".join(x.public_bytes(Encoding.DER) for x in roots)
                )
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or "unreadable"
        raise TlsFilesError(
            f"{files.certificate}, its key or its client CA: {reason},"
            " expected PEM files that fit together"
        ) from None
    return context


def _digest(files: TlsFiles) -> bytes:
    digest = hashlib.sha256()
    for path in (files.certificate, files.private_key, files.client_ca):
        if path is not None:
            try:
                content = path.read_bytes()
            except OSError as error:
                raise TlsFilesError(f"{path}: {error.strerror}") from None
            digest.update(len(content).to_bytes(8, "big") + content)
    return digest.digest()
