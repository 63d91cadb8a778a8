"""Evicting one pod, against an API server over HTTPS."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controller.kube.pods.pods import PodEvictor
from controller.ledger.record import PodRef
from tests.builders.kube_access import api_client, in_cluster
from tests.fakes.api_server import FakeApiServer


@pytest.fixture
async def evictor(server: FakeApiServer, tmp_path: Path) -> AsyncIterator[PodEvictor]:
    api, transport = api_client(in_cluster(tmp_path / "sa", server))
    yield PodEvictor(api)
    await transport.close()


@pytest.fixture
def pod(server: FakeApiServer) -> PodRef:
    made = server.create("pods", {"metadata": {"name": "train-0", "namespace": "team-a"}})
    return PodRef("team-a", "train-0", made["metadata"]["uid"])


def is_there(server: FakeApiServer) -> bool:
    return "team-a/train-0" in server.objects.all("pods")


async def test_a_pod_is_evicted_and_its_absence_is_no_error(
    server: FakeApiServer, evictor: PodEvictor, pod: PodRef
) -> None:
    assert await evictor.evict(pod) == ""
    assert not is_there(server)
    path = "/api/v1/namespaces/team-a/pods/train-0/eviction"
    assert ("create", path) in server.requests
    assert await evictor.evict(pod) == ""


async def test_another_pod_of_the_name_is_left_alone(
    server: FakeApiServer, evictor: PodEvictor, pod: PodRef
) -> None:
    assert await evictor.evict(PodRef(pod.namespace, pod.name, "uid-of-before")) == ""
    assert is_there(server)


async def test_a_disruption_budget_is_heeded(
    server: FakeApiServer, evictor: PodEvictor, pod: PodRef
) -> None:
    server.disruption_budgets.add("train-0")
    assert "a disruption budget is against it" in await evictor.evict(pod)
    assert is_there(server)


async def test_a_server_that_is_away_says_why_not(
    server: FakeApiServer, evictor: PodEvictor, pod: PodRef
) -> None:
    await server.stop()
    assert await evictor.evict(pod) != ""
