"""Who calls on the listeners for people: one token in metadata, or a certificate of the cluster."""

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from cryptography import x509

from controller.access import Caller, CallerKind, Person, TokenReviewUnavailableError
from controller.people.reviews import AccessReviews, TokenReviews
from controller.people.rights import INSPECT, Right
from controller.people.roles import Roles
from controller.rpc.people import MAX_TOKEN_BYTES, certificate_person, token_person
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.web_certificates import WebCa
from tests.fakes.clock import FakeClock

NODES = "/gpuwarden.wire.v1.FleetService/ListNodes"
FIT = "/gpuwarden.wire.v1.FleetService/FitPod"
QUARANTINE = "/gpuwarden.wire.v1.OperatorService/QuarantineNode"
JANE, JOE = Person("jane"), Person("joe")
TOKEN = "abc.DEF-_~+/="  # noqa: S105 -- of a fake


class Context:
    def __init__(self, *metadata: tuple[str, Any], **auth: list[bytes]) -> None:
        self._metadata = metadata
        self._auth = auth

    def invocation_metadata(self) -> Any:
        return self._metadata or None

    def auth_context(self) -> Any:
        return self._auth

    def peer(self) -> str:
        return "ipv4:127.0.0.1:41234"


class ApiServer:
    """Knows one token; jane may inspect, and so may the user of a certificate named jane."""

    def __init__(self) -> None:
        self.tokens = {TOKEN: JANE, "of-joe": JOE}
        self.asked: list[str] = []
        self.is_silent = False

    async def review(self, token: str) -> Person | None:
        self.asked.append(token)
        if self.is_silent:
            raise TokenReviewUnavailableError("the API server did not answer")
        return self.tokens.get(token)


class Rights:
    async def review(self, person: Person, right: Right) -> bool:
        return person.username == "jane" and right == INSPECT


def roles() -> Roles:
    return Roles(
        AccessReviews(Rights(), boottime_ns=FakeClock().boottime_ns, reviewed=lambda _: None)
    )


async def by_token(
    *metadata: tuple[str, Any], method: str = NODES, api: ApiServer | None = None
) -> Caller | Refusal:
    reviews: TokenReviews[Person] = TokenReviews(
        api or ApiServer(), boottime_ns=FakeClock().boottime_ns, reviewed=lambda _: None
    )
    context: Any = Context(*metadata)
    return await token_person(reviews, roles())(context, method, datetime.now(UTC))


def bearer(token: str) -> tuple[str, str]:
    return "authorization", f"Bearer {token}"


# --- tokens


async def test_each_connection_is_bounded_by_itself() -> None:
    """All come by port-forward, and so from one address."""
    asked: list[tuple[str, str]] = []

    class Reviews:
        async def review(self, token: str, address: str) -> Person:
            asked.append((token, address))
            return JANE

    reviews, context = cast("TokenReviews[Person]", Reviews()), cast("Any", Context(bearer(TOKEN)))
    await token_person(reviews, roles())(context, NODES, datetime.now(UTC))
    assert asked == [(TOKEN, "ipv4:127.0.0.1:41234")]


async def test_a_token_names_a_person_who_has_a_role() -> None:
    for given in (bearer(TOKEN), ("authorization", f"bearer  {TOKEN}")):
        found = await by_token(("user-agent", "x"), given)
        assert found == Caller(CallerKind.INSPECTOR, "user jane", None, JANE)


