"""Server TLS that follows its files, and never gives up a valid certificate for a worse one."""

import hashlib
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from controller.web.certificates import (
    ChainUnreadableError,
    ServingChain,
    fault_against,
    fault_of,
    fault_of_client_cas,
    read_serving_chain,
)

Roots = tuple[x509.Certificate, ...]

_FIT: Final = "expected PEM files that fit together"
_RESTART: Final = "the one in use stays until it ends, or until the controller is restarted"


class TlsFilesError(Exception):
    """The files cannot serve; names them and says why, never what is in them."""


class Reload(Enum):
    """What reading the files found."""

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
    may_come_later: bool = False
    """The files need not be there before the listener opens."""
    previous: "PreviousFiles | None" = None
    """Of the time before a change, for clients that know nothing else."""


@dataclass(frozen=True, slots=True)
class PreviousFiles:
    """Files for every client that does not ask for `name` (TLS server name), with its own CAs."""

    name: str
    files: TlsFiles


@dataclass(frozen=True, slots=True)
class _Material:
    """What the files held at one moment; what is checked is what is loaded."""

    chain: ServingChain
    certificate: bytes = field(repr=False)
    private_key: bytes = field(repr=False)
    client_cas: Roots
    """Empty where clients are not asked for a certificate of a CA from a file."""
    digest: bytes


