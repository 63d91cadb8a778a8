"""Says who looks at the API or the console, and what they may see.

Callers of the API as ever, and beside them people: by a token of their own, in a header or in the
console's cookie, by the word of a proxy that has an SVID of its own, or, where that is allowed,
anybody on this machine. Must not decide what is shown.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from cryptography import x509

from controller.access import Caller, CallerKind, Person
from controller.people.identity import person_of
from controller.people.reviews import TokenReviews
from controller.people.roles import Roles, named
from controller.verifier import session
from controller.web.api.authentication import Authentication, peer_of
from controller.web.api.operations import ApiCaller
from gpuwarden.reasons import ReasonCode, Refusal

COOKIE: Final = "__Host-gpuwarden"
"""A browser takes this name over TLS alone, and sends it to no other host."""
MAX_TOKEN: Final = 3800
"""Browsers keep 4096 bytes of name, value and attributes."""
TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]+")
USER_HEADER: Final = "X-Remote-User"
GROUP_HEADER: Final = "X-Remote-Group"
ON_THIS_MACHINE: Final = "anybody on this machine"
_READ: Final = "/gpuwarden.wire.v1.PlacementService/ListReservations"
_ACT: Final = "/gpuwarden.wire.v1.OperatorService/QuarantineNode"
_READERS: Final = frozenset({CallerKind.INSPECTOR, CallerKind.OPERATOR})
_LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Viewer:
    """Somebody who looks, and what they are."""

    caller: Caller
    key: str
    """Under which their requests are counted."""
    operates: bool
    """Whether they may accept, quarantine and release."""
    has_serials: bool

    @property
    def name(self) -> str:
        """How the page and the audit log call them."""
        return self.caller.name

    @property
    def reads(self) -> bool:
        """Whether they may see the whole fleet; others see pods of namespaces that they name."""
        return self.caller.kind in _READERS

    def as_caller(self) -> ApiCaller:
        """As a caller of the operations that only read."""
        return ApiCaller(self.name, self.reads, operates=False, has_role=self.has_serials)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeopleRules:
    """How people come who are no callers of the API."""

    reviews: TokenReviews[Person] | None = None
    """None without a Kubernetes API: then no person is known."""
    roles: Roles | None = None
    proxies: Collection[str] = ()
    """SPIFFE IDs that may name a user."""
    cookie: bool = False
    loopback: bool = False
    """Whether anybody on this machine may look without a login."""


class Viewers:
    """Used from one event loop."""

    def __init__(
        self,
        callers: Authentication,
        people: PeopleRules,
        *,
        roots: Callable[[], Sequence[x509.Certificate]],
        wall: Callable[[], datetime],
        trust_domain: str,
    ) -> None:
        self._callers = callers
        self._people = people
        self._roots = roots
        self._wall = wall
        self._trust_domain = trust_domain

    async def view(self, request: web.Request) -> Viewer | Refusal:
        """Find out who looks, or why nobody does; raises TokenReviewUnavailableError."""
        proxied = await self.proxied(request)
        if proxied is not None:
            return proxied
        found = await self._callers.authenticate(request)
        if isinstance(found, ApiCaller):
            return _of_caller(found)
        return await self.otherwise(request) or found

    async def proxied(self, request: web.Request) -> Viewer | Refusal | None:
        """Whom a proxy names; None where no proxy speaks."""
        found = self._named_by_proxy(request)
        return await self._person(found) if isinstance(found, Person) else found

    async def otherwise(self, request: web.Request) -> Viewer | Refusal | None:
        """Who is no caller of the API; None where nothing says who it is."""
        token = bearer(request) or (request.cookies.get(COOKIE, "") if self._people.cookie else "")
        if token:
            return await self.of_token(token, request.remote or "")
        if "Authorization" in request.headers or not self._people.loopback:
            return None
        if not _is_on_this_machine(request):
            return None
        caller = Caller(CallerKind.INSPECTOR, ON_THIS_MACHINE, None)
        return Viewer(caller, ON_THIS_MACHINE, operates=False, has_serials=True)

    async def of_token(self, token: str, address: str) -> Viewer | Refusal | None:
        """The person whose token it is; None where it is nobody's.

        Raises TokenReviewUnavailableError.
        """
        reviews = self._people.reviews
        if reviews is None or not TOKEN.fullmatch(token):
            return None
        person = await reviews.review(token, address)
        return None if person is None else await self._person(person)

    async def about_pods(self, viewer: Viewer, namespace: str, name: str = "") -> Refusal | None:
        """What keeps a viewer from the pods of a namespace, or from one of them."""
        if viewer.reads:
            return None
        if self._people.roles is None:
            return Refusal(ReasonCode.ROLE_DENIED, "no person is known here")
        return await self._people.roles.about_pods(viewer.caller, namespace, name)

    async def _person(self, person: Person) -> Viewer | Refusal:
        roles = self._people.roles
        if roles is None:
            return Refusal(ReasonCode.ROLE_DENIED, "no person is known here")
        kind = await roles.kind_for(person, _READ)
        if isinstance(kind, Refusal):
            return kind
        acts = await roles.kind_for(person, _ACT)
        if isinstance(acts, Refusal) and acts.code is not ReasonCode.ROLE_DENIED:
            return acts
        has_role = kind in _READERS
        return Viewer(
            Caller(kind, named(person), None, person),
            named(person),
            operates=not isinstance(acts, Refusal),
            has_serials=has_role,
        )

    def _named_by_proxy(self, request: web.Request) -> Person | Refusal | None:
        facts = peer_of(request.transport) if self._people.proxies else None
        if facts is None or session.check_tls(facts) is not None:
            return None
        identity = session.peer_identity(facts, self._trust_domain)
        if isinstance(identity, Refusal) or str(identity) not in self._people.proxies:
            return None
        proof = session.check_chain(facts.chain, self._roots(), self._wall())
        return proof if isinstance(proof, Refusal) else _named_in(request)


def _named_in(request: web.Request) -> Person | Refusal:
    names = request.headers.getall(USER_HEADER, [])
    if len(names) != 1:
        text = f"{USER_HEADER}: the proxy sent {len(names)}, expected one"
        return Refusal(ReasonCode.TOKEN_INVALID, text)
    found = person_of(names[0], request.headers.getall(GROUP_HEADER, []))
    if isinstance(found, str):
        return Refusal(ReasonCode.TOKEN_INVALID, f"{USER_HEADER}: {found}")
    return found


def bearer(request: web.Request) -> str:
    """The one bearer token of the header; empty where there is none."""
    sent = request.headers.getall("Authorization", [])
    scheme, _, token = sent[0].partition(" ") if len(sent) == 1 else ("", "", "")
    return token.strip() if scheme.lower() == "bearer" else ""


def _of_caller(found: ApiCaller) -> Viewer | Refusal:
    if not found.reads:
        return Refusal(ReasonCode.ROLE_DENIED, "the caller is not a reader")
    kind = CallerKind.OPERATOR if found.operates else CallerKind.INSPECTOR
    caller = Caller(kind, found.name, None)
    return Viewer(caller, found.key, operates=found.operates, has_serials=found.has_role)


def _is_on_this_machine(request: web.Request) -> bool:
    """By its address, and by the name that it asked for: a page of elsewhere may not look in."""
    try:
        is_local = ip_address(request.remote or "").is_loopback
        host = urlsplit(f"//{request.host}").hostname
    except ValueError:
        return False
    return is_local and host in _LOCAL_NAMES
