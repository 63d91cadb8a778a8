"""The extender over mTLS: who gets in, and certificates that change while it serves."""

import asyncio
import json
import math
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from controller.web.extender.extender import (
    Extender,
    ExtenderLimits,
    ExtenderServer,
    ListenRefusedError,
    check_listener,
)
from controller.web.handshakes import HandshakeFailure
from controller.web.listener import ConnectionEnd
from controller.web.tls import Reload, ServingTls, TlsFiles, TlsFilesError
from gpuwarden.settings.values import Address
from tests.builders.fleet_views import fleet, hash_of, healthy
from tests.builders.pods import pod_json
from tests.builders.web_certificates import WebCa
from tests.fakes.placement import Measurements, Sink, World, args
from tests.hang import HANG_S, PATIENT

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


@asynccontextmanager
async def running(
    folder: Path, clock: Callable[[], datetime] | None = None, **limits: Any
) -> AsyncIterator[Tls]:
    """A listener with `limits`; `clock` judges its certificates."""
    ca, other = WebCa(folder, "ca"), WebCa(folder, "other")
    files = TlsFiles(folder / "tls.crt", folder / "tls.key", folder / "clients.pem")
    shutil.copy(ca.file, folder / "clients.pem")
    first = ca.issue("one", server=True)
    shutil.copy(first[0], files.certificate)
    shutil.copy(first[1], files.private_key)
    bounds, measurements = ExtenderLimits(**{**PATIENT, **limits}), Measurements()
    extender = Extender(
        World(fleet(healthy("n1"))).verbs(), note=Sink().note, metrics=measurements, limits=bounds
    )
    server = ExtenderServer(
        extender,
        address=Address("127.0.0.1", 0),
        tls=files,
        observer=measurements,
        limits=bounds,
        reload_s=0.01,
        now=clock,
    )
    found = Tls(ca, other, files, server, measurements)
    _, found.port = await server.start()
    try:
        yield found
    finally:
        await server.stop(0.5)


@pytest.fixture
async def tls(tmp_path: Path) -> AsyncIterator[Tls]:
    async with running(tmp_path) as found:
        yield found


def context(tls: Tls, pair: tuple[Path, Path] | None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(tls.ca.file))
    if pair is not None:
        made.load_cert_chain(*pair)
    return made


@asynccontextmanager
async def session(tls: Tls, pair: tuple[Path, Path] | None) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(ssl=context(tls, pair))
    timeout = aiohttp.ClientTimeout(total=HANG_S)
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
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=HANG_S)) as client:
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
    async with asyncio.timeout(HANG_S):
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


# --- Handshakes that fail are seen, and keep nobody out


async def handshake(tls: Tls, made: ssl.SSLContext | None, sent: bytes = b"") -> None:
    """One attempt, which fails; then what the listener says of it is there."""
    tls.measurements.refusal.clear()
    try:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", tls.port, ssl=made, server_hostname=None if made is None else "localhost"
        )
        writer.write(sent)
        if made is None and not sent:
            writer.close()
        else:
            await reader.read()
            writer.close()
    except OSError:
        pass
    async with asyncio.timeout(HANG_S):
        await tls.measurements.refusal.wait()


def shake_as_other_programs_do(tls: Tls, made: ssl.SSLContext) -> None:
    """With an alert to the server, which asyncio's own client does not send."""
    with (
        socket.create_connection(("127.0.0.1", tls.port)) as connection,
        made.wrap_socket(connection, server_hostname="localhost"),
    ):
        return