class ServingTls:
    """Server TLS from certificate files that change while it serves.

    New handshakes get the newest files; open connections keep what they have. Files that do not
    fit together (a torn write, a wrong key) leave the old certificate in place and are reported.
    So does a certificate that no client would accept (ended, not valid yet, for another name,
    without its chain) for as long as the one in use is valid. Reads files of a few kilobytes,
    blocking. Make it once; call `reload` from time to time.
    """

    def __init__(
        self,
        files: TlsFiles,
        client_roots: Callable[[], Roots] | None = None,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        """Load the files; raises TlsFilesError when they cannot be loaded.

        With `client_roots` a client may show a certificate: each handshake has those of its
        moment. In the place of `client_ca`, which wants one of every client.
        """
        self._files = files
        self._client_roots = client_roots
        self._now = now or _utc_now
        self._roots = None if client_roots is None else client_roots()
        self._previous = (
            None if files.previous is None else ServingTls(files.previous.files, now=now)
        )
        self._material = _read(files)
        self._current = self._context(self._material, self._roots)
        self._error: str | None = None
        self.context = self._current
        self.context.sni_callback = self._choose

    @property
    def last_error(self) -> str | None:
        """Why the newest files were refused; None while the newest are in use."""
        before = None if self._previous is None else self._previous.last_error
        return self._error or before

    @property
    def ends(self) -> datetime:
        """When the first of the chains in use ends."""
        own = self._material.chain.ends
        return own if self._previous is None else min(own, self._previous.ends)

    @property
    def pem(self) -> tuple[bytes, bytes]:
        """The chain in use and its private key."""
        return self._material.certificate, self._material.private_key

    @property
    def certificates(self) -> str:
        """PEM of the chain in use."""
        chain = self._material.chain.certificates
        return b"".join(one.public_bytes(Encoding.PEM) for one in chain).decode()

    def seconds_left(self) -> float:
        """Until the first of the chains in use ends; below 0 after it."""
        return (self.ends - self._now()).total_seconds()

    def warning(self) -> str | None:
        """What somebody should know of a certificate in use or of the newest; None: nothing."""
        before = None if self._previous is None else self._previous.warning()
        return self._own_warning() or before

    def _own_warning(self) -> str | None:
        chain, now = self._material.chain, self._now()
        fault = fault_of(chain, now)
        if fault is not None:
            return f"the serving certificate {fault}"
        if self._error is not None:
            return f"new certificate files are not in use: {self._error}"
        if chain.is_late(now):
            left = timedelta(seconds=int((chain.ends - now).total_seconds()))
            return f"the serving certificate ends in {left} and was not renewed"
        return None

    def reload(self) -> Reload:
        """Take the files if they are new, fit together and serve no worse than those in use."""
        found = {self._reload()} | ({self._previous.reload()} if self._previous else set())
        return next(x for x in (Reload.REFUSED, Reload.CHANGED, Reload.UNCHANGED) if x in found)

    def _reload(self) -> Reload:
        try:
            fresh = _read(self._files)
            if fresh.digest == self._material.digest:
                self._error = None
                return Reload.UNCHANGED
            self._demand_no_worse(fresh)
            context = self._context(fresh, self._roots)
        except TlsFilesError as error:
            self._error = str(error)
            return Reload.REFUSED
        self._material, self._current, self._error = fresh, context, None
        return Reload.CHANGED

    def _demand_no_worse(self, fresh: _Material) -> None:
        """Raises TlsFilesError where what is in use can serve and what is new perhaps cannot."""
        now, in_use = self._now(), self._material
        if fault_of(in_use.chain, now) is None:
            fault = fault_of(fresh.chain, now) or fault_against(
                fresh.chain, in_use.chain, fresh.client_cas
            )
            if fault is not None:
                raise TlsFilesError(f"{self._files.certificate} {fault}; {_RESTART}")
        if fresh.client_cas and fault_of_client_cas(in_use.client_cas, now) is None:
            fault = fault_of_client_cas(fresh.client_cas, now)
            if fault is not None:
                raise TlsFilesError(f"{self._files.client_ca}: {fault}; those in use stay")

    def _choose(
        self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _old: ssl.SSLContext
    ) -> None:
        """Swap certificate and trust store of one handshake (called with or without SNI)."""
        self._follow_roots()
        previous = self._files.previous
        if self._previous is None or previous is None or name == previous.name:
            connection.context = self._current
        else:
            connection.context = self._previous._current  # noqa: SLF001 - of the same class

    def _follow_roots(self) -> None:
        """Trust the clients of now; the certificate stays what `reload` has taken."""
        roots = None if self._client_roots is None else self._client_roots()
        if roots != self._roots:
            self._current = self._context(self._material, roots)
            self._roots = roots

    def _context(self, material: _Material, roots: Roots | None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0  # a resumed session would skip the check against the CAs of today
        context.set_alpn_protocols(["http/1.1"])
        try:
            _load(context, material)
            if material.client_cas:
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_verify_locations(cadata=_der(material.client_cas))
            elif roots is not None:
                context.verify_mode = ssl.CERT_OPTIONAL
                if roots:
                    context.load_verify_locations(cadata=_der(roots))
        except (OSError, ValueError) as error:
            raise _unfit(self._files, error) from None
        return context


def _read(files: TlsFiles) -> _Material:
    certificate, private_key = _bytes_of(files.certificate), _bytes_of(files.private_key)
    client_ca = None if files.client_ca is None else _bytes_of(files.client_ca)
    digest = hashlib.sha256()
    for content in (certificate, private_key, client_ca or b""):
        digest.update(len(content).to_bytes(8, "big") + content)
    try:
        chain = read_serving_chain(certificate)
        cas = () if client_ca is None else read_serving_chain(client_ca).certificates
    except ChainUnreadableError as error:
        raise _unfit(files, error) from None
    return _Material(chain, certificate, private_key, cas, digest.digest())


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsFilesError(f"{path}: {error.strerror}") from None


def _load(context: ssl.SSLContext, material: _Material) -> None:
    """OpenSSL takes paths alone; memory has one, and nobody can change it in between."""
    certificate, private_key = _in_memory(material.certificate), _in_memory(material.private_key)
    try:
        context.load_cert_chain(
            f"/proc/self/fd/{certificate}",
            f"/proc/self/fd/{private_key}",
            password="",
        )
    finally:
        os.close(certificate)
        os.close(private_key)


def _der(certificates: Roots) -> bytes:
    return b"".join(one.public_bytes(Encoding.DER) for one in certificates)


def _in_memory(content: bytes) -> int:
    descriptor = os.memfd_create("tls", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as memory:
        memory.write(content)
    return descriptor


def _unfit(files: TlsFiles, error: Exception) -> TlsFilesError:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or "unreadable"
    return TlsFilesError(f"{files.certificate}, its key or its client CA: {reason}, {_FIT}")


def _utc_now() -> datetime:
    return datetime.now(UTC)
