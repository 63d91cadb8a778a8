"""The binding webhook of a whole controller: from evidence to release, with objects."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.evidence.model import Allocation, GpuProcess
from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.builders.admission_reviews import patch_of, review_json
from tests.builders.admitted_pods import container, new_pod, patched
from tests.builders.bindings import binding, binding_review, env_pod
from tests.builders.inventory import gpu, inventory
from tests.fakes.api_server import FakeApiServer
from tests.fakes.attest_client import AttestClient
from tests.fakes.eventually import eventually
from tests.fakes.json_patch import applied
from tests.integration.test_admission_in_a_controller import Asking, asking
from tests.integration.test_controller_app import _restored_logging
from tests.integration.test_controller_in_a_cluster import TD

__all__ = ["_restored_logging"]
"""A fixture that is used by every test of the module where it stands."""

POLICY = """\
apiVersion: config.gpuwarden.dev/v1alpha1
kind: Policy
defaultMode: env
"""
FAST = {
    "attestation__interval": "1s",
    "attestation__challengeTtl": "1s",
    "attestation__lease": "10s",
}
CARDS = inventory(gpu(0), gpu(1), gpu(2))
GPUS = tuple(card.uuid for card in CARDS.gpus)
BINDING_WEBHOOK = "/mutate/bindings"


@pytest.fixture
def workload_api(tmp_path: Path) -> Iterator[InsecureWorkloadApi]:
    with InsecureWorkloadApi(tmp_path, TD) as api:
        yield api


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[FakeApiServer]:
    made = FakeApiServer(tmp_path)
    await made.start()
    made.create("nodes", {"metadata": {"name": "node-1"}})
    labels = {"gpuwarden.dev/enforce": "true"}
    made.create("namespaces", {"metadata": {"name": "team-a", "labels": labels}})
    yield made
    await made.stop()


class Node:
    """The agent of node-1, which answers every challenge with the use of the moment."""

    def __init__(self, client: AttestClient) -> None:
        self._client = client
        self.processes: tuple[GpuProcess, ...] = ()
        self.allocations: tuple[Allocation, ...] | None = None
        self.pods: tuple[str, ...] = ()
        self.silent = False
        """Whether it answers nothing any more: the node is cut off."""
        self.rounds = 0

    async def answer_for_ever(self) -> None:
        challenge = await self._client.admitted()
        while not self.silent:
            use = {"processes": self.processes, "allocations": self.allocations}
            await self._client.answer(challenge, CARDS, pods=self.pods, **use)
            await self._client.verdict()
            self.rounds += 1
            challenge = await self._client.challenge()

    async def some_rounds(self, count: int = 3) -> None:
        goal = self.rounds + count
        await eventually(lambda: self._reached(goal), "some rounds of evidence")

    async def _reached(self, goal: int) -> bool | None:
        return self.rounds >= goal or None


class Stage:
    def __init__(self, there: Asking, node: Node) -> None:
        self.there = there
        self.node = node
        self.api = there.here.api

    def create(self, name: str) -> dict[str, Any]:
        document = env_pod(name=name)
        del document["metadata"]["uid"], document["metadata"]["resourceVersion"]
        return self.api.create("pods", document)

    async def bind(self, name: str, **request: Any) -> dict[str, Any]:
        """The response of the binding webhook; an allowed Binding is carried out."""
        found = self.api.objects.get("pods", f"team-a/{name}")
        sent = binding(name, "node-1", uid=found["metadata"]["uid"])
        answer = await self.there.post(BINDING_WEBHOOK, binding_review(sent, **request))
        if answer["response"]["allowed"] and not request:
            made = applied(sent, patch_of(answer))["metadata"]
            assert made["resourceVersion"] == found["metadata"]["resourceVersion"]
            found["metadata"]["annotations"] |= made["annotations"]
            found["spec"]["nodeName"] = "node-1"
            self.api.change("pods", found)
        response: dict[str, Any] = answer["response"]
        return response

    async def bound(self, name: str) -> str:
        """The GPU that the pod gets, sooner or later."""

        async def allowed() -> bool | None:
            return (await self.bind(name))["allowed"] or None

        await eventually(allowed, f"{name} may be bound")
        found = self.api.objects.get("pods", f"team-a/{name}")
        uuid: str = found["metadata"]["annotations"]["gpuwarden.dev/gpu-uuids-assigned"]
        return uuid

    async def state_of(self, uuid: str, state: str | None) -> None:
        async def there() -> bool | None:
            kept = self.api.objects.all("gpureservations").get(uuid.lower())
            found = None if kept is None else kept["spec"]["holders"][0]["state"]
            return found == state or None

        await eventually(there, f"{uuid} is {state}")


@asynccontextmanager
async def stage(
    folder: Path, api: FakeApiServer, workload_api: InsecureWorkloadApi, **changes: Any
) -> AsyncIterator[Stage]:
    keys, policy = folder / "id-keys", folder / "policy.yaml"
    keys.write_text(f"k1 {'ab' * 32}\n")
    policy.write_text(POLICY)
    values = {
        **FAST,
        "admission__idKeys": str(keys),
        "policy__file": str(policy),
        **changes,
    }
    values = {name: text for name, text in values.items() if text is not None}
    async with (
        asking(folder, api, workload_api, **values) as there,
        there.here.client() as client,
        answering(client) as node,
    ):
        yield Stage(there, node)


@asynccontextmanager
async def answering(client: AttestClient) -> AsyncIterator[Node]:
    """A node that answers as long as this lasts, or until it is silent."""
    node = Node(client)
    task = asyncio.create_task(node.answer_for_ever())
    try:
        yield node
    finally:
        while not task.done():  # gRPC can lose a cancellation that meets an answer
            task.cancel()
            await asyncio.wait((task,), timeout=0.2)


async def test_from_evidence_to_release(
    tmp_path: Path, api: FakeApiServer, workload_api: InsecureWorkloadApi
) -> None:
    async with stage(tmp_path, api, workload_api) as here:
        uid = here.create("train-0")["metadata"]["uid"]
        given = await here.bound("train-0")
        assert given in GPUS
        await here.state_of(given, "Confirmed")
        controller = here.there.here.controller
        assert await controller.metric('gpuwarden_reservations{state="Confirmed"}') == 1
        here.node.processes = (GpuProcess(given, 7, uid),)
        await here.node.some_rounds()
        ended = api.objects.get("pods", "team-a/train-0")
        api.change("pods", ended | {"status": {"phase": "Succeeded"}})
        await here.state_of(given, "Releasing")
        await here.node.some_rounds()
        await here.state_of(given, "Releasing")
        here.node.processes, here.node.pods = (), (uid,)
        await here.node.some_rounds(4)
        await here.state_of(given, "Releasing")
        here.node.pods = ()
        await here.state_of(given, None)
        whole = ["reserved", "confirmed", "releasing", "released"]

        async def written() -> bool | None:
            kinds = [x["kind"] for x in controller.records()]
            found = [x for x in kinds if x.startswith("reservation.")]
            return found == [f"reservation.{x}" for x in whole] or None

        await eventually(written, "the whole life of the reservation is in the audit log")
        assert "bind.decision" in {x["kind"] for x in controller.records()}


async def test_each_gpu_goes_to_one_pod_and_filter_knows(
    tmp_path: Path, api: FakeApiServer, workload_api: InsecureWorkloadApi
) -> None:
    async with stage(tmp_path, api, workload_api) as here:
        for number in range(len(GPUS) + 1):
            here.create(f"train-{number}")
        gpus = [await here.bound(f"train-{number}") for number in range(len(GPUS))]
        assert sorted(gpus) == sorted(GPUS)
        last = f"train-{len(GPUS)}"
        refused = await here.bind(last)
        assert refused["status"]["message"].startswith("gpuwarden: GPU_BUSY ")
        waiting = api.objects.get("pods", f"team-a/{last}")
        filtered = await here.there.here.filtered(waiting)
        assert filtered["NodeNames"] == []
        assert "GPU_BUSY" in filtered["FailedAndUnresolvableNodes"]["node-1"]


async def test_dry_runs_and_forgeries_reserve_nothing(
    tmp_path: Path, api: FakeApiServer, workload_api: InsecureWorkloadApi
) -> None:
    async with stage(tmp_path, api, workload_api) as here:
        here.create("train-0")
        await here.bound("train-0")
        here.create("train-1")
        answer = await here.bind("train-1", dryRun=True)
        assert answer["allowed"]
        forged = binding("train-1", "node-1", annotations={"gpuwarden.dev/node": "node-1"})
        for old in (False, True):
            found = await here.there.post(BINDING_WEBHOOK, binding_review(forged, old=old))
            assert "BINDING_FORGED" in found["response"]["status"]["message"]
        assert len(api.objects.all("gpureservations")) == 1


async def test_a_filter_s_answer_follows_a_denial_and_the_node_is_touched(
    tmp_path: Path, api: FakeApiServer, workload_api: InsecureWorkloadApi
) -> None:
    quota = {"reservation__quotaPerNamespace": "1"}
    async with stage(tmp_path, api, workload_api, **quota) as here:
        here.create("train-0")
        await here.bound("train-0")
        waiting = here.create("train-1")
        before = _touched(api)
        refused = await here.bind("train-1")
        assert "QUOTA_EXCEEDED" in refused["status"]["message"]
        filtered = await here.there.here.filtered(waiting)
        assert "GATE_DENIED_RECENTLY" in filtered["FailedAndUnresolvableNodes"]["node-1"]

        async def touched() -> bool | None:
            return _touched(api) != before or None

        await eventually(touched, "the node is touched when the denial is over")
        await here.there.here.passes(waiting, ["node-1"], "/filter lets it through again")


def _touched(api: FakeApiServer) -> str | None:
    annotations = api.objects.get("nodes", "node-1")["metadata"].get("annotations") or {}
    found: str | None = annotations.get("gpuwarden.dev/requeued")
    return found


async def test_without_keys_nothing_is_reserved(
    tmp_path: Path, api: FakeApiServer, workload_api: InsecureWorkloadApi
) -> None:
    async with stage(tmp_path, api, workload_api, admission__idKeys=None) as here:
        here.create("train-0")

        async def said() -> bool | None:
            answer = await here.bind("train-0")
            return "admission.idKeys is not set" in answer["status"]["message"] or None

        await eventually(said, "the refusal says what is missing")
        assert api.objects.all("gpureservations") == {}


async def test_a_pod_that_requests_a_gpu_where_no_node_gives_one_to_kubelet_is_told_so(
    tmp_path: Path, api: FakeApiServer, workload_api: InsecureWorkloadApi
) -> None:
    pod = patched(new_pod(container(gpus=1)))
    async with stage(tmp_path, api, workload_api) as on:
        answer = await on.there.post("/validate/pods/enforced", review_json(pod))
    status = answer["response"]["status"]
    assert status["code"] == 403
    assert "NODE_MODE no node gives GPUs to a container that requests" in status["message"]
