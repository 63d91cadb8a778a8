"""Evidence of a plugin node in a whole controller: records, Events, metrics, evictions."""

from pathlib import Path
from typing import Any

from grpc import aio

from gpuwarden.evidence.model import Allocation, GpuProcess
from gpuwarden.wire.v1 import fleet_pb2, fleet_pb2_grpc, placement_pb2, placement_pb2_grpc
from tests.builders.admitted_pods import container, new_pod
from tests.builders.inventory import gpu, inventory, lost_gpu, mig_device, mig_uuid
from tests.fakes.cluster import GPUS, FakeCluster, LiveCluster
from tests.fakes.eventually import eventually
from tests.hang import HANG_S

POLICY = """\
apiVersion: config.gpuwarden.dev/v1alpha1
kind: Policy
defaultMode: plugin
"""
EVICTS = f"{POLICY}evictMismatched: true\n"


def policy(folder: Path, text: str) -> str:
    path = folder / "plugin-policy.yaml"
    path.write_text(text)
    return str(path)


def allocation(pod: str, gpu: str, namespace: str = "team-a") -> Allocation:
    return Allocation(namespace, pod, "main", "nvidia.com/gpu", gpu)


def running(cluster: FakeCluster, name: str, requirement: str = "memory>=1Gi") -> str:
    """A managed pod that was bound to node-1; its UID."""
    annotations = {"gpuwarden.dev/gpu-selector": requirement}
    document: dict[str, Any] = new_pod(container(gpus=1), annotations=annotations)
    document["metadata"] |= {"name": name, "namespace": "team-a"}
    document["spec"]["nodeName"] = "node-1"
    uid: str = cluster.api.create("pods", document)["metadata"]["uid"]
    return uid


def events(cluster: FakeCluster) -> list[tuple[str, str, str]]:
    found = cluster.api.objects.all("events").values()
    return sorted((x["reason"], x["regarding"]["kind"], x["note"]) for x in found)


async def kinds(here: LiveCluster) -> list[str]:
    found = [x["kind"] for x in here.controller.records()]
    return [x for x in found if x.startswith("reservation.")]


async def test_kubelet_s_choice_becomes_a_record_and_ends_as_one(cluster: FakeCluster) -> None:
    settings = {"policy__file": policy(cluster.folder, POLICY), "metrics__fleet": "true"}
    async with cluster.live(**settings) as here:
        uid = running(cluster, "train-0")
        here.agent.allocations = (allocation("train-0", GPUS[1]),)
        here.agent.processes = (GpuProcess(GPUS[1], 7, uid),)
        await here.state_of(GPUS[1], "Confirmed")
        (kept,) = cluster.api.objects.all("gpureservations").values()
        (holder,) = kept["spec"]["holders"]
        assert (kept["spec"]["node"], holder["origin"]) == ("node-1", "kubelet")
        assert (holder["pod"]["uid"], holder["gpus"]) == (uid, [GPUS[1]])
        await here.agent.some_rounds()
        assert events(cluster) == []
        _, page = await here.controller.get("/metrics/fleet")
        assert f'gpuwarden_gpu_use{{UUID="{GPUS[1]}",use="used"}} 1' in page
        assert 'gpuwarden_namespace_idle_gpus{namespace="team-a"} 0' in page
        ended = cluster.api.objects.get("pods", "team-a/train-0")
        cluster.api.change("pods", ended | {"status": {"phase": "Succeeded"}})
        await here.state_of(GPUS[1], "Releasing")
        await here.agent.some_rounds()
        await here.state_of(GPUS[1], "Releasing")
        here.agent.processes = ()
        here.agent.allocations = (allocation("other", "pool/nic-0"),)
        await here.state_of(GPUS[1], None)

        async def whole() -> bool | None:
            expected = [f"reservation.{x}" for x in ("allocated", "releasing", "released")]
            return [x for x in await kinds(here) if x in expected] == expected or None

        await eventually(whole, "the record's life is in the audit log")


