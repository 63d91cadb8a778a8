"""Touching nodes, against an API server over HTTPS."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controller.fleet.trust import ChangeKind, TrustChange
from controller.kube.node_hints import ANNOTATION, NodeRequeuer
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.kube_access import api_client, in_cluster
from tests.fakes.api_server import FakeApiServer
from tests.fakes.clock import FakeClock
from tests.fakes.eventually import eventually

GOOD_AGAIN = [TrustChange("n", ChangeKind.RESTORED)]


@pytest.fixture
def server(server: FakeApiServer) -> FakeApiServer:
    server.create("nodes", {"metadata": {"name": "n", "annotations": {"theirs": "kept"}}})
    return server


@pytest.fixture
def waiting() -> list[bool]:
    return [True]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def requeuer(
    server: FakeApiServer, tmp_path: Path, waiting: list[bool], clock: FakeClock
) -> AsyncIterator[NodeRequeuer]:
    api, transport = api_client(in_cluster(tmp_path / "sa", server))
    yield NodeRequeuer(
        api,
        replica="controller-1",
        pods_wait=lambda: waiting[0],
        clock=clock,
        instruments=Instruments(Process.CONTROLLER, "test"),
    )
    await transport.close()


def annotations(server: FakeApiServer) -> dict[str, str]:
    found: dict[str, str] = server.objects.get("nodes", "n")["metadata"]["annotations"]
    return found


async def test_each_touch_is_another_annotation(
    server: FakeApiServer, requeuer: NodeRequeuer, clock: FakeClock
) -> None:
    task = asyncio.create_task(requeuer.follow(0.01))
    seen: set[str] = set()
    for _ in range(2):
        requeuer.wake(GOOD_AGAIN)

        async def another() -> str | None:
            text = annotations(server).get(ANNOTATION, "")
            return text if text and text not in seen else None

        seen.add(await eventually(another, "a touch"))
        clock.advance(1)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert annotations(server)["theirs"] == "kept"
    assert all(text.endswith(" controller-1") for text in seen)


async def test_nothing_is_written_while_no_pod_waits(
    server: FakeApiServer, requeuer: NodeRequeuer, waiting: list[bool]
) -> None:
    waiting[0] = False
    requeuer.wake(GOOD_AGAIN)
    await requeuer.reconcile()
    assert server.requests == []
    waiting[0] = True
    await requeuer.reconcile()
    assert [verb for verb, _ in server.requests] == ["patch"]


async def test_a_failed_touch_is_tried_at_the_next_look(
    server: FakeApiServer, requeuer: NodeRequeuer
) -> None:
    server.fail_next(503)
    requeuer.wake([*GOOD_AGAIN, TrustChange("m", ChangeKind.RESTORED)])
    await requeuer.reconcile()
    assert len(server.requests) == 1
    await requeuer.reconcile()
    assert ANNOTATION in annotations(server)


async def test_a_node_that_is_gone_is_forgotten(
    server: FakeApiServer, requeuer: NodeRequeuer
) -> None:
    server.delete("nodes", "n")
    requeuer.wake(GOOD_AGAIN)
    await requeuer.reconcile()
    await requeuer.reconcile()
    assert len(server.requests) == 1
