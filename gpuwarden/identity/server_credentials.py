"""TLS credentials of a gRPC server that follow this process's SVID, or files, at each handshake.

Facts about gRPC that this rests on, each held by a test: the fetcher runs once per
handshake on gRPC's own threads, one at a time; gRPC keeps its previous configuration,
without a word, when it cannot use a new one or the fetcher raises. So the fetcher
checks what it returns, and where there is no good SVID it returns credentials that
nobody can complete a handshake with.

A configuration replaces the one before under gRPC's lock, but other handshakes may be
about to begin with that one outside of it, and then the process ends (grpc/grpc#36693).
So a configuration is handed over only when it differs, None in every other handshake,
and a moment after the fetcher was entered: new handshakes wait for it, those on their
way have begun by then. Between two changes clients may resume TLS sessions, which skips
the check of their certificates: whoever authenticates a call must refuse resumed ones
(`PeerFacts.resumed`).

One port per credentials. Nothing here touches an event loop.
"""

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gpuwarden.identity.chain import ChainError, ChainProof, verify_chain
from gpuwarden.identity.svid import PrivateKey, Svid, SvidSource

OnError = Callable[[str], None]
"""Called once per handshake that had no good SVID; called on foreign threads, must not wait."""

OnOffer = Callable[[], None]
"""Called once per handshake in which the SVID is offered; otherwise as `OnError`."""

CALM_S: Final = 0.1
"""From entering the fetcher to a change: a thousand times what a handshake needs to begin."""

_Configuration = grpc.ServerCertificateConfiguration


def server_credentials(
    source: SvidSource,
    on_error: OnError,
    now: Callable[[], datetime] | None = None,
    *,
    on_offer: OnOffer = lambda: None,
) -> grpc.ServerCredentials:
    """Credentials that present `source`'s SVID and demand a client certificate from its roots.

    The roots are those of the own trust domain alone. Works before there is an SVID:
    until then every handshake fails. Which client it is, is not decided here.
    """
    fetcher = _Fetcher(source, on_error, now or _utc_now, on_offer)
    return grpc.dynamic_ssl_server_credentials(
        fetcher.closed,
        fetcher,  # type: ignore[arg-type] # the stubs do not know that None is allowed
        require_client_authentication=True,
    )


@dataclass(frozen=True, slots=True)
class ServerPem:
    """What a server shows, and whom it asks for a certificate; PEM."""

    chain: bytes
    private_key: bytes = field(repr=False)
    client_roots: bytes | None = None
    """None: clients are not asked for a certificate."""


def pem_credentials(
    source: Callable[[], ServerPem | None],
    on_error: OnError,
    *,
    demands_certificates: bool,
    on_offer: OnOffer = lambda: None,
) -> grpc.ServerCredentials:
    """Credentials that present what `source` gives, and follow it.

    Every handshake fails while that is None. It is asked on gRPC's threads, must not wait, and must
    give material that fits together, the same object as long as nothing has changed.
    """
    fetcher = _PemFetcher(source, on_error, on_offer)
    return grpc.dynamic_ssl_server_credentials(
        fetcher.closed,
        fetcher,  # type: ignore[arg-type] # as above
        require_client_authentication=demands_certificates,
    )


class _HandshakeFetcher(ABC):
    """Gives gRPC the configuration for one handshake; what it is made of, its children know."""

    def __init__(
        self, on_error: OnError, on_offer: OnOffer, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._pause = pause
        self._on_error = on_error
        self._on_offer = on_offer
        self.closed = _closed_configuration()
        self._in_use = self.closed

    def __call__(self) -> _Configuration | None:
        wanted = self._wanted()
        if wanted is self._in_use:
            return None
        self._pause(CALM_S)
        self._in_use = wanted
        return wanted

    def _wanted(self) -> _Configuration:
        try:
            return self._configuration()
        except Exception as error:  # noqa: BLE001 - gRPC would silently keep the previous one
            self._report(f"{type(error).__name__}: {error}")
            return self.closed

    @abstractmethod
    def _configuration(self) -> _Configuration:
        """The one for now; reports and gives `closed` where there is nothing to serve with."""

    def _offer(self) -> None:
        with contextlib.suppress(Exception):
            self._on_offer()

    def _report(self, text: str) -> None:
        # There is nobody left to tell on gRPC's thread.
        with contextlib.suppress(Exception):
            self._on_error(text)


class _Fetcher(_HandshakeFetcher):
    """From an SVID."""

    def __init__(
        self,
        source: SvidSource,
        on_error: OnError,
        now: Callable[[], datetime],
        on_offer: OnOffer = lambda: None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(on_error, on_offer, pause)
        self._source = source
        self._now = now
        self._last: tuple[Svid | None, _Configuration] = (None, self.closed)
        self._proof: ChainProof | None = None

    def _configuration(self) -> _Configuration:
        svid = self._source.current()
        if svid is None:
            self._report(self._source.state())
            return self.closed
        known, configuration = self._last
        self._proof = _check(svid, self._now(), self._proof if known is svid else None)
        if known is not svid:
            configuration = _configuration_of(svid.private_key, svid.chain, svid.roots)
            self._last = (svid, configuration)
        self._offer()
        return configuration


class _PemFetcher(_HandshakeFetcher):
    """From PEM that others keep."""

    def __init__(
        self,
        source: Callable[[], ServerPem | None],
        on_error: OnError,
        on_offer: OnOffer,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(on_error, on_offer, pause)
        self._source = source
        self._last: tuple[ServerPem | None, _Configuration] = (None, self.closed)

    def _configuration(self) -> _Configuration:
        pem = self._source()
        if pem is None:
            self._report("there is nothing to verify clients with")
            return self.closed
        known, configuration = self._last
        if known != pem:
            configuration = grpc.ssl_server_certificate_configuration(
                [(pem.private_key, pem.chain)], root_certificates=pem.client_roots
            )
            self._last = (pem, configuration)
        self._offer()
        return configuration


def _check(svid: Svid, now: datetime, proof: ChainProof | None) -> ChainProof:
    """Raise for what gRPC would refuse in silence, or accept although no client should.

    `proof` is what this returned for the very same SVID before.
    """
    if proof is not None and proof.covers(proof.chain_der, svid.roots, now):
        return proof
    if svid.private_key.public_key() != svid.leaf.public_key():
        raise ValueError("private key does not belong to the leaf")
    try:
        return verify_chain([c.public_bytes(Encoding.DER) for c in svid.chain], svid.roots, now)
    except ChainError as error:
        raise ValueError(f"own SVID refused: {error}") from error


def _configuration_of(
    key: PrivateKey,
    chain: tuple[x509.Certificate, ...],
    roots: tuple[x509.Certificate, ...],
) -> _Configuration:
    key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    pair = (key_pem, _pem(chain))
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=_pem(roots))


def _pem(certificates: tuple[x509.Certificate, ...]) -> bytes:
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)


def _closed_configuration() -> _Configuration:
    """A key that no client trusts and a root whose key is forgotten: no handshake completes."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([])
    past = datetime.fromisoformat("2000-01-01T00:00:00+00:00")
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(past)
        .not_valid_after(past)
        .sign(key, SHA256())
    )
    return _configuration_of(key, (certificate,), (certificate,))


def _utc_now() -> datetime:
    return datetime.now(UTC)