async def test_the_cause_of_each_failure_is_told_with_the_address(tls: Tls) -> None:
    assert tls.server.warnings() == ()
    distrusting = ssl.create_default_context(cafile=str(tls.other.file))
    distrusting.load_cert_chain(*tls.ca.issue("scheduler"))
    old = context(tls, tls.ca.issue("old"))
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    for made, sent in (
        (context(tls, None), b""),
        (context(tls, tls.other.issue("stranger")), b""),
        (old, b""),
        (None, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        (None, b""),
    ):
        await handshake(tls, made, sent)
    tls.measurements.refusal.clear()
    with pytest.raises(ssl.SSLCertVerificationError):
        await asyncio.to_thread(shake_as_other_programs_do, tls, distrusting)
    async with asyncio.timeout(HANG_S):
        await tls.measurements.refusal.wait()
    assert [cause.value for cause, _, _ in tls.measurements.refused] == [
        "no-certificate",
        "bad-certificate",
        "version",
        "not-tls",
        "closed",
        "refused-by-client",
    ]
    assert all(peer.startswith("127.0.0.1:") for _, peer, _ in tls.measurements.refused)
    reasons = [reason for _, _, reason in tls.measurements.refused]
    assert reasons[0] == "peer did not return a certificate"
    assert "certificate" in reasons[1]
    assert reasons[5] == "tlsv1 alert unknown ca"
    assert tls.measurements.completed == 0


async def test_readiness_warns_while_nobody_has_got_in(tls: Tls) -> None:
    await handshake(tls, context(tls, None))
    (warning,) = tls.server.warnings()
    assert warning.startswith("extender: TLS handshakes fail and none has succeeded yet (1 refused")
    assert "no-certificate, from 127.0.0.1:" in warning
    async with session(tls, tls.ca.issue("scheduler")) as client:
        assert await ask(client, tls) == ["n1"]
    await handshake(tls, context(tls, None))
    assert tls.server.warnings() == ()
    assert tls.measurements.completed == 1


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_hello_that_is_there_before_the_connection_is_accepted_is_answered(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """The controller runs on uvloop, which reads a connection before anybody else has a turn."""

    async def shake_hands() -> list[str | None]:
        async with running(tmp_path) as tls:
            made = context(tls, tls.ca.issue("scheduler"))
            eager = [EagerClient(made, tls.port) for _ in range(20)]
            return [await client.finished() for client in eager]

    with asyncio.Runner(loop_factory=loop) as runner:
        assert set(runner.run(shake_hands())) == {"TLSv1.3"}


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_large_request_right_behind_the_handshake_is_answered(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """TLS gives the request on before the server knows that hands are shaken."""
    names = ["n1", *(f"other-{x:060}" for x in range(15_000))]
    body = json.dumps(BODY | {"NodeNames": names}).encode()
    head = f"POST /filter HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"

    async def ask_at_once() -> list[bytes]:
        async with running(tmp_path) as tls:
            made = context(tls, tls.ca.issue("scheduler"))
            eager = [EagerClient(made, tls.port) for _ in range(3)]
            return [await client.answered(head.encode() + body) for client in eager]

    with asyncio.Runner(loop_factory=loop) as runner:
        answers = runner.run(ask_at_once())
    assert [x.partition(b"\r\n")[0] for x in answers] == [b"HTTP/1.1 200 OK"] * 3


class EagerClient:
    """Sends its hello at once: the loop has had no turn since it connected."""

    def __init__(self, made: ssl.SSLContext, port: int) -> None:
        self._asked = False
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = made.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        with suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.sendall(self._outgoing.read())
        self._socket.setblocking(False)

    async def finished(self) -> str | None:
        """The version of TLS once hands are shaken; None where the server hangs up."""
        loop = asyncio.get_running_loop()
        with self._socket:
            while chunk := await loop.sock_recv(self._socket, 1 << 16):
                self._incoming.write(chunk)
                with suppress(ssl.SSLWantReadError):
                    self._tls.do_handshake()
                    return self._tls.version()
        return None

    async def answered(self, request: bytes) -> bytes:
        """The first bytes of the answer to a request that ends the client's handshake."""
        loop = asyncio.get_running_loop()
        with self._socket:
            while chunk := await loop.sock_recv(self._socket, 1 << 16):
                self._incoming.write(chunk)
                with suppress(ssl.SSLWantReadError):
                    if not self._asked:
                        self._tls.do_handshake()
                        self._tls.write(request)
                        self._asked = True
                        await loop.sock_sendall(self._socket, self._outgoing.read())
                    return self._tls.read(1 << 16)
        return b""


async def test_a_crowd_of_half_open_handshakes_does_not_keep_a_client_out(tmp_path: Path) -> None:
    async with running(tmp_path, connections=16) as tls:
        crowd = [await asyncio.open_connection("127.0.0.1", tls.port) for _ in range(300)]
        async with session(tls, tls.ca.issue("scheduler")) as client:
            assert await ask(client, tls) == ["n1"]
        assert tls.measurements.cuts == [ConnectionEnd.GAVE_WAY] * (300 + 1 - 16)
        causes = {cause for cause, _, _ in tls.measurements.refused}
        assert causes == {HandshakeFailure.GAVE_WAY}
        for _, writer in crowd:
            writer.close()


async def test_a_handshake_that_is_not_finished_is_ended(tmp_path: Path) -> None:
    async with running(tmp_path, handshake_s=0.1, head_s=0.2) as tls:
        await handshake(tls, None, b"\x16\x03\x01\x02\x00\x01")
        assert [cause for cause, _, _ in tls.measurements.refused] == [HandshakeFailure.TIMEOUT]


async def test_a_client_that_says_nothing_after_its_handshake_is_ended(tmp_path: Path) -> None:
    async with running(tmp_path, head_s=0.2) as tls:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1",
            tls.port,
            ssl=context(tls, tls.ca.issue("scheduler")),
            server_hostname="localhost",
        )
        with suppress(OSError):
            assert await asyncio.wait_for(reader.read(), HANG_S) == b""
        writer.close()
        assert tls.measurements.cuts == [ConnectionEnd.NO_REQUEST]


# --- A worse certificate never replaces a valid one


def days(count: int) -> datetime:
    return datetime.now(UTC) + timedelta(days=count)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"begins": days(-9), "ends": days(-2)}, "has ended at"),
        ({"begins": days(2), "ends": days(9)}, "is not valid before"),
        ({"names": ("elsewhere.example",)}, "is not for 127.0.0.1, localhost"),
        ({"names": ("127.0.0.1",)}, "is not for localhost"),
        ({"server": False}, "is not for servers"),
    ],
)
async def test_a_certificate_that_nobody_would_accept_is_not_taken(
    tls: Tls, changes: dict[str, Any], said: str
) -> None:
    tls.install(tls.ca.issue("worse", **{"server": True, **changes}))
    for _ in range(3):
        assert tls.server.reload_certificates() is Reload.REFUSED
    assert await served(tls, tls.ca.issue("scheduler")) == "one"
    (error,) = tls.measurements.certificates
    assert error is not None
    assert said in error
    (warning,) = tls.server.warnings()
    assert warning.startswith("extender: new certificate files are not in use: ")
    tls.install(tls.ca.issue("good", server=True))
    assert tls.server.reload_certificates() is Reload.CHANGED
    assert await served(tls, tls.ca.issue("scheduler")) == "good"
    assert tls.server.warnings() == ()


