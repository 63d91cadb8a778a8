"""The extender over a real loopback socket, as kube-scheduler and worse callers meet it."""

import asyncio
import gzip
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from controller.placement.static_hashes import InsecureStaticHashes
from controller.web.extender.extender import (
    Extender,
    ExtenderLimits,
    ExtenderServer,
    ListenRefusedError,
    check_listener,
)
from controller.web.extender.verbs import ExtenderVerbs
from controller.web.listener import ConnectionEnd
from controller.web.server import INSECURE_HEADER, LARGE
from controller.web.tls import Reload
from gpuwarden.settings.values import Address
from tests.builders.fleet_views import fleet, hash_of, healthy
from tests.builders.pods import pod_json
from tests.fakes.placement import Measurements, Sink, World, args, victims
from tests.hang import HANG_S, PATIENT

MANAGED = pod_json({"gpuwarden.dev/required-hash": hash_of("a")})
VICTIM = {"Pods": [{"UID": "u1"}], "NumPDBViolations": 0}
LOOPBACK = Address("127.0.0.1", 0)


class Running:
    """A server with what it told its surroundings."""

    def __init__(self, verbs: ExtenderVerbs, limits: ExtenderLimits) -> None:
        self.sink = Sink()
        self.measurements = Measurements()
        extender = Extender(verbs, note=self.sink.note, metrics=self.measurements, limits=limits)
        self.server = ExtenderServer(
            extender,
            address=LOOPBACK,
            tls=None,
            observer=self.measurements,
            limits=limits,
        )
        self.port = 0

    async def is_busy(self, writer: asyncio.StreamWriter) -> None:
        """Wait until the request that `writer` has begun is being received."""
        await writer.drain()
        async with asyncio.timeout(HANG_S):
            while self.server.busy == 0:  # noqa: ASYNC110 -- the server tells nobody
                await asyncio.sleep(0.001)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=HANG_S)) as session:
        yield session


@asynccontextmanager
async def serving(verbs: ExtenderVerbs | None = None, **limits: Any) -> AsyncIterator[Running]:
    bounds = ExtenderLimits(**{**PATIENT, **limits})
    running = Running(verbs or World(fleet(healthy("n1"))).verbs(), bounds)
    _, running.port = await running.server.start()
    try:
        yield running
    finally:
        await running.server.stop(0.5)


async def test_filter_prioritize_and_health(client: aiohttp.ClientSession) -> None:
    async with serving() as running:
        for path, expected in (
            ("/filter", {"NodeNames": ["n1"]}),
            ("/prioritize", [{"Host": "n1", "Score": 4}, {"Host": "n2", "Score": 0}]),
        ):
            async with client.post(running.url(path), json=args(MANAGED, "n1", "n2")) as answer:
                found = await answer.json()
                assert answer.status == 200
                assert answer.content_type == "application/json"
                assert INSECURE_HEADER not in answer.headers
                assert found == expected or found["NodeNames"] == ["n1"]
        for path in ("/healthz", "/health"):
            async with client.get(running.url(path)) as answer:
                assert (answer.status, await answer.text()) == (200, "ok")
        assert running.measurements.answers == [("filter", "passed"), ("prioritize", "passed")]
        assert [decision.pod for decision in running.sink.decisions] == ["train-0"]