async def test_unreserved_use_is_reported_once(cluster: FakeCluster) -> None:
    settings = {"policy__file": policy(cluster.folder, POLICY), "metrics__fleet": "true"}
    async with cluster.live(**settings) as here:
        here.agent.allocations = (allocation("plain", GPUS[0], "team-b"),)
        note = f"{GPUS[0]} is used by pod team-b/plain, and no reservation explains it"

        async def told() -> bool | None:
            return events(cluster) == [("GpuUnreservedUse", "Node", f"gpuwarden: {note}")] or None

        await eventually(told, "an Event about the node")
        await here.agent.some_rounds(4)
        assert await told()
        assert "count" not in str(cluster.api.objects.all("events"))
        assert (await kinds(here)).count("reservation.unreserved") == 1
        controller = here.controller
        assert await controller.metric('gpuwarden_gpu_use_faults{kind="unreserved_use"}') == 1
        _, page = await controller.get("/metrics/fleet")
        assert f'gpuwarden_gpu_use{{UUID="{GPUS[0]}",use="unreserved"}} 1' in page
        assert f'gpuwarden_gpu_use{{UUID="{GPUS[1]}",use="free"}} 1' in page
        here.agent.allocations = None
        await here.agent.some_rounds(4)
        assert await controller.metric('gpuwarden_gpu_use_faults{kind="unreserved_use"}') == 1
        here.agent.allocations = (allocation("other", "pool/nic-0"),)

        async def over() -> bool | None:
            found = await controller.metric('gpuwarden_gpu_use_faults{kind="unreserved_use"}')
            return found == 0 or None

        await eventually(over, "it is over")
        assert (await kinds(here)).count("reservation.unreserved") == 1
        assert cluster.api.objects.all("gpureservations") == {}


async def test_pods_are_told_once_that_a_gpu_has_failed_of_which_they_have_a_part(
    cluster: FakeCluster,
) -> None:
    """A whole GPU, time slices and a MIG device, by what kubelet gave."""
    split = gpu(2, mig=True, mig_devices=(mig_device(1), mig_device(2)))
    async with cluster.live(policy__file=policy(cluster.folder, POLICY)) as here:
        here.agent.inventory = inventory(gpu(0), gpu(1), split)
        parts = {
            "train-0": GPUS[0],
            "slice-0": f"{GPUS[1]}::0",
            "slice-1": f"{GPUS[1]}::1",
            "part-0": mig_uuid(1),
        }
        for name in parts:
            running(cluster, name)
        here.agent.allocations = tuple(allocation(name, x) for name, x in parts.items())
        for uuid in (GPUS[0], GPUS[1], mig_uuid(1)):
            await here.state_of(uuid, "Confirmed")
        here.agent.inventory = inventory(gpu(0), lost=(lost_gpu(1), lost_gpu(2)))

        async def told() -> dict[str, str] | None:
            found = {
                x["regarding"]["name"]: x["note"].partition(": its ")[2]
                for x in cluster.api.objects.all("events").values()
                if (x["reason"], x["regarding"]["kind"]) == ("GpuLost", "Pod")
            }
            return found if len(found) == 3 else None

        cure = "does not answer; delete the pod. Details: gpuwarden why team-a"
        assert await eventually(told, "the pods are told") == {
            "slice-0": f"GPU {GPUS[1]} {cure}/slice-0",
            "slice-1": f"GPU {GPUS[1]} {cure}/slice-1",
            "part-0": f"MIG device {mig_uuid(1)} of {GPUS[2]} {cure}/part-0",
        }
        await here.agent.some_rounds()
        found = cluster.api.objects.all("events").values()
        on_pods = [x for x in found if x["regarding"]["kind"] == "Pod"]
        assert len(on_pods) == 3
        assert "count" not in str(on_pods)


