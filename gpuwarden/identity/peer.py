"""What TLS established about the peer of a gRPC call, read from gRPC's `auth_context`.

`x509_pem_cert` is the peer's leaf, `x509_pem_cert_chain` whatever it sent after it.
Parsing only: bounded, never raises, decides nothing. What cannot be read is as if it
had not been sent, which the verifier refuses (no certificate, or an invalid chain).
"""

import ssl
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpuwarden.identity.chain import MAX_CERTIFICATE_BYTES, MAX_INTERMEDIATES

_BEGIN = "-----BEGIN CERTIFICATE-----"
_END = "-----END CERTIFICATE-----"
_MAX_SHOWN_CERTIFICATES = 1 + MAX_INTERMEDIATES + 1
"""One more than is accepted, so that the verifier sees that there were too many."""
_MAX_PEM_BYTES = _MAX_SHOWN_CERTIFICATES * MAX_CERTIFICATE_BYTES * 2
_MAX_URIS = 8
_MAX_URI_BYTES = 2048


@dataclass(frozen=True, slots=True)
class PeerFacts:
    """The TLS facts of one connection.

    `chain` is DER, leaf first, empty without a client certificate; `uri_sans` are the
    URI names as TLS read them from the leaf, in its order.
    """

    chain: tuple[bytes, ...]
    uri_sans: tuple[str, ...]
    resumed: bool
    tls_version: str

    @property
    def leaf_der(self) -> bytes | None:
        """The peer's leaf certificate, or None without one."""
        return self.chain[0] if self.chain else None


def peer_facts(auth_context: Mapping[str, Iterable[bytes]]) -> PeerFacts:
    """Read the facts; a session counts as resumed unless TLS reports that it was not."""
    leaf = _certificates(auth_context.get("x509_pem_cert", ()))[:1]
    above = _certificates(auth_context.get("x509_pem_cert_chain", ()))
    # Some versions of gRPC put the leaf into the chain as well.
    above = above[1:] if above[:1] == leaf else above
    chain = leaf + above[: _MAX_SHOWN_CERTIFICATES - 1] if leaf else ()
    reused = tuple(auth_context.get("ssl_session_reused", ()))
    return PeerFacts(
        chain=chain,
        uri_sans=_uris(auth_context.get("peer_uri", ())),
        resumed=reused != (b"false",),
        tls_version=b" ".join(auth_context.get("ssl_tls_version", ()))[:32].decode(
            "ascii", "replace"
        ),
    )


def _certificates(values: Iterable[bytes]) -> tuple[bytes, ...]:
    text = b"".join(values)[:_MAX_PEM_BYTES].decode("ascii", "replace")
    try:
        return tuple(_blocks(text))
    except ValueError:
        return ()


def _blocks(text: str) -> Iterator[bytes]:
    for _ in range(_MAX_SHOWN_CERTIFICATES):
        _, _, behind = text.partition(_BEGIN)
        body, end, text = behind.partition(_END)
        if not end:
            return
        yield ssl.PEM_cert_to_DER_cert(f"{_BEGIN}{body}{_END}")


def _uris(values: Iterable[bytes]) -> tuple[str, ...]:
    return tuple(value[: _MAX_URI_BYTES + 1].decode("utf-8", "replace") for value in values)[
        : _MAX_URIS + 1
    ]
