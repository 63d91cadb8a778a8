"""Hint labels of nodes, against an API server over HTTPS."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from controller.admission.mutation import hint
from controller.admission.pod import AdmittedPod
from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.kube.api.client import ApiClient
from controller.kube.nodes.node_hints import MOST_CHANGES, NodeHints
from controller.placement.keys import RequirementRules
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.admitted_pods import admitted, new_pod
from tests.builders.kube_access import api_client, in_cluster
from tests.fakes.api_server import FakeApiServer
from tests.fakes.eventually import eventually

REQUIREMENT = {"gpuwarden.dev/gpu-selector": "model=x"}
KEY = hint(admitted(new_pod(annotations=REQUIREMENT)), RequirementRules()).key
STALE = "gpuwarden.node-restriction.kubernetes.io/requirement-old"


def pod() -> AdmittedPod:
    expression: Any = {"key": KEY, "operator": "In", "values": ["fits"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    node = {"requiredDuringSchedulingIgnoredDuringExecution": required}
    return admitted(new_pod(annotations=REQUIREMENT, affinity={"nodeAffinity": node}))


@dataclass
class Around:
    """What a test may change between two looks."""

    nodes: dict[str, KnownNode] = field(default_factory=dict)
    waiting: list[AdmittedPod] = field(default_factory=lambda: [pod()])
    passing: list[str] = field(default_factory=list)
    not_ready: str | None = None
    leads: bool = True
    now_ns: int = 0
    fresh_until_ns: int = 10_000_000_000

    def hints(self, api: ApiClient) -> NodeHints:
        def passing(_pod: AdmittedPod) -> Iterable[str]:
            return self.passing

        return NodeHints(
            api,
            waiting=lambda: self.waiting,
            nodes=lambda: DirectorySnapshot(self.nodes, self.fresh_until_ns),
            passing=passing,
            not_ready=lambda: self.not_ready,
            leads=lambda: self.leads,
            boottime_ns=lambda: self.now_ns,
            rules=RequirementRules(),
            instruments=Instruments(Process.CONTROLLER, "test"),
        )


@pytest.fixture
def server(server: FakeApiServer) -> FakeApiServer:
    for name in ("a", "b"):
        server.create(
            "nodes", {"metadata": {"name": name, "labels": {"theirs": "kept", STALE: "fits"}}}
        )
    return server


@pytest.fixture
def around() -> Around:
    return Around({"a": KnownNode(), "b": KnownNode(hints=frozenset({STALE}))}, passing=["a"])


@pytest.fixture
async def hints(server: FakeApiServer, tmp_path: Path, around: Around) -> AsyncIterator[NodeHints]:
    api, transport = api_client(in_cluster(tmp_path / "sa", server))
    yield around.hints(api)
    await transport.close()


def labels(server: FakeApiServer, node: str) -> dict[str, str]:
    found: dict[str, str] = server.objects.get("nodes", node)["metadata"]["labels"]
    return found


async def test_labels_come_and_go_and_others_stay(server: FakeApiServer, hints: NodeHints) -> None:
    await hints.reconcile()
    assert labels(server, "a") == {"theirs": "kept", STALE: "fits", KEY: "fits"}
    assert labels(server, "b") == {"theirs": "kept"}


async def test_it_goes_on_by_itself(server: FakeApiServer, hints: NodeHints) -> None:
    ((_, task),) = hints.tasks().items()
    task_of = asyncio.create_task(task)

    async def labelled() -> bool:
        return KEY in labels(server, "a")

    await eventually(labelled, "the label")
    task_of.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task_of


@pytest.mark.parametrize(
    "change", [{"leads": False}, {"not_ready": "first round"}, {"now_ns": 10_000_000_000}], ids=str
)
async def test_nothing_is_written(
    server: FakeApiServer, hints: NodeHints, around: Around, change: dict[str, Any]
) -> None:
    for name, value in change.items():
        setattr(around, name, value)
    await hints.reconcile()
    assert server.requests == []


async def test_few_nodes_at_a_time(server: FakeApiServer, hints: NodeHints, around: Around) -> None:
    around.passing = [f"n{number}" for number in range(MOST_CHANGES + 5)]
    around.nodes = dict.fromkeys(around.passing, KnownNode())
    await hints.reconcile()
    assert len(server.requests) == MOST_CHANGES  # of nodes that are gone by now


async def test_a_node_that_is_refused_holds_up_no_other_and_is_tried_again(
    server: FakeApiServer, hints: NodeHints, around: Around
) -> None:
    server.forbidden.add("patch /api/v1/nodes/b")
    with capture_logs() as logs:
        await hints.reconcile()
    assert [(x["event"], x["node"]) for x in logs] == [("kube.hint.failed", "b")]
    assert KEY in labels(server, "a")
    server.forbidden.clear()
    around.now_ns = 2_000_000_000
    await hints.reconcile()
    assert labels(server, "b") == {"theirs": "kept"}
