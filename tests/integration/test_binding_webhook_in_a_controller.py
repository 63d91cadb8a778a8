"""The binding webhook of a whole controller: from evidence to release, with objects."""

from pathlib import Path
from typing import Any

from gpuwarden.cli.app import run
from gpuwarden.cli.exit_codes import ExitCode
from gpuwarden.evidence.model import GpuProcess
from tests.builders.admission_reviews import review_json
from tests.builders.admitted_pods import container, new_pod, patched
from tests.builders.bindings import binding, binding_review
from tests.fakes.cluster import BINDINGS, GPUS, FakeCluster
from tests.fakes.eventually import eventually


async def test_from_evidence_to_release(cluster: FakeCluster) -> None:
    async with cluster.live() as here:
        uid = here.create("train-0")["metadata"]["uid"]
        given = await here.bound("train-0")
        assert given in GPUS
        await here.state_of(given, "Confirmed")
        controller = here.controller
        assert await controller.metric('gpuwarden_reservations{state="Confirmed"}') == 1
        here.agent.processes = (GpuProcess(given, 7, uid),)
        await here.agent.some_rounds()
        ended = cluster.api.objects.get("pods", "team-a/train-0")
        cluster.api.change("pods", ended | {"status": {"phase": "Succeeded"}})
        await here.state_of(given, "Releasing")
        age = "gpuwarden_reservation_releasing_oldest_seconds"
        assert await controller.metric(age) == 0
        await here.agent.some_rounds()
        await here.state_of(given, "Releasing")
        assert (await controller.metric(age) or 0) > 0
        here.agent.processes, here.agent.pods = (), (uid,)
        await here.agent.some_rounds(4)
        await here.state_of(given, "Releasing")
        here.agent.pods = ()
        await here.state_of(given, None)
        whole = ["reserved", "confirmed", "releasing", "released"]

        async def written() -> bool | None:
            kinds = [x["kind"] for x in controller.records()]
            found = [x for x in kinds if x.startswith("reservation.")]
            return found == [f"reservation.{x}" for x in whole] or None

        await eventually(written, "the whole life of the reservation is in the audit log")
        assert "bind.decision" in {x["kind"] for x in controller.records()}
    _demand_archived(controller.audit, controller.records())


def _demand_archived(audit: Path, records: list[dict[str, Any]]) -> None:
    """Each digest that a grant names can be verified again: the log is closed, all is written."""
    for kind in ("reservation.reserved", "bind.decision", "reservation.released"):
        named = {x["refs"].get("evidence", "") for x in records if x["kind"] == kind}
        (digest,) = named - {""}  # equal refusals are counted, and rest on none
        assert run(("audit", "reverify", digest[:16], "--store", str(audit))) is ExitCode.OK


async def test_each_gpu_goes_to_one_pod_and_filter_knows(cluster: FakeCluster) -> None:
    async with cluster.live() as here:
        for number in range(len(GPUS) + 1):
            here.create(f"train-{number}")
        gpus = [await here.bound(f"train-{number}") for number in range(len(GPUS))]
        assert sorted(gpus) == sorted(GPUS)
        last = f"train-{len(GPUS)}"
        refused = await here.bind(last)
        assert refused["status"]["message"].startswith("gpuwarden: GPU_BUSY ")
        waiting = cluster.api.objects.get("pods", f"team-a/{last}")
        filtered = await here.controller.filtered(waiting)
        assert filtered["NodeNames"] == []
        assert "GPU_BUSY" in filtered["FailedAndUnresolvableNodes"]["node-1"]


async def test_pods_are_evicted_for_their_gpus_once(cluster: FakeCluster) -> None:
    """No further node is emptied while the first one gives back what its victims had."""
    async with cluster.live() as here:
        names = [f"train-{number}" for number in range(len(GPUS))]
        uids = [here.create(name)["metadata"]["uid"] for name in names]
        held = {name: await here.bound(name) for name in names}
        for gpu in held.values():
            await here.state_of(gpu, "Confirmed")
        urgent = here.create("urgent")
        all_of_them = {"node-1": {"Pods": [{"UID": x} for x in uids], "NumPDBViolations": 0}}
        others = {"node-1": {"Pods": [{"UID": "another"}], "NumPDBViolations": 0}}
        preempted = here.controller.preempted
        assert await preempted(urgent, all_of_them) == all_of_them
        assert await preempted(urgent, others) == {}
        nominated = urgent | {"status": {"nominatedNodeName": "node-1"}}
        assert await preempted(nominated, all_of_them) == all_of_them
        victim = cluster.api.objects.get("pods", "team-a/train-0")
        victim["metadata"]["deletionTimestamp"] = "2026-06-01T00:00:00Z"
        cluster.api.change("pods", victim)

        async def waits() -> bool | None:
            return await preempted(nominated, all_of_them) == {} or None

        await eventually(waits, "the pod waits for its nominated node")
        assert await preempted(urgent, all_of_them) == all_of_them
        cluster.api.delete("pods", "team-a/train-0")
        await here.state_of(held["train-0"], "Releasing")
        assert await preempted(nominated, all_of_them) == {}


async def test_dry_runs_and_forgeries_reserve_nothing(cluster: FakeCluster) -> None:
    async with cluster.live() as here:
        here.create("train-0")
        await here.bound("train-0")
        here.create("train-1")
        answer = await here.bind("train-1", dryRun=True)
        assert answer["allowed"]
        forged = binding("train-1", "node-1", annotations={"gpuwarden.dev/node": "node-1"})
        for old in (False, True):
            found = await here.webhooks.post(BINDINGS, binding_review(forged, old=old))
            assert "BINDING_FORGED" in found["response"]["status"]["message"]
        assert len(cluster.api.objects.all("gpureservations")) == 1


async def test_a_pod_over_its_namespace_s_quota_is_stopped_by_filter(
    cluster: FakeCluster,
) -> None:
    quota = {"reservation__quotaPerNamespace": "1"}
    async with cluster.live(**quota) as here:
        here.create("train-0")
        await here.bound("train-0")
        waiting = here.create("train-1")
        refused = await here.bind("train-1")
        assert "QUOTA_EXCEEDED" in refused["status"]["message"]
        filtered = await here.controller.filtered(waiting)
        assert "QUOTA_EXCEEDED" in filtered["FailedAndUnresolvableNodes"]["node-1"]


async def test_without_keys_nothing_is_reserved(cluster: FakeCluster) -> None:
    async with cluster.live(admission__idKeys=None) as here:
        here.create("train-0")

        async def said() -> bool | None:
            answer = await here.bind("train-0")
            return "admission.idKeys is not set" in answer["status"]["message"] or None

        await eventually(said, "the refusal says what is missing")
        assert cluster.api.objects.all("gpureservations") == {}


async def test_a_pod_that_requests_a_gpu_where_no_node_gives_one_to_kubelet_is_reported_so(
    cluster: FakeCluster,
) -> None:
    pod = patched(new_pod(container(gpus=1)))
    async with cluster.live() as on:
        answer = await on.webhooks.post("/validate/pods/enforced", review_json(pod))
    status = answer["response"]["status"]
    assert status["code"] == 403
    assert "NODE_MODE no node gives GPUs to a container that requests" in status["message"]
