"""A copy follows a server over HTTPS through everything that happens to watches."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from controller.fleet.directory import KnownNode
from controller.kube.api.cache import ListWatch, Pace
from controller.kube.api.resources import NODES, ApiError
from controller.kube.nodes.nodes import NODE_KIND, ClusterNodes
from gpuwarden.clock import SystemClock
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.kube_access import api_client, in_cluster
from tests.fakes.api_server import FakeApiServer
from tests.fakes.eventually import eventually

PACE = Pace(watch_s=30, silence_s=20.0, pause_factor=0.02)
_SECOND = 1_000_000_000


def node(name: str, **labels: str) -> dict[str, object]:
    return {"metadata": {"name": name, "labels": labels}}


class Following:
    def __init__(self, server: FakeApiServer, watcher: ListWatch[KnownNode]) -> None:
        self.server = server
        self.watcher = watcher

    @property
    def uids(self) -> dict[str, str]:
        return {name: x.uid for name, x in self.watcher.cache.objects.items()}

    @property
    def wanted(self) -> dict[str, str]:
        return {name: x["metadata"]["uid"] for name, x in self.server.objects.all("nodes").items()}

    async def equals(self, what: str) -> None:
        async def look() -> bool | None:
            return (self.uids == self.wanted and self.server.open_watches["nodes"] == 1) or None

        await eventually(look, f"{what}: {self.watcher.cache.trouble}")


Follow = Callable[..., contextlib.AbstractAsyncContextManager[Following]]


@pytest.fixture
def server(server: FakeApiServer) -> FakeApiServer:
    for name in ("a", "b", "c"):
        server.create("nodes", node(name))
    return server


@pytest.fixture
def follow(server: FakeApiServer, tmp_path: Path) -> Follow:
    @contextlib.asynccontextmanager
    async def following(pace: Pace = PACE) -> AsyncIterator[Following]:
        api, transport = api_client(in_cluster(tmp_path / "sa", server), SystemClock())
        watcher = ListWatch(
            api,
            NODE_KIND,
            clock=SystemClock(),
            instruments=Instruments(Process.CONTROLLER, "test"),
            jitter=lambda: 0.5,
            pace=pace,
        )
        task = asyncio.create_task(watcher.follow())
        try:
            yield Following(server, watcher)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await transport.close()

    return following


def lists(server: FakeApiServer) -> int:
    """Lists begun: further pages carry a token, questions for the version select a name."""
    paths = [path for verb, path in server.requests if verb == "list"]
    return sum("continue" not in path and "fieldSelector" not in path for path in paths)


async def test_it_lists_by_pages_and_then_only_watches(
    follow: Follow, server: FakeApiServer
) -> None:
    async with follow() as following:
        await following.equals("first list")
        assert following.watcher.synced.is_set()
        server.create("nodes", node("d"))
        server.delete("nodes", "a")
        server.change("nodes", node("b", x="y"))
        await following.equals("events")
        assert [verb for verb, _ in server.requests] == ["list", "list", "watch"]


async def test_the_largest_object_that_can_be_does_not_end_a_watch(
    follow: Follow, server: FakeApiServer
) -> None:
    """In JSON of the API server a `<` takes six bytes, and an object is of 1.5 MiB at most."""
    async with follow() as following:
        await following.equals("first list")
        server.create("nodes", node("d", large="x" * (9 << 20)))
        await following.equals("the event of a large object")
        assert [verb for verb, _ in server.requests] == ["list", "list", "watch"]


async def test_pages_that_are_too_large_are_asked_for_in_parts(
    server: FakeApiServer, tmp_path: Path
) -> None:
    for name in ("d", "e", "f"):
        server.create("nodes", node(name, large="x" * 30_000))
    api, transport = api_client(
        in_cluster(tmp_path / "sa", server), SystemClock(), page_objects=4, page_bytes=40_000
    )
    found = [len(page.items or ()) async for page in api.pages(NODES)]
    assert sum(found) == len(server.objects.all("nodes"))
    assert max(found) > min(found) == 1
    server.create("nodes", node("g", large="x" * 40_000))
    with pytest.raises(ApiError, match="more than 40000 bytes"):
        [page async for page in api.pages(NODES)]
    await transport.close()


async def test_a_watch_that_ends_goes_on_from_its_bookmark(
    follow: Follow, server: FakeApiServer
) -> None:
    async with follow(replace(PACE, watch_s=2, ask_s=0.3)) as following:
        await following.equals("first list")
        before = following.watcher.cache.fresh_at_ns or 0
        server.create("namespaces", node("elsewhere"))

        async def bookmarked() -> bool | None:
            return (following.watcher.cache.fresh_at_ns or 0) > before + 2 * _SECOND or None

        await eventually(bookmarked, "a watch later")
        server.objects.compact()
        server.create("nodes", node("d"))
        await following.equals("after the watch ended")
        assert lists(server) == 1


async def test_where_nothing_happens_at_all_the_version_itself_proves_it(
    follow: Follow, server: FakeApiServer
) -> None:
    async with follow(replace(PACE, ask_s=0.1)) as following:
        await following.equals("first list")
        before = following.watcher.cache.fresh_at_ns or 0

        async def proven() -> bool | None:
            return (following.watcher.cache.fresh_at_ns or 0) > before or None

        await eventually(proven, "the copy has the newest version")
        assert lists(server) == 1


async def test_a_history_that_went_backwards_is_found_by_a_list(
    follow: Follow, server: FakeApiServer
) -> None:
    """The server waits in silence for a version that it had before it was restored."""
    async with follow(replace(PACE, watch_s=1, ask_s=0.2)) as following:
        await following.equals("first list")
        server.objects.is_restored = True
        server.objects.restart_elsewhere()
        server.drop_watches()
        server.objects.delete("nodes", "a")
        await following.equals("after the server was restored")
        assert lists(server) == 2


@pytest.mark.parametrize(
    "trouble",
    [
        lambda server: server.drop_watches(),
        lambda server: server.end_watches_with(410, "Expired"),
        lambda server: server.end_watches_with(500, "InternalError"),
        lambda server: server.end_watches_with_line(b"garbage\n"),
        lambda server: server.end_watches_with_line(b'{"type":"ADDED","object":{}}\n'),
    ],
    ids=["dropped", "gone", "server-error", "garbage", "nameless"],
)
async def test_it_comes_through(
    follow: Follow, server: FakeApiServer, trouble: Callable[[FakeApiServer], None]
) -> None:
    async with follow() as following:
        await following.equals("first list")
        trouble(server)
        server.delete("nodes", "a")
        server.create("nodes", node("d"))
        server.delete("nodes", "d")
        server.create("nodes", node("d"))
        await following.equals("after trouble")


async def test_compaction_while_it_is_away_is_found_by_a_list(
    follow: Follow, server: FakeApiServer
) -> None:
    """A node that was deleted and one that was made while nobody watched."""
    async with follow() as following:
        await following.equals("first list")
        server.fail_next(503, matching="watch=true", Retry_After="2")
        server.drop_watches()
        server.delete("nodes", "a")
        server.create("nodes", node("d"))
        server.objects.compact()
        await following.equals("after compaction")
        assert lists(server) == 2
        assert all("resourceVersion=0" not in path for _, path in server.requests)


async def test_a_server_that_goes_away_and_comes_back(
    follow: Follow, server: FakeApiServer
) -> None:
    async with follow() as following:
        await following.equals("first list")
        was, fresh_at = following.uids, following.watcher.cache.fresh_at_ns
        await server.stop()

        async def noticed() -> bool | None:
            return bool(following.watcher.cache.trouble) or None

        await eventually(noticed, "the copy says that something is wrong")
        assert following.uids == was
        assert following.watcher.cache.fresh_at_ns == fresh_at
        server.delete("nodes", "a")
        await server.start()
        await following.equals("after restart")
        assert following.watcher.cache.trouble == ""


async def test_a_silent_watch_is_left_and_the_copy_grows_old(
    follow: Follow, server: FakeApiServer
) -> None:
    server.are_watches_silent = True
    async with follow(replace(PACE, silence_s=0.2)) as following:
        directory = ClusterNodes(following.watcher.cache, 10 * _SECOND)
        assert directory.snapshot().fresh_until_ns == 0
        assert directory.warning() is None

        async def left() -> bool | None:
            return sum(verb == "watch" for verb, _ in server.requests) >= 2 or None

        await eventually(left, "another watch")
        snapshot = directory.snapshot()
        fresh_at = following.watcher.cache.fresh_at_ns
        assert fresh_at is not None
        assert snapshot.fresh_until_ns == fresh_at + 10 * _SECOND
        assert {name: x.uid for name, x in snapshot.nodes.items()} == following.wanted
        assert len(snapshot.nodes) == 3
        server.create("nodes", node("d"))
        assert "d" not in directory.snapshot().nodes
        server.are_watches_silent = False
        await following.equals("it speaks again")
        assert "d" in directory.snapshot().nodes
        assert "d" not in snapshot.nodes