async def test_preempt_keeps_the_nodes_that_the_pod_could_pass(
    client: aiohttp.ClientSession,
) -> None:
    world = World(fleet(healthy("n1"), healthy("n2", "b")))
    async with serving(world.verbs(), body_bytes=4000) as running:
        url, body = running.url("/preempt"), victims(MANAGED, n1=["u1"], n2=["u2"])
        async with client.post(url, json=body) as answer:
            assert (answer.status, answer.content_type) == (200, "application/json")
            assert await answer.json() == {"NodeNameToMetaVictims": {"n1": VICTIM}}
        world.not_ready = "first round"
        async with client.post(url, json=body) as answer:
            assert (answer.status, await answer.json()) == (200, {"NodeNameToMetaVictims": {}})
        async with client.post(url, json=victims(pod_json(), n1=["u1"])) as answer:
            assert await answer.json() == {"NodeNameToMetaVictims": {"n1": VICTIM}}
        async with client.post(url, data=b"{}") as answer:
            assert answer.status == 400
        async with client.post(url, data=b" " * 4001) as answer:
            assert answer.status == 413
        assert running.measurements.answers == [
            ("preempt", result)
            for result in ("passed", "not_ready", "untouched", "bad", "too_large")
        ]
        (decision,) = running.sink.decisions
        assert (decision.preempts, decision.pod, decision.candidates) == (True, "train-0", 2)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/preempt", 405),
        ("GET", "/filter", 405),
        ("PUT", "/prioritize", 405),
        ("POST", "/healthz", 405),
        ("POST", "/bind", 404),
        ("GET", "/", 404),
    ],
)
async def test_other_methods_and_paths(
    client: aiohttp.ClientSession, method: str, path: str, status: int
) -> None:
    async with serving() as running, client.request(method, running.url(path)) as answer:
        assert answer.status == status


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "decode args"),
        (b"{", "decode args"),
        (b'{"NodeNames":["n1"]}', "missing pod in args"),
        (gzip.compress(b"{}", mtime=0), "decode args"),
    ],
)
async def test_bad_bodies_are_400_and_the_connection_lives(
    client: aiohttp.ClientSession, data: bytes, expected: str
) -> None:
    async with serving() as running:
        headers = {"Content-Encoding": "gzip"} if data[:1] == b"\x1f" else {}
        async with client.post(running.url("/filter"), data=data, headers=headers) as answer:
            assert answer.status == 400
            assert expected in (await answer.json())["Error"]
        async with client.post(running.url("/filter"), json=args(MANAGED, "n1")) as answer:
            assert answer.status == 200
        assert running.measurements.answers[0] == ("filter", "bad")


async def test_unmanaged_pods_leave_no_decision(client: aiohttp.ClientSession) -> None:
    async with serving(World().verbs()) as running:
        async with client.post(running.url("/filter"), json=args(pod_json(), "a", "b")) as answer:
            assert (await answer.json())["NodeNames"] == ["a", "b"]
        assert running.sink.decisions == []
        assert running.measurements.answers == [("filter", "untouched")]


async def test_not_ready_is_200_with_an_error(client: aiohttp.ClientSession) -> None:
    world = World(fleet(healthy("n1")), not_ready="first round")
    async with serving(world.verbs()) as running:
        async with client.post(running.url("/filter"), json=args(MANAGED, "n1")) as answer:
            assert answer.status == 200
            assert "CONTROLLER_NOT_READY" in (await answer.json())["Error"]
        assert running.sink.decisions == []


async def test_static_hashes_are_marked_in_every_answer(client: aiohttp.ClientSession) -> None:
    static = InsecureStaticHashes({"kind-worker": "abc123"})
    pod = pod_json({"attestation-hash.my-company.com/required-hash": "abc123"}, gpus=1)
    async with serving(World().verbs(static=static)) as running:
        body = args(pod, "kind-worker", "kind-worker2")
        async with client.post(running.url("/filter"), json=body) as answer:
            found = await answer.json()
            assert answer.headers[INSECURE_HEADER] == "static-hashes"
        assert found["NodeNames"] == ["kind-worker"]
        assert "no attestation hash" in found["FailedAndUnresolvableNodes"]["kind-worker2"]
        async with client.get(running.url("/healthz")) as answer:
            assert answer.headers[INSECURE_HEADER] == "static-hashes"


async def test_fifteen_thousand_names(client: aiohttp.ClientSession) -> None:
    nodes = [healthy(f"node-{i:05d}", "b" if i % 3 else "a", gpus=1) for i in range(15_000)]
    names = [node.name for node in nodes]
    async with serving(World(fleet(*nodes)).verbs()) as running:
        async with client.post(running.url("/filter"), json=args(MANAGED, *names)) as answer:
            found = await answer.json()
        assert found["NodeNames"] == names[::3]
        assert len(found["FailedAndUnresolvableNodes"]) == 100
        assert found["FailedNodes"] == {}
        totals = running.sink.decisions[0].totals()
        assert (totals.passed, sum(totals.rejected.values())) == (5000, 10_000)


