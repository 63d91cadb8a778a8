"""Labels of nodes, against an API server over HTTPS that refuses some."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.kube.api.client import ApiClient
from controller.kube.nodes.inventory_labels import MOST_CHANGES, InventoryLabels
from gpuwarden.moment import NS_PER_S
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.kube_access import api_client, in_cluster
from tests.builders.node_views import fleet_of
from tests.fakes.api_server import FakeApiServer

OURS = "gpuid.github.com/gpu-0"
LONGEST_S = 300


@dataclass
class Around:
    """Nodes that nobody attests, with labels to remove."""

    nodes: dict[str, KnownNode] = field(default_factory=dict)
    leads: bool = True
    now_s: float = 0.0
    instruments: Instruments = field(
        default_factory=lambda: Instruments(Process.CONTROLLER, "test")
    )

    def labels(self, api: ApiClient) -> InventoryLabels:
        return InventoryLabels(
            api,
            fleet=fleet_of,
            nodes=lambda: DirectorySnapshot(self.nodes),
            not_ready=lambda: None,
            leads=lambda: self.leads,
            boottime_ns=lambda: int(self.now_s * NS_PER_S),
            instruments=self.instruments,
        )

    def refused(self) -> float | None:
        return self.instruments.registry.get_sample_value(
            "gpuwarden_kube_unlabelled_nodes", {"labels": "inventory"}
        )

    def failures(self) -> float | None:
        return self.instruments.registry.get_sample_value(
            "gpuwarden_kube_inventory_labels_total", {"result": "failed"}
        )


@pytest.fixture
def around(server: FakeApiServer) -> Around:
    names = ["bad", *(f"n{number}" for number in range(3))]
    for name in names:
        server.create("nodes", {"metadata": {"name": name, "labels": {OURS: "stale"}}})
    return Around(dict.fromkeys(names, KnownNode(labels={OURS: "stale"})))


@pytest.fixture
async def labels(
    server: FakeApiServer, tmp_path: Path, around: Around
) -> AsyncIterator[InventoryLabels]:
    api, transport = api_client(in_cluster(tmp_path / "sa", server))
    yield around.labels(api)
    await transport.close()


def labelled(server: FakeApiServer) -> list[str]:
    nodes = [x["metadata"] for x in server.objects.all("nodes").values()]
    return [x["name"] for x in nodes if x["labels"]]


def asked(server: FakeApiServer) -> list[str]:
    """Nodes that patches were sent for since the last call."""
    found = [path.rpartition("/")[2] for _, path in server.requests]
    server.requests.clear()
    return found


async def test_one_node_that_is_refused_holds_up_no_other(
    server: FakeApiServer, labels: InventoryLabels, around: Around
) -> None:
    server.forbidden.add("patch /api/v1/nodes/bad")
    with capture_logs() as logs:
        await labels.reconcile()
        await labels.reconcile()
    assert labelled(server) == ["bad"]
    assert around.refused() == around.failures() == 1
    assert [(x["event"], x["node"], x["log_level"]) for x in logs] == [
        ("kube.label.failed", "bad", "warning")
    ]
    assert "403" in logs[0]["reason"]


async def test_a_refused_node_is_tried_again_after_longer_and_longer_pauses(
    server: FakeApiServer, labels: InventoryLabels, around: Around
) -> None:
    server.forbidden.add("patch /api/v1/nodes/bad")
    around.nodes = {"bad": around.nodes["bad"]}
    times = []
    for second in range(1300):
        around.now_s = second
        await labels.reconcile()
        times += [second] * len(asked(server))
    assert times == [0, 2, 6, 14, 30, 62, 126, 254, 510, 810, 1110]
    server.forbidden.clear()
    around.now_s += LONGEST_S
    await labels.reconcile()
    assert (labelled(server), around.refused()) == (["n0", "n1", "n2"], 0)


async def test_nodes_that_did_not_fail_go_first(
    server: FakeApiServer, labels: InventoryLabels, around: Around
) -> None:
    server.forbidden.add("patch /api/v1/nodes/x")
    around.nodes = {f"x{n}": KnownNode(labels={OURS: "stale"}) for n in range(MOST_CHANGES)}
    await labels.reconcile()
    assert len(asked(server)) == MOST_CHANGES
    around.now_s = LONGEST_S
    around.nodes["n1"] = KnownNode(labels={OURS: "stale"})
    await labels.reconcile()
    assert asked(server) == ["n1", *(f"x{n}" for n in range(MOST_CHANGES - 1))]


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_where_nothing_is_taken_the_next_turn_begins_with_another_node(
    server: FakeApiServer, labels: InventoryLabels, around: Around, status: int
) -> None:
    with capture_logs() as logs:
        for _ in range(2):
            server.fail_next(status)
            await labels.reconcile()
    assert asked(server) == ["bad", "n0"]
    assert [x["node"] for x in logs] == ["bad"], "one line for an outage"
    await labels.reconcile()
    assert asked(server) == ["n1", "n2"]
    around.now_s = 2
    await labels.reconcile()
    assert labelled(server) == []


async def test_a_replica_that_does_not_lead_shows_no_node(
    server: FakeApiServer, labels: InventoryLabels, around: Around
) -> None:
    server.forbidden.add("patch")
    await labels.reconcile()
    assert around.refused() == 4
    around.leads = False
    await labels.reconcile()
    assert around.refused() == 0
