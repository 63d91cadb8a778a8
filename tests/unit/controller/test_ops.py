from aiohttp.test_utils import TestClient, TestServer

from controller.operations.conditions import Readiness
from controller.web.server import ops_app


def _client(readiness: Readiness) -> TestClient:  # type: ignore[type-arg]  # aiohttp's own default
    return TestClient(TestServer(ops_app(lambda: readiness, lambda: b"up 1\n")))


async def test_healthz_answers_while_the_loop_turns() -> None:
    async with _client(Readiness(("svid: none",), ())) as client:
        answer = await client.get("/healthz")
        assert (answer.status, await answer.text()) == (200, "ok\n")


async def test_readyz_says_why_not() -> None:
    async with _client(Readiness(("svid: none",), ("InsecureStaticNodes",))) as client:
        answer = await client.get("/readyz")
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


async def test_nothing_else_is_served() -> None:
    async with _client(Readiness((), ())) as client:
        assert (await client.get("/")).status == 404
        assert (await client.post("/healthz", data=b"x" * 10_000)).status == 405
