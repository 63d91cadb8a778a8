"""What pods that wait cost: calls, requeues, writes to nodes, audit records and Events.

Two replicas and a real scheduler; a node with eight GPUs, a namespace with a quota. The figures
are kept in build/e2e/cost-of-waiting.json and stand in docs/benchmarks.md.
"""

import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from controller.kube.nodes.nodes import ENFORCE_LABEL
from sandbox.fleet.tally import metrics_of
from tests.e2e.lab.fake_kubelet import FakeKubelet
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.pods import Namespace
from tests.e2e.lab.waiting import until
from tests.e2e.product.hardware import h100_node
from tests.e2e.product.installation import Installation
from tests.e2e.product.ledger import forget_records, held
from tests.e2e.product.namespaces import create_namespace, remove_namespace
from tests.e2e.product.pods import managed
from tests.e2e.product.webhooks import BINDINGS, PODS, Webhooks, admission
from tests.e2e.run_record import KEPT, RUN, Run

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
HERE: Final = {"cost": "here"}
GPUS: Final = 8
QUOTA: Final = GPUS - 1
LIMITED: Final = {"reservation": {"quotaPerNamespace": QUOTA}}
OVER_QUOTA, IN_LINE = 150, 40
REQUIREMENTS: Final = {"gpu-count": "1"}
PATIENCE_S: Final = 240
MINUTE_S: Final = 60.0
FILE: Final = KEPT / "cost-of-waiting.json"
_SERIES: Final = re.compile(r"^(gpuwarden_[a-z_]+)\{(.*)\} ([0-9.e+]+)$", re.MULTILINE)
_COUNTED: Final = {
    "filter": ("gpuwarden_extender_requests_total", ('verb="filter"',)),
    "bindingsRefused": ("gpuwarden_bind_decisions_total", ('decision="refused"',)),
    "podsRequeued": ("gpuwarden_kube_requeues_total", ('result="requeued"',)),
}


class World:
    """An enforced namespace, and a node."""

    def __init__(self, lab: Lab, installation: Installation, run: Run, namespace: str) -> None:
        self.api = lab.api
        self.pods = Namespace(lab.api, namespace)
        self.node = f"{namespace}-0"
        self._run = run
        self.gpuwarden = installation

    def cost(self) -> Counter[str]:
        """Of both replicas since their start; Events of the namespace, whoever wrote them."""
        found = Counter[str](dict.fromkeys(_COUNTED, 0))
        for one in self.gpuwarden.controllers:
            for name, labels, value in _SERIES.findall(metrics_of(one.endpoint.ops)):
                for key, (series, wanted) in _COUNTED.items():
                    if name == series and all(x in labels for x in wanted):
                        found[key] += int(float(value))
            found["auditBytes"] += sum(
                x.stat().st_size for x in (one.data / "audit").glob("*.jsonl")
            )
            kinds = Counter(x["kind"] for x in one.records())
            found["auditRecords"] += kinds.total()
            found["filterRecords"] += kinds["filter.decision"]
        calls = (x.call for x in self._run.calls())
        found["nodesPatched"] = sum((x.verb, x.resource) == ("patch", "nodes") for x in calls)
        path = f"/apis/events.k8s.io/v1/namespaces/{self.pods.name}/events"
        for event in self.api.get(path)["items"]:
            found["events"] += 1
            found["timesInEvents"] += event.get("series", {}).get("count", 1)
        return found

    def since(self, before: Counter[str]) -> Counter[str]:
        """What came after, zeros included."""
        found = self.cost()
        found.subtract(before)
        return found

    def bound(self) -> list[str]:
        path = f"{self.pods.path}/pods?fieldSelector=spec.nodeName%3D{self.node}"
        return [x["metadata"]["name"] for x in self.api.get(path)["items"]]


