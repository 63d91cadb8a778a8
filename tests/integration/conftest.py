"""What many tests start with: a fake API server, a workload API, a cluster with both."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.fakes.api_server import FakeApiServer
from tests.fakes.cluster import FakeCluster
from tests.fakes.ports import held_port
from tests.fakes.running_controller import TD


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer(tmp_path) as made:
        yield made


@pytest.fixture
def workload_api(tmp_path: Path) -> Iterator[InsecureWorkloadApi]:
    with InsecureWorkloadApi(tmp_path, TD) as made:
        yield made


@pytest.fixture
def own_port() -> Iterator[int]:
    """Nobody listens there but who is told to."""
    with held_port() as port:
        yield port


@pytest.fixture
def cluster(
    tmp_path: Path, server: FakeApiServer, workload_api: InsecureWorkloadApi
) -> FakeCluster:
    return FakeCluster(tmp_path, server, workload_api)
