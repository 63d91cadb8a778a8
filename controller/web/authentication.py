"""Says who calls the HTTP API: by a bearer token where one is sent, else by the client's SVID.

Must not decide what a caller may do.
"""

import asyncio
import hashlib
import ssl
from asyncio import BaseTransport
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol, cast

from aiohttp import web
from cryptography import x509

from controller.access import TokenIdentity, TokenReviewUnavailableError, caller_of
from controller.verifier.context import StreamFacts
from controller.web.operations import ApiCaller, svid_caller, token_caller
from gpuwarden.identity.chain import ChainError, parse_chain, uri_sans
from gpuwarden.identity.spiffe_id import SpiffeIdError
from gpuwarden.moment import NS_PER_S
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


# --- tokens


class TokenReviewer(Protocol):
    """Asks the API server; what does so is beside this layer."""

    async def review(self, token: str) -> TokenIdentity | None:
        """Ask whose token it is; None where it counts for nothing here.

        Raises TokenReviewUnavailableError.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewLimits:
    """Bounds of the memory, and of the questions under way."""

    kept: int = 4096
    """Of accepted tokens, and of refused ones, each."""
    accepted_ns: int = 10 * NS_PER_S
    """For so long a withdrawn token may still be taken for good."""
    refused_ns: int = 5 * NS_PER_S
    at_once: int = 16
    at_once_from_one_address: int = 4


@dataclass(frozen=True, slots=True)
class _Known:
    found: TokenIdentity | None
    until_ns: int


class TokenReviews:
    """What the API server says about tokens, kept for a short while.

    No token is kept: an answer is known by the token's digest. Bounded in number, in time and in
    questions under way, so that callers with invented tokens can neither fill the memory nor keep
    the API server busy, push out what is known of good tokens, or take from one address what all
    others need. One per process; used from one event loop.
    """

    def __init__(
        self,
        reviewer: TokenReviewer,
        *,
        boottime_ns: Callable[[], int],
        reviewed: Callable[[str], None],
        limits: ReviewLimits = ReviewLimits(),
    ) -> None:
        """`reviewed` takes accepted, refused, kept, busy or failed, once per question."""
        self._reviewer = reviewer
        self._boottime_ns = boottime_ns
        self._reviewed = reviewed
        self._limits = limits
        self._accepted: dict[bytes, _Known] = {}
        self._refused: dict[bytes, _Known] = {}
        self._running: dict[bytes, asyncio.Task[TokenIdentity | None]] = {}
        self._asking: Counter[str] = Counter()

    async def review(self, token: str, address: str) -> TokenIdentity | None:
        """Find out whose token came from `address`; raises TokenReviewUnavailableError."""
        digest = hashlib.sha256(token.encode()).digest()
        known = self._accepted.get(digest) or self._refused.get(digest)
        if known is not None and self._boottime_ns() < known.until_ns:
            self._reviewed("kept")
            return known.found
        task = self._running.get(digest)
        if task is None:
            if self._is_busy(address):
                self._reviewed("busy")
                raise TokenReviewUnavailableError("too many tokens are being reviewed")
            task = asyncio.create_task(self._ask(digest, token))
            self._running[digest] = task
            self._asking[address] += 1
            task.add_done_callback(lambda done: self._forget(digest, address, done))
        return await asyncio.shield(task)

    def _is_busy(self, address: str) -> bool:
        return (
            len(self._running) >= self._limits.at_once
            or self._asking[address] >= self._limits.at_once_from_one_address
        )

    async def _ask(self, digest: bytes, token: str) -> TokenIdentity | None:
        asked_ns = self._boottime_ns()
        try:
            found = await self._reviewer.review(token)
        except TokenReviewUnavailableError:
            self._reviewed("failed")
            raise
        self._reviewed("refused" if found is None else "accepted")
        self._accepted.pop(digest, None)
        self._refused.pop(digest, None)
        kept = self._refused if found is None else self._accepted
        while len(kept) >= self._limits.kept:
            del kept[next(iter(kept))]
        lasts_ns = self._limits.refused_ns if found is None else self._limits.accepted_ns
        kept[digest] = _Known(found, asked_ns + lasts_ns)
        return found

    def _forget(
        self, digest: bytes, address: str, task: asyncio.Task[TokenIdentity | None]
    ) -> None:
        del self._running[digest]
        self._asking[address] -= 1
        if not self._asking[address]:
            del self._asking[address]
        if not task.cancelled():
            task.exception()  # read, because the caller may be gone


# --- callers

_BEARER: Final = "bearer"


class Authentication:
    """Used from one event loop."""

    def __init__(
        self,
        *,
        reviews: TokenReviews | None,
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
