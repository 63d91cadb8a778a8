"""The extender over mTLS: who gets in, and certificates that change while it serves."""

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from controller.web.extender import (
    Extender,
    ExtenderLimits,
    ExtenderServer,
    ListenRefusedError,
    check_listener,
)
from controller.web.server import Reload, ServingTls, TlsFiles, TlsFilesError
from gpuwarden.settings.values import Address
from tests.builders.fleet_views import fleet, hash_of, healthy
from tests.builders.pods import pod_json
from tests.builders.web_certificates import WebCa
from tests.fakes.placement import Measurements, Sink, World, args

BODY = args(pod_json({"gpuwarden.dev/required-hash": hash_of("a")}), "n1", "n2")


@dataclass
class Tls:
    """Files in use, the CAs, and the server that uses them."""

    ca: WebCa
    other: WebCa
    files: TlsFiles
    server: ExtenderServer
    measurements: Measurements
    port: int = 0

    def install(self, pair: tuple[Path, Path]) -> None:
        shutil.copy(pair[0], self.files.certificate)
        shutil.copy(pair[1], self.files.private_key)


@pytest.fixture
async def tls(tmp_path: Path) -> AsyncIterator[Tls]:
    ca, other = WebCa(tmp_path, "ca"), WebCa(tmp_path, "other")
    files = TlsFiles(tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "clients.pem")
    shutil.copy(ca.file, tmp_path / "clients.pem")
    first = ca.issue("one", server=True)
    shutil.copy(first[0], files.certificate)
    shutil.copy(first[1], files.private_key)
    limits, measurements = ExtenderLimits(), Measurements()
    extender = Extender(
        World(fleet(healthy("n1"))).verbs(), note=Sink().note, metrics=measurements, limits=limits
    )
    server = ExtenderServer(
        extender,
        address=Address("127.0.0.1", 0),
        tls=files,
        certificate_changed=measurements.certificate_changed,
        limits=limits,
        reload_s=0.01,
    )
    found = Tls(ca, other, files, server, measurements)
    _, found.port = await server.start()
    try:
        yield found
    finally:
        await server.stop(0.5)


def context(tls: Tls, pair: tuple[Path, Path] | None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(tls.ca.file))
    if pair is not None:
        made.load_cert_chain(*pair)
    return made


@asynccontextmanager
async def session(tls: Tls, pair: tuple[Path, Path] | None) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(ssl=context(tls, pair))
    timeout = aiohttp.ClientTimeout(total=20)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as made:
        yield made


async def ask(client: aiohttp.ClientSession, tls: Tls, host: str = "localhost") -> list[str]:
    async with client.post(f"https://{host}:{tls.port}/filter", json=BODY) as answer:
        found = (await answer.json())["NodeNames"]
        assert isinstance(found, list)
        return found


