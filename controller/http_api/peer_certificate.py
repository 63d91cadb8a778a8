"""The certificates that a client has shown in its TLS handshake, as judging callers needs them.

What the handshake has verified is verified again at each request, against the roots of then.
Never raises, decides nothing.
"""

import ssl
from asyncio import BaseTransport
from typing import Protocol, cast

from controller.verifier.context import StreamFacts
from gpuwarden.identity.chain import ChainError, parse_chain, uri_sans
from gpuwarden.identity.spiffe_id import SpiffeIdError


class _Certificate(Protocol):
    """`_ssl.Certificate`."""

    def public_bytes(self, encoding: int, /) -> bytes:
        """Encoded as `_ssl.ENCODING_DER` (2) or PEM."""


_DER = 2


def peer_of(transport: BaseTransport | None) -> StreamFacts | None:
    """What the client has proven; None without TLS or where it showed nothing."""
    connection = None if transport is None else transport.get_extra_info("ssl_object")
    if not isinstance(connection, ssl.SSLObject):
        return None
    chain = _chain(connection)
    if not chain:
        return None
    names = _names(chain)
    return StreamFacts(
        chain=chain,
        uri_sans=names,
        peer_spiffe_id=names[0] if len(names) == 1 else None,
        resumed=bool(connection.session_reused),
    )


def _chain(connection: ssl.SSLObject) -> tuple[bytes, ...]:
    """Leaf first, as sent. Public since Python 3.13, below it there since 3.10."""
    if connection.getpeercert(binary_form=True) is None:
        return ()  # the chain would have None in it
    public = getattr(connection, "get_unverified_chain", None)
    if public is not None:
        return tuple(public() or ())
    inner = connection._sslobj  # type: ignore[attr-defined]  # noqa: SLF001 -- see above
    shown = cast("list[_Certificate]", inner.get_unverified_chain() or [])
    return tuple(x.public_bytes(_DER) for x in shown)


def _names(chain: tuple[bytes, ...]) -> tuple[str, ...]:
    try:
        return uri_sans(parse_chain(chain)[0])
    except (ChainError, SpiffeIdError):
        return ()