@pytest.mark.parametrize("padding", [10_000, LARGE])
async def test_whole_nodes_are_answered_with_whole_nodes(
    client: aiohttp.ClientSession, padding: int
) -> None:
    pad = "x" * padding
    items = [{"metadata": {"name": name, "labels": {"pad": pad}}} for name in ("n2", "n1")]
    body = {"Pod": MANAGED, "Nodes": {"items": items}, "NodeNames": None}
    data = io.BytesIO(json.dumps(body).encode())
    async with serving() as running, client.post(running.url("/filter"), data=data) as answer:
        found = await answer.json()
    assert found["Nodes"]["items"] == [items[1]]
    assert found["NodeNames"] is None


async def test_oversize_is_413_by_length_and_by_count(client: aiohttp.ClientSession) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(8):
            yield b" " * 1000

    async with serving(body_bytes=4000) as running:
        for data in (b" " * 4001, chunks()):
            async with client.post(running.url("/filter"), data=data) as answer:
                assert answer.status == 413
                assert "limits.filterBytes" in (await answer.json())["Error"]
        assert running.measurements.answers == [("filter", "too_large")] * 2
        async with client.post(running.url("/filter"), data=b" " * 4000) as answer:
            assert answer.status == 400


async def raw(port: int, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    await writer.drain()
    return reader, writer


HEAD = b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


async def test_a_slow_body_is_cut_off() -> None:
    async with serving(receive_s=0.2) as running:
        reader, writer = await raw(running.port, HEAD % 100 + b"{")
        answer = await asyncio.wait_for(reader.read(), HANG_S)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"did not arrive within 0.2 s" in answer
    assert running.measurements.answers == [("filter", "slow")]


async def test_slow_headers_are_cut_off() -> None:
    async with serving(head_s=0.2) as running:
        reader, writer = await raw(running.port, b"POST /filter HTTP/1.1\r\nHost: ")
        assert await asyncio.wait_for(reader.read(), HANG_S) == b""
        writer.close()


async def test_bodies_that_are_being_received_are_bounded_in_sum(
    client: aiohttp.ClientSession,
) -> None:
    async with serving(body_bytes=60_000) as running:
        held = [await raw(running.port, HEAD % 60_000 + b" " * 50_000) for _ in range(2)]
        await until(client, running, 503)
        for _, writer in held:
            writer.close()
        await until(client, running, 400)


async def until(client: aiohttp.ClientSession, running: Running, status: int) -> None:
    """Ask until the answer is `status`: the server sees other connections in its own time."""
    async with asyncio.timeout(HANG_S):
        while True:
            async with client.post(running.url("/filter"), data=b" " * 60_000) as answer:
                if answer.status == status:
                    return


async def test_a_client_that_hangs_up_leaves_nothing_behind(
    client: aiohttp.ClientSession,
) -> None:
    async with serving(body_bytes=60_000) as running:
        for _ in range(10):
            _, writer = await raw(running.port, HEAD % 60_000 + b" " * 50_000)
            writer.transport.abort()
        async with client.post(running.url("/filter"), json=args(MANAGED, "n1")) as answer:
            assert answer.status == 200


GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


async def test_a_connection_that_is_idle_gives_way_to_a_new_one() -> None:
    async with serving(connections=1) as running:
        first, first_writer = await raw(running.port, GET)
        assert (await first.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        second, second_writer = await raw(running.port, GET)
        assert (await second.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        assert await _all(first) == b""
        assert running.measurements.cuts == [ConnectionEnd.GAVE_WAY]
        first_writer.close()
        second_writer.close()


async def test_a_connection_that_is_answered_does_not_give_way() -> None:
    async with serving(connections=1) as running:
        first, first_writer = await raw(running.port, HEAD % 2 + b"{")
        await running.is_busy(first_writer)
        second, second_writer = await raw(running.port, GET)
        assert await _all(second) == b""
        assert running.measurements.cuts == [ConnectionEnd.FULL]
        first_writer.write(b"}")
        assert (await first.readuntil(b"}")).startswith(b"HTTP/1.1 400")
        first_writer.close()
        second_writer.close()


async def test_a_crowd_of_silent_connections_does_not_keep_a_request_out() -> None:
    async with serving(connections=16) as running:
        crowd = [await raw(running.port, b"POST /filter HTTP/1.1\r\nHost: ") for _ in range(200)]
        reader, writer = await raw(running.port, GET)
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        assert running.measurements.cuts == [ConnectionEnd.GAVE_WAY] * (200 + 1 - 16)
        for _, one in (*crowd, (reader, writer)):
            one.close()


async def test_a_head_that_is_dribbled_after_a_request_is_cut_off_too() -> None:
    async with serving(head_s=0.2) as running:
        reader, writer = await raw(running.port, GET)
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        writer.write(b"POST /filter HTTP/1.1\r\nHost: ")
        assert await _all(reader) == b""
        assert running.measurements.cuts == [ConnectionEnd.NO_REQUEST]
        writer.close()


@pytest.mark.parametrize(
    "framing",
    [
        b"POST /filter HTTP/1.1\r\nHost x\r\n\r\n",
        b"POST /filter HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
        b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
    ],
)
async def test_framing_that_cannot_be_read_is_counted_and_no_error_of_ours(
    framing: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as running:
        reader, writer = await raw(running.port, framing)
        assert (await _all(reader)).startswith(b"HTTP/1.0 400") or not framing.startswith(b"P")
        writer.close()
        assert len(running.measurements.framing) == 1
    assert [x.getMessage() for x in caplog.records if x.levelname == "ERROR"] == []


async def test_a_body_with_broken_chunks_is_refused_and_no_error_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    chunked = b"POST /filter HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serving(receive_s=0.2) as running:
        for head, more in (
            (chunked + b"4\r\n{ } \r\n", b"not a length\r\n"),
            (chunked, b"-1\r\n"),
            (HEAD % 60_000 + b"{", b""),
        ):
            reader, writer = await raw(running.port, head)
            await running.is_busy(writer)
            writer.write(more)
            if not more:
                writer.transport.abort()
            assert (await _all(reader)).split(b" ")[1:2] in ([b"400"], [b"408"], [])
            writer.close()
        async with asyncio.timeout(HANG_S):
            while len(running.measurements.answers) < 3:  # noqa: ASYNC110 -- as above
                await asyncio.sleep(0.001)
        assert {result for _, result in running.measurements.answers} <= {"bad", "slow"}
    assert [x.getMessage() for x in caplog.records if x.levelname == "ERROR"] == []


async def _all(reader: asyncio.StreamReader) -> bytes:
    try:
        return await asyncio.wait_for(reader.read(), HANG_S)
    except ConnectionResetError:
        return b""


async def test_many_pods_at_once_get_their_own_answers(client: aiohttp.ClientSession) -> None:
    nodes = [healthy(f"n-{letter}", letter) for letter in "abcdef"]
    names = [node.name for node in nodes]

    async with serving(World(fleet(*nodes)).verbs()) as running:

        async def ask(letter: str) -> list[str]:
            pod = pod_json({"gpuwarden.dev/required-hash": hash_of(letter)})
            async with client.post(running.url("/filter"), json=args(pod, *names)) as answer:
                found = json.loads(await answer.read())["NodeNames"]
                assert isinstance(found, list)
                return found

        answers = await asyncio.gather(*(ask(letter) for letter in "abcdef" * 10))
    assert answers == [[f"n-{letter}"] for letter in "abcdef" * 10]


async def test_stop_before_start_and_reload_without_tls_do_nothing() -> None:
    running = Running(World().verbs(), ExtenderLimits())
    await running.server.stop()
    await running.server.watch_certificates()
    assert running.server.reload_certificates() is Reload.UNCHANGED


@pytest.mark.parametrize("host", ["", "0.0.0.0", "10.0.0.1", "::", "extender.example"])  # noqa: S104 -- the refusal is the test
def test_an_open_address_without_a_client_ca_is_refused(host: str) -> None:
    with pytest.raises(ListenRefusedError, match=r"listen\.extender: .*extender\.tls\.clientCa"):
        check_listener(Address(host, 8000), None)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.9.9.9"])
def test_loopback_needs_no_certificate(host: str) -> None:
    check_listener(Address(host, 8000), None)
