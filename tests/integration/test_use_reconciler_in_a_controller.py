"""Evidence of a plugin node in a whole controller: records, Events, metrics, evictions."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.evidence.model import Allocation, GpuProcess
from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.builders.admitted_pods import container, new_pod
from tests.fakes.api_server import FakeApiServer
from tests.fakes.eventually import eventually
from tests.integration.test_binding_webhook_in_a_controller import GPUS, Stage, stage
from tests.integration.test_controller_app import _restored_logging
from tests.integration.test_controller_in_a_cluster import TD

__all__ = ["_restored_logging"]
"""A fixture that is used by every test of the module where it stands."""

POLICY = """\
apiVersion: config.gpuwarden.dev/v1alpha1
kind: Policy
defaultMode: plugin
"""
EVICTS = f"{POLICY}evictMismatched: true\n"


@pytest.fixture
def workload_api(tmp_path: Path) -> Iterator[InsecureWorkloadApi]:
    with InsecureWorkloadApi(tmp_path, TD) as api:
        yield api


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[FakeApiServer]:
    made = FakeApiServer(tmp_path)
    await made.start()
    made.create("nodes", {"metadata": {"name": "node-1"}})
    yield made
    await made.stop()


def policy(folder: Path, text: str) -> str:
    path = folder / "plugin-policy.yaml"
    path.write_text(text)
    return str(path)


def allocation(pod: str, gpu: str, namespace: str = "team-a") -> Allocation:
    return Allocation(namespace, pod, "main", "nvidia.com/gpu", gpu)


def running(api: FakeApiServer, name: str, requirement: str = "memory>=1Gi") -> str:
    """A managed pod that was bound to node-1; its UID."""
    annotations = {"gpuwarden.dev/gpu-selector": requirement}
    document: dict[str, Any] = new_pod(container(gpus=1), annotations=annotations)
    document["metadata"] |= {"name": name, "namespace": "team-a"}
    document["spec"]["nodeName"] = "node-1"
    uid: str = api.create("pods", document)["metadata"]["uid"]
    return uid


def events(api: FakeApiServer) -> list[tuple[str, str, str]]:
    found = api.objects.all("events").values()
    return sorted((x["reason"], x["regarding"]["kind"], x["note"]) for x in found)


async def kinds(here: Stage) -> list[str]:
    found = [x["kind"] for x in here.there.here.controller.records()]
    return [x for x in found if x.startswith("reservation.")]


async def test_kubelet_s_choice_becomes_a_record_and_ends_as_one(
    tmp_path: Path, api: FakeApiServer, workload_api: InsecureWorkloadApi
) -> None:
    settings = {"policy__file": policy(tmp_path, POLICY)}
    async with stage(tmp_path, api, workload_api, **settings) as here:
        uid = running(api, "train-0")
        here.node.allocations = (allocation("train-0", GPUS[1]),)
        here.node.processes = (GpuProcess(GPUS[1], 7, uid),)
        await here.state_of(GPUS[1], "Confirmed")
        (kept,) = api.objects.all("gpureservations").values()
        (holder,) = kept["spec"]["holders"]
        assert (kept["spec"]["node"], holder["origin"]) == ("node-1", "settlement")
        assert (holder["pod"]["uid"], holder["gpus"]) == (uid, [GPUS[1]])
        await here.node.some_rounds()
        assert events(api) == []
        ended = api.objects.get("pods", "team-a/train-0")
        api.change("pods", ended | {"status": {"phase": "Succeeded"}})
        await here.state_of(GPUS[1], "Releasing")
        await here.node.some_rounds()
        await here.state_of(GPUS[1], "Releasing")
        here.node.processes = ()
        here.node.allocations = (allocation("other", "pool/nic-0"),)
        await here.state_of(GPUS[1], None)

        async def whole() -> bool | None:
            expected = [f"reservation.{x}" for x in ("settled", "releasing", "released")]
            return [x for x in await kinds(here) if x in expected] == expected or None

        await eventually(whole, "the record's life is in the audit log")


async def test_use_off_the_books_is_told_once(
    tmp_path: Path, api: FakeApiServer, workload_api: InsecureWorkloadApi
) -> None:
    settings = {"policy__file": policy(tmp_path, POLICY)}
    async with stage(tmp_path, api, workload_api, **settings) as here:
        here.node.allocations = (allocation("plain", GPUS[0], "team-b"),)
        note = f"{GPUS[0]} is used by pod team-b/plain, and no reservation explains it"

        async def told() -> bool | None:
            return events(api) == [("GpuUnreservedUse", "Node", f"gpuwarden: {note}")] or None

        await eventually(told, "an Event about the node")
        await here.node.some_rounds(4)
        assert await told()
        assert "count" not in str(api.objects.all("events"))
        assert (await kinds(here)).count("reservation.unreserved") == 1
        controller = here.there.here.controller
        assert await controller.metric('gpuwarden_gpu_use_faults{kind="unreserved_use"}') == 1
        here.node.allocations = None
        await here.node.some_rounds(4)
        assert await controller.metric('gpuwarden_gpu_use_faults{kind="unreserved_use"}') == 1
        here.node.allocations = (allocation("other", "pool/nic-0"),)

        async def over() -> bool | None:
            found = await controller.metric('gpuwarden_gpu_use_faults{kind="unreserved_use"}')
            return found == 0 or None

        await eventually(over, "it is over")
        assert (await kinds(here)).count("reservation.unreserved") == 1
        assert api.objects.all("gpureservations") == {}


async def test_a_pod_with_a_gpu_that_it_did_not_ask_for_is_evicted_where_the_policy_says_so(
    tmp_path: Path, api: FakeApiServer, workload_api: InsecureWorkloadApi
) -> None:
    path = policy(tmp_path, POLICY)
    async with stage(tmp_path, api, workload_api, policy__file=path) as here:
        running(api, "greedy", requirement="memory>=900Gi")
        here.node.allocations = (allocation("greedy", GPUS[2]),)
        await here.state_of(GPUS[2], "Confirmed")

        async def told() -> bool | None:
            return [x[:2] for x in events(api)] == [("GpuMismatch", "Pod")] or None

        await eventually(told, "an Event about the pod")
        await here.node.some_rounds()
        assert "team-a/greedy" in api.objects.all("pods")
        policy(tmp_path, EVICTS)

        async def gone() -> bool | None:
            return "team-a/greedy" not in api.objects.all("pods") or None

        await eventually(gone, "the pod is evicted")
        await here.state_of(GPUS[2], "Releasing")

        async def written() -> bool | None:
            return "reservation.evicted" in await kinds(here) or None

        await eventually(written, "the eviction is in the audit log")
        assert (await kinds(here)).count("reservation.mismatch") == 1