async def test_without_a_role_a_person_is_a_tenant_or_refused() -> None:
    found = await by_token(bearer("of-joe"), method=FIT)
    assert found == Caller(CallerKind.TENANT, "user joe", None, JOE)
    for method, token in ((NODES, "of-joe"), (QUARANTINE, TOKEN)):
        found = await by_token(bearer(token), method=method)
        assert isinstance(found, Refusal)
        assert found.code is ReasonCode.ROLE_DENIED


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", ""),),
        (bearer(TOKEN), bearer(TOKEN)),
        (("authorization", TOKEN),),
        (("authorization", f"Basic {TOKEN}"),),
        (("authorization", f"Bearer {TOKEN} {TOKEN}"),),
        (("authorization", f"Bearer {TOKEN}\n"),),
        (("authorization", f"Bearer {TOKEN}".encode()),),
        (bearer("x" * (MAX_TOKEN_BYTES + 1)),),
    ],
)
async def test_what_is_no_token_is_shown_to_nobody(metadata: tuple[tuple[str, Any], ...]) -> None:
    api = ApiServer()
    found = await by_token(*metadata, api=api)
    assert isinstance(found, Refusal)
    assert found.code is ReasonCode.TOKEN_INVALID
    assert TOKEN not in found.detail
    assert api.asked == []


async def test_the_longest_token_is_asked_about() -> None:
    api = ApiServer()
    await by_token(bearer("x" * MAX_TOKEN_BYTES), api=api)
    assert len(api.asked) == 1


async def test_a_token_of_nobody_and_an_api_server_that_does_not_answer() -> None:
    found = await by_token(bearer("invented"))
    assert isinstance(found, Refusal)
    assert (found.code, "invented" in found.detail) == (ReasonCode.TOKEN_INVALID, False)
    api = ApiServer()
    api.is_silent = True
    assert await by_token(bearer(TOKEN), api=api) == Refusal(
        ReasonCode.TOKEN_REVIEW_UNAVAILABLE, "the API server did not answer"
    )


# --- certificates


async def by_certificate(
    files: WebCa, name: str = "jane", *, method: str = NODES, roots: Any = None, **auth: Any
) -> Caller | Refusal:
    certificate, _ = files.issue(name)
    shown = {
        "x509_pem_cert": [certificate.read_bytes()],
        "ssl_session_reused": [b"false"],
        **auth,
    }
    known = x509.load_pem_x509_certificates(files.file.read_bytes()) if roots is None else roots
    context: Any = Context(**shown)
    return await certificate_person(lambda: known, roles())(context, method, datetime.now(UTC))


async def test_a_certificate_names_a_person_until_it_ends(tmp_path: Any) -> None:
    found = await by_certificate(WebCa(tmp_path, "client-ca"))
    assert isinstance(found, Caller)
    assert (found.kind, found.name) == (CallerKind.INSPECTOR, "user jane")
    assert found.not_after is not None
    assert found.not_after > datetime.now(UTC) + timedelta(days=80)
    tenant = await by_certificate(WebCa(tmp_path, "client-ca"), "joe", method=FIT)
    assert isinstance(tenant, Caller)
    assert tenant.kind is CallerKind.TENANT


async def test_the_client_ca_is_that_of_now(tmp_path: Any) -> None:
    ca = WebCa(tmp_path, "client-ca")
    other = x509.load_pem_x509_certificates(WebCa(tmp_path, "other").file.read_bytes())
    for roots in ((), other):
        found = await by_certificate(ca, roots=roots)
        assert isinstance(found, Refusal)
        assert found.code is ReasonCode.CERTIFICATE_INVALID


async def test_a_resumed_session_and_none_at_all_are_nobody(tmp_path: Any) -> None:
    ca = WebCa(tmp_path, "client-ca")
    resumed = await by_certificate(ca, ssl_session_reused=[b"true"])
    assert isinstance(resumed, Refusal)
    assert resumed.code is ReasonCode.TLS_RESUMED
    without = await by_certificate(ca, x509_pem_cert=[])
    assert isinstance(without, Refusal)
    assert without.code is ReasonCode.TLS_NO_CLIENT_CERT


async def test_a_certificate_without_the_right_is_refused(tmp_path: Any) -> None:
    found = await by_certificate(WebCa(tmp_path, "client-ca"), "joe")
    assert isinstance(found, Refusal)
    assert found.code is ReasonCode.ROLE_DENIED
    assert found.detail.startswith("joe may not call")
