"""Hostile clients end inside the handshake, resumed sessions are known, and rotation is at once.

Clients here are plain `ssl` sockets, so that they can do what gRPC's own never would.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from controller.rpc.handshakes import GRACE_S, BegunHandshakes, FailedHandshakes
from controller.rpc.tcp_peers import tcp_peers
from gpuwarden.identity.server_credentials import server_credentials
from gpuwarden.identity.spiffe_id import parse_spiffe_id
from gpuwarden.identity.svid import Svid, SvidSource
from gpuwarden.identity.tunnel import Tunnel
from sandbox.spiffe.ca import InsecureCa, IssuedSvid, LeafShape
from tests.builders.svids import FakeSvidSource, new_svid
from tests.fakes.echo_service import EchoServer, call
from tests.fakes.plain_tls import ResumingContext, client_context
from tests.hang import HANG_S

CONTROLLER = "spiffe://example.org/gpuwarden/controller"
AGENT = "spiffe://example.org/gpuwarden/agent/node-a"
ROOT = InsecureCa("example.org")
MIDDLE = InsecureCa("example.org", issuer=ROOT)


def deep(depth: int) -> InsecureCa:
    below = ROOT
    for _ in range(depth):
        below = InsecureCa("example.org", issuer=below)
    return below


@dataclass
class Knock:
    """How a handshake ended: what the server showed, and whether it went on to speak HTTP/2."""

    accepted: bool
    resumed: bool = False
    leaf: bytes | None = None
    session: ssl.SSLSession | None = None


def client(
    issued: IssuedSvid | None,
    root: x509.Certificate = ROOT.certificate,
    version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    kind: type[ssl.SSLContext] = ssl.SSLContext,
) -> ssl.SSLContext:
    return client_context(issued, root, version, kind)


def _knock(port: int, context: ssl.SSLContext, session: ssl.SSLSession | None) -> Knock:
    with socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as raw:
        try:
            with context.wrap_socket(raw, session=session) as tls:
                if tls.recv(1):
                    leaf = tls.getpeercert(binary_form=True)
                    return Knock(True, bool(tls.session_reused), leaf, tls.session)
        except OSError:
            pass
    return Knock(accepted=False)


async def knock(port: int, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> Knock:
    return await asyncio.to_thread(_knock, port, context, session)


@dataclass
class Served:
    server: EchoServer
    source: FakeSvidSource
    errors: list[str]

    @property
    def port(self) -> int:
        return self.server.port


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    source, errors = FakeSvidSource(new_svid(ROOT, CONTROLLER)), list[str]()
    async with EchoServer(server_credentials(source, errors.append)) as server:
        yield Served(server, source, errors)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("authority", [ROOT, MIDDLE, deep(4)], ids=["root", "one", "four"])
async def test_a_workload_of_our_trust_domain_is_let_in(
    served: Served, authority: InsecureCa, version: ssl.TLSVersion
) -> None:
    result = await knock(served.port, client(authority.issue(AGENT), version=version))
    assert result.accepted
    assert served.errors == []


def below_a_leaf() -> IssuedSvid:
    leaf = ROOT.issue(AGENT)
    forged = InsecureCa("example.org", key=leaf.private_key).issue(CONTROLLER)
    return replace(forged, chain=(*forged.chain, *leaf.chain))


HOSTILE: dict[str, Callable[[], IssuedSvid | None]] = {
    "no certificate": lambda: None,
    "expired": lambda: ROOT.issue(AGENT, ttl=-timedelta(seconds=5)),
    "not yet valid": lambda: ROOT.issue(
        AGENT, not_before=datetime.now(UTC) + timedelta(minutes=30)
    ),
    "foreign authority": lambda: InsecureCa("example.org").issue(AGENT),
    "intermediate not sent": lambda: replace(issued := MIDDLE.issue(AGENT), chain=issued.chain[:1]),
    "below another leaf": below_a_leaf,
    "overlong chain": lambda: deep(110).issue(AGENT),
    "server-only usage": lambda: ROOT.issue(
        AGENT, shape=LeafShape(extended=[x509.oid.ExtendedKeyUsageOID.SERVER_AUTH])
    ),
}


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("hostile", HOSTILE)
async def test_a_hostile_client_ends_inside_the_handshake(
    served: Served, hostile: str, version: ssl.TLSVersion
) -> None:
    result = await knock(served.port, client(HOSTILE[hostile](), version=version))
    assert not result.accepted
    assert served.server.seen == []


async def test_a_resumed_session_is_known_as_one(served: Served) -> None:
    """Whoever authenticates calls refuses it: its certificate was not looked at again."""
    tunnel = Tunnel(new_svid(ROOT, AGENT), "127.0.0.1", served.port, parse_spiffe_id(CONTROLLER))
    tunnel._context = client(ROOT.issue(AGENT), kind=ResumingContext)
    async with tunnel:
        for generation in (2, 3):
            for _ in range(2):
                async with tunnel.channel() as channel:
                    await call(channel)(b"hello", timeout=HANG_S)
            served.source.put(new_svid(ROOT, CONTROLLER, generation=generation))
    assert [facts.resumed for facts in served.server.seen] == [False, True, False, True]


async def test_many_handshakes_at_once_share_one_configuration(served: Served) -> None:
    """Handing one over for each of them ends the process, sooner or later."""
    context = client(ROOT.issue(AGENT))
    results = await asyncio.gather(*(knock(served.port, context) for _ in range(60)))
    assert all(result.accepted for result in results)
    assert len({result.leaf for result in results}) == 1


async def test_a_new_svid_is_presented_in_the_next_handshake(served: Served) -> None:
    context = client(ROOT.issue(AGENT))
    for generation in range(2, 5):
        svid = new_svid(ROOT, CONTROLLER, generation=generation)
        served.source.put(svid)
        result = await knock(served.port, context)
        assert result.leaf == svid.leaf.public_bytes(Encoding.DER)


async def test_a_root_that_leaves_the_bundle_vouches_for_nobody_from_then_on(
    served: Served,
) -> None:
    next_root = InsecureCa("example.org")
    old, new = (client(ca.issue(AGENT)) for ca in (ROOT, next_root))
    for context in (old, new):
        context.load_verify_locations(cadata=next_root.certificate.public_bytes(Encoding.DER))
    both = (next_root.certificate, ROOT.certificate)
    served.source.put(new_svid(next_root, CONTROLLER, *both, generation=2))
    assert (await knock(served.port, old)).accepted
    assert (await knock(served.port, new)).accepted
    served.source.put(new_svid(next_root, CONTROLLER, generation=3))
    assert not (await knock(served.port, old)).accepted
    assert (await knock(served.port, new)).accepted


async def test_without_an_svid_no_handshake_completes_until_there_is_one(served: Served) -> None:
    context, svid = client(ROOT.issue(AGENT)), served.source.svid
    assert (await knock(served.port, context)).accepted
    served.source.put(None)
    assert not (await knock(served.port, context)).accepted
    assert served.errors == ["no SVID in this test"]
    served.source.put(svid)
    assert (await knock(served.port, context)).accepted


async def test_a_server_can_start_before_it_has_an_svid() -> None:
    source, errors = FakeSvidSource(), list[str]()
    async with EchoServer(server_credentials(source, errors.append)) as server:
        context = client(ROOT.issue(AGENT))
        context.verify_mode = ssl.CERT_NONE
        assert not (await knock(server.port, context)).accepted
        source.put(new_svid(ROOT, CONTROLLER))
        assert (await knock(server.port, context)).accepted


GOOD = new_svid(ROOT, CONTROLLER)
BROKEN: dict[str, tuple[Svid, str]] = {
    "another key": (replace(GOOD, private_key=new_svid(ROOT, CONTROLLER).private_key), "belong"),
    "no roots": (replace(GOOD, roots=()), "no roots"),
    "foreign roots": (replace(GOOD, roots=(InsecureCa("x").certificate,)), "no path"),
}


@pytest.mark.parametrize("broken", BROKEN)
async def test_an_svid_that_grpc_could_not_use_closes_the_bypass_and_is_counted(
    served: Served, broken: str
) -> None:
    svid, told = BROKEN[broken]
    served.source.put(svid)
    assert not (await knock(served.port, client(ROOT.issue(AGENT)))).accepted
    [error] = served.errors
    assert told in error


async def test_an_expired_svid_is_not_presented_even_if_the_source_still_has_it() -> None:
    source, errors = FakeSvidSource(GOOD), list[str]()
    later = GOOD.not_after + timedelta(seconds=1)
    async with EchoServer(server_credentials(source, errors.append, lambda: later)) as server:
        assert not (await knock(server.port, client(ROOT.issue(AGENT)))).accepted
    [error] = errors
    assert "ended at" in error


class BrokenSource:
    def current(self) -> Svid | None:
        raise ZeroDivisionError

    def state(self) -> str:
        return ""

    def subscribe(self, notify: Callable[[], None]) -> Callable[[], None]:
        return notify


async def test_neither_a_failing_source_nor_a_failing_counter_opens_the_bypass() -> None:
    source: SvidSource = BrokenSource()
    asked = []

    def on_error(text: str) -> None:
        asked.append(text)
        raise ZeroDivisionError

    async with EchoServer(server_credentials(source, on_error)) as server:
        assert not (await knock(server.port, client(ROOT.issue(AGENT)))).accepted
    assert asked == ["ZeroDivisionError: "]


def _refused_from(port: int, context: ssl.SSLContext) -> int:
    """The port of a client whose handshake fails."""
    with socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as raw:
        mine: int = raw.getsockname()[1]
        try:
            with context.wrap_socket(raw) as tls:
                assert tls.recv(1) == b""
        except OSError:
            pass
    return mine


async def test_whose_handshakes_fail_is_known_from_the_second_one_on() -> None:
    now, port = [0.0], 0
    begun = BegunHandshakes(lambda: now[0], lambda: tcp_peers(port))
    source = FakeSvidSource(new_svid(ROOT, CONTROLLER))
    stranger = client(InsecureCa("example.org").issue(AGENT))

    async def failed() -> tuple[int, FailedHandshakes]:
        mine = await asyncio.to_thread(_refused_from, port, stranger)
        now[0] += GRACE_S
        return mine, begun.take_failed()

    credentials = server_credentials(source, lambda _text: None, on_offer=begun.begun)
    async with EchoServer(credentials) as server:
        port = server.port
        assert (await failed())[1] == FailedHandshakes(1, ())
        mine, found = await failed()
        assert found == FailedHandshakes(1, (f"ipv4:127.0.0.1:{mine}",))
