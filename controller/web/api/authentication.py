"""Says who calls the HTTP API: by a bearer token where one is sent, else by the client's SVID.

Must not decide what a caller may do.
"""

import ssl
from asyncio import BaseTransport
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Final, Protocol, cast

from aiohttp import web
from cryptography import x509

from controller.access import TokenIdentity, caller_of
from controller.people.reviews import TokenReviews
from controller.verifier.context import StreamFacts
from controller.web.api.operations import ApiCaller, svid_caller, token_caller
from gpuwarden.identity.chain import ChainError, parse_chain, uri_sans
from gpuwarden.identity.spiffe_id import SpiffeIdError
from gpuwarden.reasons import ReasonCode, Refusal

# --- SVIDs


class _Certificate(Protocol):
    """`_ssl.Certificate`."""

    def public_bytes(self, encoding: int, /) -> bytes:
        """Encoded as `_ssl.ENCODING_DER` (2) or PEM."""


_DER = 2


def peer_of(transport: BaseTransport | None) -> StreamFacts | None:
    """The certificates that a client has shown in its handshake; None without TLS or any.

    What the handshake has verified is verified again at each request, against the roots of then.
    Never raises.
    """
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


# --- callers

_BEARER: Final = "bearer"


class Authentication:
    """Used from one event loop."""

    def __init__(
        self,
        *,
        reviews: TokenReviews[TokenIdentity] | None,
        roots: Callable[[], Sequence[x509.Certificate]],
        wall: Callable[[], datetime],
        trust_domain: str,
        path_prefix: str,
        readers: Collection[str],
    ) -> None:
        """`reviews` is None without a Kubernetes API: then no token counts."""
        self._reviews = reviews
        self._roots = roots
        self._wall = wall
        self._trust_domain = trust_domain
        self._path_prefix = path_prefix
        self._readers = readers

    async def authenticate(self, request: web.Request) -> ApiCaller | Refusal:
        """Find out who sent the request, or why it does not count.

        Raises TokenReviewUnavailableError.
        """
        sent = request.headers.getall("Authorization", [])
        if not sent:
            return self._by_certificate(request)
        scheme, _, token = sent[0].partition(" ")
        token = token.strip()
        if len(sent) > 1 or scheme.lower() != _BEARER or not token or not token.isascii():
            return Refusal(ReasonCode.TOKEN_INVALID, "Authorization: expected one Bearer token")
        if self._reviews is None:
            return Refusal(ReasonCode.TOKEN_INVALID, "no token counts here")
        found = await self._reviews.review(token, request.remote or "")
        if found is None:
            return Refusal(
                ReasonCode.TOKEN_INVALID, "the token does not count for the audience of this API"
            )
        return token_caller(found, self._readers)

    def _by_certificate(self, request: web.Request) -> ApiCaller | Refusal:
        facts = peer_of(request.transport)
        if facts is None:
            return Refusal(ReasonCode.TOKEN_INVALID, "neither a token nor an SVID was shown")
        found = caller_of(
            facts,
            self._roots(),
            trust_domain=self._trust_domain,
            path_prefix=self._path_prefix,
            at=self._wall(),
        )
        return found if isinstance(found, Refusal) else svid_caller(found)
