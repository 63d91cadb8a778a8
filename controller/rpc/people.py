"""Authenticates people with an identity of the cluster: by bearer token, or by client certificate.

Each has a listener of its own, because gRPC for Python either demands a client certificate of
everybody or asks nobody for one. A token comes in the call's metadata, inside of TLS, and is in no
text of this module. Must not decide which rights a method needs.
"""

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from cryptography import x509

from controller.access import Caller, Person, TokenReviewUnavailableError
from controller.people.identity import person_of_certificate
from controller.people.reviews import TokenReviews
from controller.people.roles import Roles, named
from controller.rpc.calls import Context, stream_facts
from controller.rpc.interceptor import Authenticate
from gpuwarden.reasons import ReasonCode, Refusal

MAX_TOKEN_BYTES: Final = 16 << 10
_KEY: Final = "authorization"
_TOKEN: Final = re.compile(r"[Bb]earer +([A-Za-z0-9._~+/=-]+)")
"""RFC 6750, 2.1."""
_EXPECTED: Final = Refusal(
    ReasonCode.TOKEN_INVALID,
    f"authorization: expected one bearer token of at most {MAX_TOKEN_BYTES} bytes",
)
_UNKNOWN: Final = Refusal(
    ReasonCode.TOKEN_INVALID, "the API server does not accept the token, or it names nobody"
)


def token_person(reviews: TokenReviews[Person], roles: Roles) -> Authenticate:
    """For the listener that asks for no certificate: whose token the API server says it is."""

    async def authenticate(context: Context, method: str, _now: datetime) -> Caller | Refusal:
        token = _token_in(context)
        if isinstance(token, Refusal):
            return token
        try:
            person = await reviews.review(token, context.peer())  # a port-forward has its own
        except TokenReviewUnavailableError as error:
            return Refusal(ReasonCode.TOKEN_REVIEW_UNAVAILABLE, str(error))
        if person is None:
            return _UNKNOWN
        return await _caller(person, None, method, roles)

    return authenticate


def certificate_person(
    client_cas: Callable[[], Sequence[x509.Certificate]], roles: Roles
) -> Authenticate:
    """For the listener that demands one: who the cluster's client CA says it is, at each call."""

    async def authenticate(context: Context, method: str, now: datetime) -> Caller | Refusal:
        facts = stream_facts(context.auth_context())
        if facts.resumed:
            text = "the TLS session was resumed, so its certificate was not looked at"
            return Refusal(ReasonCode.TLS_RESUMED, text)
        found = person_of_certificate(facts.chain, client_cas(), now)
        if isinstance(found, Refusal):
            return found
        person, ends = found
        return await _caller(person, ends, method, roles)

    return authenticate


async def _caller(
    person: Person, ends: datetime | None, method: str, roles: Roles
) -> Caller | Refusal:
    kind = await roles.kind_for(person, method)
    if isinstance(kind, Refusal):
        return kind
    return Caller(kind, named(person), ends, person)


def _token_in(context: Context) -> str | Refusal:
    values = [value for key, value in context.invocation_metadata() or () if key == _KEY]
    if len(values) != 1 or not isinstance(values[0], str):
        return _EXPECTED
    found = _TOKEN.fullmatch(values[0])
    if found is None or len(found[1]) > MAX_TOKEN_BYTES:
        return _EXPECTED
    return found[1]