async def test_a_certificate_without_its_chain_is_not_taken(tmp_path: Path) -> None:
    async with running(tmp_path) as tls:
        middle = WebCa(tmp_path, "middle", issuer=tls.ca)
        whole, key = middle.issue("whole", server=True)
        whole.write_bytes(whole.read_bytes() + middle.file.read_bytes())
        tls.install((whole, key))
        assert tls.server.reload_certificates() is Reload.CHANGED
        tls.install(middle.issue("alone", server=True))
        assert tls.server.reload_certificates() is Reload.REFUSED
        assert "comes without its chain" in (tls.measurements.certificates[-1] or "")
        strange, key = middle.issue("strange", server=True)
        strange.write_bytes(strange.read_bytes() + tls.other.file.read_bytes())
        tls.install((strange, key))
        assert tls.server.reload_certificates() is Reload.REFUSED
        assert "certificate 2 did not issue" in (tls.measurements.certificates[-1] or "")
        assert await served(tls, tls.ca.issue("scheduler")) == "whole"
        assert tls.server.tls is not None
        assert tls.server.tls.certificates.count("BEGIN CERTIFICATE") == 2
        direct, key = tls.ca.issue("direct", server=True)
        tls.install((direct, key))
        assert tls.server.reload_certificates() is Reload.CHANGED
        assert tls.server.tls.certificates == direct.read_text()


async def test_anything_replaces_a_certificate_that_has_ended(tmp_path: Path) -> None:
    now = days(0)
    async with running(tmp_path, clock=lambda: now) as tls:
        now = days(2)
        (warning,) = tls.server.warnings()
        assert warning.startswith("extender: the serving certificate has ended at ")
        tls.install(tls.ca.issue("other", server=True, names=("new.example",), ends=days(9)))
        assert tls.server.reload_certificates() is Reload.CHANGED
        assert tls.server.warnings() == ()


async def test_a_late_renewal_is_a_warning_and_the_time_left_is_known(tmp_path: Path) -> None:
    now = days(0)
    async with running(tmp_path, clock=lambda: now) as tls:
        assert tls.server.tls is not None
        assert 86_000 < tls.server.tls.seconds_left() <= 86_400
        now = days(0) + timedelta(hours=20)
        (warning,) = tls.server.warnings()
        assert "extender: the serving certificate ends in" in warning
        assert "was not renewed" in warning


async def test_the_end_of_the_clients_certificates_is_known_and_a_warning(tls: Tls) -> None:
    assert math.isnan(tls.server.client_seconds_left())
    long = tls.ca.issue("scheduler", ends=datetime.now(UTC) + timedelta(days=60))
    async with session(tls, long) as client:
        await ask(client, tls)
    assert 59 * 86_400 < tls.server.client_seconds_left() < 60 * 86_400
    assert not [x for x in tls.server.warnings() if "client" in x]
    short = tls.ca.issue("late-scheduler", ends=datetime.now(UTC) + timedelta(days=2))
    async with session(tls, short) as client:
        await ask(client, tls)
    assert 0 < tls.server.client_seconds_left() < 2 * 86_400
    assert tls.server.client_ends is not None
    assert tls.server.client_ends < datetime.now(UTC) + timedelta(days=2)
    (warning,) = (x for x in tls.server.warnings() if "client" in x)
    assert warning.startswith("extender: the certificate that the client 127.0.0.1 shows (")
    assert "late-scheduler" in warning


async def test_client_cas_of_which_none_is_valid_are_not_taken(tls: Tls, tmp_path: Path) -> None:
    ended = WebCa(tmp_path, "ended", begins=days(-9), ends=days(-2))
    assert tls.files.client_ca is not None
    shutil.copy(ended.file, tls.files.client_ca)
    assert tls.server.reload_certificates() is Reload.REFUSED
    async with session(tls, tls.ca.issue("scheduler")) as client:
        assert await ask(client, tls) == ["n1"]


def test_a_key_with_a_password_is_refused_and_nobody_is_asked(tmp_path: Path) -> None:
    certificate, key = WebCa(tmp_path, "ca").issue("one", server=True)
    loaded = load_pem_private_key(key.read_bytes(), None)
    encrypted = BestAvailableEncryption(b"secret")
    key.write_bytes(loaded.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encrypted))
    with pytest.raises(TlsFilesError, match="expected PEM files that fit together"):
        ServingTls(TlsFiles(certificate, key))
