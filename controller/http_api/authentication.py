"""Says who calls: by a bearer token where one is sent, else by the client's SVID."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from aiohttp import web
from cryptography import x509

from controller.http_api.callers import ApiCaller, svid_caller, token_caller
from controller.http_api.peer_certificate import peer_of
from controller.http_api.token_reviews import TokenReviews
from controller.rpc.caller import caller_of
from gpuwarden.reasons import ReasonCode, Refusal

_BEARER: Final = "bearer"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthenticationPorts:
    """What is asked."""

    reviews: TokenReviews | None
    """None where there is no Kubernetes API: then no token counts."""
    roots: Callable[[], Sequence[x509.Certificate]]
    wall: Callable[[], datetime]
    trust_domain: str
    path_prefix: str
    readers: Collection[str]


class Authentication:
    """Used from one event loop."""

    def __init__(self, ports: AuthenticationPorts) -> None:
        self._ports = ports

    async def caller(self, request: web.Request) -> ApiCaller | Refusal:
        """Who sent the request, or why nobody did; raises TokenReviewUnavailableError."""
        sent = request.headers.getall("Authorization", [])
        if not sent:
            return self._by_certificate(request)
        scheme, _, token = sent[0].partition(" ")
        token = token.strip()
        if len(sent) > 1 or scheme.lower() != _BEARER or not token or not token.isascii():
            return Refusal(ReasonCode.TOKEN_INVALID, "Authorization: expected one Bearer token")
        if self._ports.reviews is None:
            return Refusal(ReasonCode.TOKEN_INVALID, "no token counts here")
        found = await self._ports.reviews.identity(token, request.remote or "")
        if found is None:
            return Refusal(ReasonCode.TOKEN_INVALID, "the token does not count for our audience")
        return token_caller(found, self._ports.readers)

    def _by_certificate(self, request: web.Request) -> ApiCaller | Refusal:
        facts = peer_of(request.transport)
        if facts is None:
            return Refusal(ReasonCode.TOKEN_INVALID, "neither a token nor an SVID was shown")
        found = caller_of(
            facts,
            self._ports.roots(),
            trust_domain=self._ports.trust_domain,
            path_prefix=self._ports.path_prefix,
            at=self._ports.wall(),
        )
        return found if isinstance(found, Refusal) else svid_caller(found)