async def served(tls: Tls, pair: tuple[Path, Path]) -> str:
    """Common name that a new handshake shows."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", tls.port, ssl=context(tls, pair), server_hostname="localhost"
    )
    try:
        certificate = writer.get_extra_info("peercert")
        assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
        return str(dict(part[0] for part in certificate["subject"])["commonName"])
    finally:
        writer.transport.abort()
        del reader


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_a_client_of_the_ca_is_answered(tls: Tls, host: str) -> None:
    async with session(tls, tls.ca.issue("scheduler")) as client:
        assert await ask(client, tls, host) == ["n1"]


async def test_nobody_else_is(tls: Tls) -> None:
    for pair in (
        None,
        tls.other.issue("stranger"),
        tls.ca.issue("server-only", server=True),
    ):
        async with session(tls, pair) as client:
            with pytest.raises(aiohttp.ClientError):
                await ask(client, tls)
    assert tls.measurements.answers == []


async def test_plain_http_gets_nothing(tls: Tls) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as client:
        with pytest.raises(aiohttp.ClientError):
            await client.post(f"http://127.0.0.1:{tls.port}/filter", json=BODY)
    assert tls.measurements.answers == []


async def test_old_protocol_versions_are_refused(tls: Tls) -> None:
    old = context(tls, tls.ca.issue("scheduler"))
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("localhost", tls.port, ssl=old)


async def test_a_new_certificate_is_served_and_open_connections_live(tls: Tls) -> None:
    pair = tls.ca.issue("scheduler")
    async with session(tls, pair) as client:
        assert await ask(client, tls) == ["n1"]
        tls.install(tls.ca.issue("two", server=True))
        assert tls.server.reload_certificates() is Reload.CHANGED
        assert tls.server.reload_certificates() is Reload.UNCHANGED
        assert await ask(client, tls) == ["n1"]
        assert await served(tls, pair) == "two"
    assert tls.measurements.certificates == [None]


async def test_a_torn_write_keeps_the_old_certificate(tls: Tls) -> None:
    pair = tls.ca.issue("scheduler")
    fresh = tls.ca.issue("two", server=True)
    shutil.copy(fresh[0], tls.files.certificate)
    assert tls.server.reload_certificates() is Reload.REFUSED
    tls.files.certificate.write_text("half of a")
    assert tls.server.reload_certificates() is Reload.REFUSED
    tls.files.certificate.unlink()
    assert tls.server.reload_certificates() is Reload.REFUSED
    assert await served(tls, pair) == "one"
    assert all(
        "expected PEM" in str(e) or "No such" in str(e) for e in tls.measurements.certificates
    )
    tls.install(fresh)
    assert tls.server.reload_certificates() is Reload.CHANGED
    assert await served(tls, pair) == "two"


async def test_a_removed_ca_is_refused_and_a_new_one_let_in(tls: Tls) -> None:
    stranger, former = tls.other.issue("stranger"), tls.ca.issue("former")
    async with session(tls, former) as still_open:
        assert await ask(still_open, tls) == ["n1"]
        assert tls.files.client_ca is not None
        shutil.copy(tls.other.file, tls.files.client_ca)
        assert tls.server.reload_certificates() is Reload.CHANGED
        assert await ask(still_open, tls) == ["n1"]
    async with session(tls, stranger) as client:
        assert await ask(client, tls) == ["n1"]
    async with session(tls, former) as client:
        with pytest.raises(aiohttp.ClientError):
            await ask(client, tls)


async def test_a_session_cannot_be_resumed(tls: Tls) -> None:
    made = context(tls, tls.ca.issue("scheduler"))
    _, writer = await asyncio.open_connection("localhost", tls.port, ssl=made)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    await writer.drain()
    await _.read()
    resumed = writer.get_extra_info("ssl_object").session
    writer.close()
    assert resumed is None or not resumed.has_ticket


async def test_the_watch_takes_new_files_by_itself(tls: Tls) -> None:
    watch = asyncio.create_task(tls.server.watch_certificates())
    tls.install(tls.ca.issue("two", server=True))
    async with asyncio.timeout(20):
        await tls.measurements.taken.wait()
    watch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watch
    assert await served(tls, tls.ca.issue("scheduler")) == "two"


async def test_rotation_under_load_fails_no_request(tls: Tls) -> None:
    stop = asyncio.Event()

    async def load(client: aiohttp.ClientSession) -> int:
        count = 0
        while not stop.is_set():
            assert await ask(client, tls) == ["n1"]
            count += 1
        return count

    async def fresh() -> int:
        count = 0
        while not stop.is_set():
            async with session(tls, pair) as client:
                assert await ask(client, tls) == ["n1"]
            count += 1
        return count

    pair = tls.ca.issue("scheduler")
    async with session(tls, pair) as client:
        tasks = [asyncio.create_task(load(client)), asyncio.create_task(fresh())]
        for number in range(20):
            tls.install(tls.ca.issue(f"rotated-{number}", server=True))
            tls.server.reload_certificates()
            await ask(client, tls)
        stop.set()
        counts = await asyncio.gather(*tasks)
    assert all(count > 0 for count in counts)


def test_files_that_cannot_serve_are_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(TlsFilesError, match=r"missing\.crt: No such file"):
        ServingTls(TlsFiles(tmp_path / "missing.crt", tmp_path / "missing.key"))
    ca, other = WebCa(tmp_path, "ca"), WebCa(tmp_path, "other")
    one, two = ca.issue("one", server=True), other.issue("two", server=True)
    with pytest.raises(TlsFilesError, match="expected PEM files that fit together"):
        ServingTls(TlsFiles(one[0], two[1]))
    (tmp_path / "empty.pem").write_text("")
    with pytest.raises(TlsFilesError, match="expected PEM files that fit together"):
        ServingTls(TlsFiles(*one, tmp_path / "empty.pem"))
    assert ServingTls(TlsFiles(*one)).context.verify_mode is ssl.CERT_NONE


def test_an_open_address_needs_the_client_ca_and_not_only_a_certificate(tmp_path: Path) -> None:
    pair = WebCa(tmp_path, "ca").issue("one", server=True)
    with pytest.raises(ListenRefusedError):
        check_listener(Address("", 8000), TlsFiles(*pair))
    check_listener(Address("", 8000), TlsFiles(*pair, tmp_path / "ca.pem"))
