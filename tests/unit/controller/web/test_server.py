import random
from collections.abc import Iterator

import pytest
from aiohttp.test_utils import TestClient, TestServer

from controller.operations.readiness import Readiness
from controller.web.server import LARGE, BodyBuffer, ops_app


def _client(readiness: Readiness) -> TestClient:  # type: ignore[type-arg]  # aiohttp's own default
    def metrics(*, exemplars: bool = False) -> bytes:
        return b"open 1\n" if exemplars else b"up 1\n"

    return TestClient(TestServer(ops_app(lambda: readiness, metrics, lambda: lambda: b"gpu 1\n")))


@pytest.mark.parametrize("path", ["/healthz", "/health"])
async def test_healthz_answers_while_the_loop_turns(path: str) -> None:
    async with _client(Readiness(("svid: none",), ())) as client:
        answer = await client.get(path)
        assert (answer.status, await answer.text()) == (200, "ok\n")


@pytest.mark.parametrize("path", ["/readyz", "/ready"])
async def test_readyz_says_why_not(path: str) -> None:
    async with _client(Readiness(("svid: none",), ("InsecureStaticNodes",))) as client:
        answer = await client.get(path)
        assert answer.status == 503
        assert await answer.json() == {
            "ready": False,
            "reasons": ["svid: none"],
            "warnings": ["InsecureStaticNodes"],
        }


async def test_readyz_is_200_with_warnings() -> None:
    async with _client(Readiness((), ("w",))) as client:
        answer = await client.get("/readyz")
        assert answer.status == 200
        assert await answer.json() == {"ready": True, "reasons": [], "warnings": ["w"]}


async def test_metrics_are_prometheus_text() -> None:
    async with _client(Readiness((), ())) as client:
        answer = await client.get("/metrics")
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert await answer.text() == "up 1\n"


async def test_metrics_are_openmetrics_for_who_asks_for_it() -> None:
    async with _client(Readiness((), ())) as client:
        accept = {"Accept": "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.2"}
        answer = await client.get("/metrics", headers=accept)
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        assert await answer.text() == "open 1\n"


async def test_series_of_the_fleet_have_a_page_of_their_own() -> None:
    async with _client(Readiness((), ())) as client:
        answer = await client.get("/metrics/fleet")
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert await answer.text() == "gpu 1\n"


async def test_a_fleet_that_is_not_to_be_shown_is_not_found() -> None:
    app = ops_app(lambda: Readiness((), ()), lambda **_: b"", None)
    async with TestClient(TestServer(app)) as client:
        answer = await client.get("/metrics/fleet")
        assert (answer.status, await answer.text()) == (404, "off: metrics.fleet is false\n")


async def test_nothing_else_is_served() -> None:
    async with _client(Readiness((), ())) as client:
        assert (await client.get("/")).status == 404
        assert (await client.post("/healthz", data=b"x" * 10_000)).status == 405


# --- Bodies put together from pieces, small ones and such as move to huge pages

_LENGTHS = [0, 1, LARGE - 1, LARGE, LARGE + 1, 3 * LARGE + 17]


def pieces(body: bytes) -> Iterator[bytes]:
    """`body` in pieces as a connection might give them."""
    draw, at = random.Random(7), 0  # noqa: S311 -- the same pieces every time
    while at < len(body):
        size = draw.choice([1, 16_384, 262_144])
        yield body[at : at + size]
        at += size


@pytest.mark.parametrize("length", _LENGTHS)
@pytest.mark.parametrize("known", [True, False], ids=["Content-Length", "chunked"])
def test_what_came_is_there_in_order(length: int, *, known: bool) -> None:
    body = random.Random(length).randbytes(length)  # noqa: S311 -- any bytes
    buffer = BodyBuffer(length if known else None)
    for piece in pieces(body):
        buffer.append(piece)
    assert len(buffer) == length
    assert bytes(buffer.whole()) == body
    moved = isinstance(buffer.whole(), memoryview)
    assert moved is (known and length >= LARGE)


def test_an_announcement_takes_no_memory() -> None:
    buffer = BodyBuffer(1 << 60)
    buffer.append(bytes(LARGE - 1))
    assert isinstance(buffer.whole(), bytearray)


def test_a_body_that_ends_early_is_what_came() -> None:
    buffer = BodyBuffer(3 * LARGE)
    buffer.append(b"a" * LARGE)
    buffer.append(b"b")
    assert bytes(buffer.whole()) == b"a" * LARGE + b"b"


def test_more_than_announced_is_refused() -> None:
    buffer = BodyBuffer(LARGE)
    buffer.append(bytes(LARGE))
    with pytest.raises(ValueError, match="memoryview"):
        buffer.append(b"x")
    assert len(buffer) == LARGE