@pytest.fixture
def world(lab: Lab, request: pytest.FixtureRequest) -> Iterator[World]:
    name, settings = request.param
    served = admission(lab)
    served.id_keys = lab.folder / "cost-id-keys"
    served.id_keys.write_text(f"k1 {os.urandom(32).hex()}\n")
    served.settings = settings
    installation = Installation(
        lab, name, replicas=2, admission=served, policy={"defaultMode": "env"}
    )
    webhooks = Webhooks(lab, served, PODS, BINDINGS)
    made = World(lab, installation, request.config.stash[RUN], name)
    lab.fake_nodes.add(made.node, gpus=0, labels=HERE)
    kubelet = FakeKubelet(lab.api, {made.node})
    try:
        create_namespace(lab, name, {ENFORCE_LABEL: "true"})
        installation.start()
        installation.agents.start(h100_node(made.node, GPUS))
        installation.agents.hash_of(made.node)
        webhooks.register()
        until("pods are injected", lambda: _is_injected(made), timeout_s=PATIENCE_S)
        yield made
    finally:
        webhooks.remove()
        remove_namespace(lab, name, patience_s=PATIENCE_S)
        kubelet.stop()
        installation.close()
        forget_records(lab.api)
        lab.fake_nodes.delete(made.node)


def _is_injected(world: World) -> bool:
    made = world.api.post(
        f"{world.pods.path}/pods?dryRun=All", managed("dry", REQUIREMENTS, gpus=0)
    )
    return "env" in made["spec"]["containers"][0]


def _keep(name: str, cost: Counter[str]) -> None:
    FILE.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    FILE.write_text(json.dumps(known | {name: dict(sorted(cost.items()))}, indent=1) + "\n")


@pytest.mark.parametrize("world", [("cost-limited", LIMITED)], indirect=True, ids=["quota"])
def test_minutes_of_pods_over_their_quota(world: World) -> None:
    begun = world.cost()

    def create(number: int) -> None:
        world.pods.create(managed(f"over-{number}", REQUIREMENTS, gpus=0, where=HERE))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(create, range(QUOTA + OVER_QUOTA)))
    until("the quota is used up", lambda: len(world.bound()) == QUOTA, timeout_s=PATIENCE_S)
    until(
        "each was refused once",
        lambda: world.since(begun)["filter"] >= QUOTA + OVER_QUOTA,
        timeout_s=PATIENCE_S,
    )
    time.sleep(MINUTE_S)  # whatever follows the first refusals
    arrival = world.since(begun)
    before = world.cost()
    time.sleep(MINUTE_S)  # what is measured is a minute
    quiet = world.since(before)
    before = world.cost()
    world.api.delete(f"{world.pods.path}/pods/{world.bound()[0]}", grace_s=0)
    time.sleep(MINUTE_S)  # likewise
    one_end = world.since(before)
    _keep("overQuotaArrivalAndMinute", arrival)
    _keep("overQuotaMinute", quiet)
    _keep("overQuotaMinuteWithOneEnd", one_end)
    assert len(world.bound()) == QUOTA
    for cost in (arrival, quiet, one_end):
        assert cost["nodesPatched"] == 0
        assert cost["bindingsRefused"] <= 2 * QUOTA  # of pods that passed /filter side by side
    assert arrival["filter"] <= 4 * (QUOTA + OVER_QUOTA)
    assert quiet["filter"] <= OVER_QUOTA
    assert quiet["podsRequeued"] == quiet["bindingsRefused"] == 0
    assert one_end["podsRequeued"] <= QUOTA
    assert one_end["auditBytes"] <= 250_000


@pytest.mark.parametrize("world", [("cost-free", {})], indirect=True, ids=["GPUs"])
def test_pods_that_wait_in_line_for_gpus(world: World) -> None:
    before, jobs = world.cost(), f"/apis/batch/v1/namespaces/{world.pods.name}/jobs"
    made = managed("work", REQUIREMENTS, gpus=0, where=HERE)
    metadata = {key: made["metadata"][key] for key in ("labels", "annotations")}
    spec = {
        "completions": IN_LINE,
        "parallelism": IN_LINE,
        "template": {"metadata": metadata, "spec": made["spec"]},
    }
    begun = time.monotonic()
    world.api.post(jobs, {"metadata": {"name": "work"}, "spec": spec})
    until(
        "all have run",
        lambda: world.api.get(f"{jobs}/work")["status"].get("succeeded") == IN_LINE,
        timeout_s=PATIENCE_S,
    )
    until("all GPUs are given back", lambda: not held(world.api), timeout_s=PATIENCE_S)
    cost = world.since(before)
    cost["seconds"] = round(time.monotonic() - begun)
    _keep("fortyInLine", cost)
    assert cost["nodesPatched"] == 0
    assert cost["filterRecords"] <= 8 * IN_LINE
    assert cost["auditBytes"] <= 10_000 * IN_LINE