async def test_a_deleted_node_s_use_ends_and_its_pod_keeps_reservation_and_trace(
    cluster: FakeCluster,
) -> None:
    async with cluster.live(policy__file=policy(cluster.folder, POLICY)) as here:
        running(cluster, "train-0")
        plain = allocation("plain", GPUS[0], "team-b")
        here.agent.allocations = (plain, allocation("train-0", GPUS[1]))
        await here.state_of(GPUS[1], "Confirmed")
        faults = 'gpuwarden_gpu_use_faults{kind="unreserved_use"}'
        await here.controller.metric_is(faults, 1)
        cluster.api.delete("nodes", "node-1")
        await here.controller.metric_is(faults, 0)
        await here.state_of(GPUS[1], "Releasing")
        async with aio.insecure_channel(f"unix:{here.controller.addresses.local}") as channel:
            placement: Any = placement_pb2_grpc.PlacementServiceStub(channel)
            asked = placement_pb2.ExplainPodRequest(namespace="team-a", name="train-0")
            trace = await placement.ExplainPod(asked, timeout=HANG_S)
            fleet: Any = fleet_pb2_grpc.FleetServiceStub(channel)
            listed = await fleet.ListNodes(fleet_pb2.ListNodesRequest(), timeout=HANG_S)
        by_node = {x.name: x.state for x in trace.stages if x.source == "evidence of node-1"}
        assert by_node == {"kubelet": "reached", "nvml": "waiting"}
        assert list(listed.nodes) == []


async def test_in_report_mode_no_use_is_called_unreserved(cluster: FakeCluster) -> None:
    """Nothing is reserved, so nobody can tell."""
    path = policy(cluster.folder, POLICY)
    settings = {"policy__file": path, "metrics__fleet": "true", "enforcement": "report"}
    async with cluster.live(**settings) as here:
        uid = running(cluster, "train-0")
        here.agent.allocations = (allocation("train-0", GPUS[1]),)
        here.agent.processes = (GpuProcess(GPUS[1], 7, uid),)
        await here.agent.some_rounds(4)
        _, page = await here.controller.get("/metrics/fleet")
        assert f'gpuwarden_gpu_info{{UUID="{GPUS[1]}"' in page
        assert "gpuwarden_gpu_use{" not in page
        assert cluster.api.objects.all("gpureservations") == {}
        assert events(cluster) == []


async def test_unreserved_use_has_its_begin_from_before_a_restart(cluster: FakeCluster) -> None:
    settings = {"policy__file": policy(cluster.folder, POLICY)}
    gauge = 'gpuwarden_gpu_use_faults{kind="unreserved_use"}'
    async with cluster.live(**settings) as here:
        here.agent.allocations = (allocation("plain", GPUS[0], "team-b"),)
        await here.controller.metric_is(gauge, 1)
    async with cluster.live(**settings) as here:
        here.agent.allocations = (allocation("plain", GPUS[0], "team-b"),)
        await here.controller.metric_is(gauge, 1)
        here.agent.allocations = (allocation("other", "pool/nic-0"),)
        await here.controller.metric_is(gauge, 0)
    (begun,) = (x for x in here.controller.records() if x["kind"] == "reservation.unreserved")
    (ended,) = (x for x in here.controller.records() if x["kind"] == "use.ended")
    assert ended["decision"] == "unreserved_use"
    assert (ended["subject"], ended["refs"]) == (begun["subject"], begun["refs"])
    assert int(begun["refs"]["sinceMs"]) > 0


async def test_a_pod_with_a_gpu_that_it_did_not_ask_for_is_evicted_where_the_policy_says_so(
    cluster: FakeCluster,
) -> None:
    path = policy(cluster.folder, POLICY)
    async with cluster.live(policy__file=path) as here:
        running(cluster, "greedy", requirement="memory>=900Gi")
        here.agent.allocations = (allocation("greedy", GPUS[2]),)
        await here.state_of(GPUS[2], "Confirmed")

        async def told() -> bool | None:
            return [x[:2] for x in events(cluster)] == [("GpuMismatch", "Pod")] or None

        await eventually(told, "an Event about the pod")
        await here.agent.some_rounds()
        assert "team-a/greedy" in cluster.api.objects.all("pods")
        policy(cluster.folder, EVICTS)

        async def gone() -> bool | None:
            return "team-a/greedy" not in cluster.api.objects.all("pods") or None

        await eventually(gone, "the pod is evicted")
        await here.state_of(GPUS[2], "Releasing")

        async def written() -> bool | None:
            return "reservation.evicted" in await kinds(here) or None

        await eventually(written, "the eviction is in the audit log")
        assert (await kinds(here)).count("reservation.mismatch") == 1
