"""A whole controller with the Kubernetes API: what it takes from there, what it does without."""

import asyncio
import json
import math
import re
from dataclasses import replace
from typing import Any

import aiohttp

from controller.fleet.enrollment import QuarantineEntry
from controller.kube.api.resources import LEASE_NAME
from controller.kube.objects.enrollments import enrollment_spec, read_enrollment
from gpuwarden.wire.v1 import attestation_pb2 as pb
from tests.builders.pods import gpu_pod
from tests.fakes.attest_client import Ended
from tests.fakes.cluster import FakeCluster
from tests.fakes.eventually import eventually


async def test_nodes_come_from_the_api_and_enrolled_gpus_go_there(cluster: FakeCluster) -> None:
    async with cluster.controller(metrics__fleet="true") as here:
        async with here.client() as node:
            await here.reason("list of", wanted=False)
            await node.accepted()
            assert await here.metric('gpuwarden_nodes{state="eligible"}') == 1
            kept = cluster.api.objects.get("nodeenrollments", "node-1")
            _, record = read_enrollment(json.dumps(kept).encode())
            assert record.instance == node.instance
            assert record.node_uid == cluster.api.objects.get("nodes", "node-1")["metadata"]["uid"]
            assert record.gpus
            assert await here.refusal("node-2") == "NODE_UNKNOWN"
            cluster.api.create("nodes", {"metadata": {"name": "node-2"}})

            async def admitted() -> bool | None:
                async with here.client("node-2") as other:
                    await other.hello()
                    return not isinstance(await other.read(), Ended) or None

            await eventually(admitted, "the new node is admitted")
            requirement = gpu_pod(**{"gpuwarden.dev/min-level": "L0"})
            await here.passes(requirement, ["node-1"], "placement")
            assert 'node="node-1"' in (await here.get("/metrics/fleet"))[1]
            cluster.api.delete("nodes", "node-1")

            async def refused() -> bool | None:
                return await here.refusal("node-1") == "NODE_UNKNOWN" or None

            await eventually(refused, "the deleted node is refused")
        for state in ("eligible", "stale", "revoked", "refused"):
            await here.metric_is(f'gpuwarden_nodes{{state="{state}"}}', 0)
        assert await here.metric('gpuwarden_gpus{state="usable"}') == 0
        assert 'node="node-1"' not in (await here.get("/metrics/fleet"))[1]
        assert (await here.filtered(requirement))["NodeNames"] == []
        assert await here.metric('gpuwarden_kube_objects{resource="nodes"}') == 1
        assert await here.metric('gpuwarden_kube_age_seconds{resource="nodes"}') is not None


async def test_without_the_webhooks_no_ledger_is_missed(cluster: FakeCluster) -> None:
    async with cluster.controller() as here:
        found = await here.metric("gpuwarden_ledger_available")
        assert found is not None
        assert math.isnan(found)


async def test_placement_goes_on_without_the_api_and_nothing_is_granted_on_stale_facts(
    cluster: FakeCluster,
) -> None:
    async with cluster.controller() as here, here.client() as node:
        requirement = gpu_pod(**{"gpuwarden.dev/min-level": "L0"})
        verdict = await node.accepted()
        here.clock.ahead_ns += 43_000_000_000
        await here.passes(requirement, ["node-1"], "placement")
        await cluster.api.stop()
        await asyncio.sleep(0)
        await here.passes(requirement, ["node-1"], "placement without the API server")
        here.clock.ahead_ns += 46_000_000_000
        await here.reason("the list of nodes are too old")
        await here.reason("the enrollments are too old")
        assert await here.refusal("node-1") == "ENROLLMENT_STALE"
        await here.passes(requirement, ["node-1"], "placement from what was verified before")
        here.clock.ahead_ns += 2_000_000_000
        await here.passes(requirement, [], "the lease has ended")
        await cluster.api.start()
        await here.reason("too old", wanted=False)
        async with here.client() as again:
            again.instance = node.instance
            renewed = await again.accepted()
        assert renewed.attestation_hash == verdict.attestation_hash
        await here.passes(requirement, ["node-1"], "placement again")


async def test_a_watch_that_is_down_is_a_warning_although_nothing_else_is_wrong(
    cluster: FakeCluster,
) -> None:
    async with cluster.controller() as here:
        here.clock.ahead_ns += 43_000_000_000

        async def is_ready() -> bool | None:
            return not await here.reasons() or None

        await eventually(is_ready, "it is ready")
        assert not [x for x in await here.warnings() if x.startswith("kubernetes:")]
        for _ in range(1000):
            cluster.api.fail_next(503, matching="/api/v1/pods")
        cluster.api.drop_watches()
        here.clock.ahead_ns += 91_000_000_000

        async def only_pods() -> bool | None:
            found = [x for x in await here.warnings() if x.startswith("kubernetes:")]
            told = r"kubernetes: the watch of pods was last heard 13\d s ago \(.+\)"
            return [bool(re.fullmatch(told, x)) for x in found] == [True] or None

        await eventually(only_pods, "the watch of pods is a warning")
        await eventually(is_ready, "it is ready all the same")


async def test_it_starts_without_the_api_and_says_so(cluster: FakeCluster) -> None:
    await cluster.api.stop()
    async with cluster.controller() as here:
        await here.reason("the list of nodes are too old")
        await here.reason("the enrollments are too old")
        assert await here.refusal("node-1") == "ENROLLMENT_STALE"
        await here.metric_is("gpuwarden_store_available", 0)
        await cluster.api.start()
        await here.reason("too old", wanted=False)
        async with here.client() as node:
            await node.accepted()
        await here.metric_is("gpuwarden_store_available", 1)


async def test_a_quarantine_by_another_replica_counts_and_is_reported(
    cluster: FakeCluster,
) -> None:
    workload = gpu_pod("strict")
    workload["metadata"]["name"] = "train-0"
    workload["spec"]["nodeName"] = "node-1"
    cluster.api.create("pods", workload)
    async with cluster.controller() as here, here.client() as node:

        async def leads() -> bool | None:
            return await here.metric("gpuwarden_leader") == 1 or None

        await eventually(leads, "it leads")
        await node.accepted()
        kept = cluster.api.objects.get("nodeenrollments", "node-1")
        _, record = read_enrollment(json.dumps(kept).encode())
        denial = QuarantineEntry("DUPLICATE_AGENT", "two\x1b[31m of them", "controller", 1)
        kept["spec"] = enrollment_spec(replace(record, denial=denial))
        cluster.api.change("nodeenrollments", kept)
        told = await cluster.events("NodeQuarantined")
        assert {x["regarding"]["kind"] for x in told} <= {"Node", "Pod"}
        assert await here.refusal("node-1") == "NODE_DENIED"

        async def both() -> bool | None:
            found = cluster.api.objects.all("events").values()
            kinds = {x["regarding"]["kind"] for x in found if x["reason"] == "NodeQuarantined"}
            return kinds == {"Node", "Pod"} or None

        await eventually(both, "node and pod are told")
        assert all("\x1b" not in x["note"] for x in told)
        lease = cluster.api.objects.get("leases", f"gpuwarden-system/{LEASE_NAME}")
        assert lease["spec"]["holderIdentity"].startswith("controller-0_")
    lease = cluster.api.objects.get("leases", f"gpuwarden-system/{LEASE_NAME}")
    assert lease["spec"]["holderIdentity"] == ""


async def test_refused_evidence_is_reported_on_the_node(cluster: FakeCluster) -> None:
    async with cluster.controller() as here, here.client() as node:

        async def leads() -> bool | None:
            return await here.metric("gpuwarden_leader") == 1 or None

        await eventually(leads, "it leads")
        await node.accepted()
        async with here.client() as bad:
            bad.instance = node.instance
            challenge = await bad.admitted()
            await bad.answer(challenge, audience="somebody-else")
            verdict = await bad.read()
            assert isinstance(verdict, Ended) or verdict.verdict.outcome != pb.OUTCOME_ACCEPTED
        (event,) = await cluster.events("EvidenceRefused")
        assert "AUDIENCE_MISMATCH" in event["note"]
        assert event["regarding"]["name"] == "node-1"


async def test_enforced_namespaces_guard_their_gpu_pods(cluster: FakeCluster) -> None:
    async with cluster.controller() as here, here.client() as node:
        await node.accepted()
        here.clock.ahead_ns += 43_000_000_000
        await here.passes(gpu_pod("strict"), ["node-1"], "enforced")
        assert (await here.filtered(gpu_pod("plain")))["NodeNames"] == ["node-1", "node-2"]
        assert (await here.filtered(gpu_pod("nobody-knows-it")))["NodeNames"] == ["node-1"]
        plain = cluster.api.objects.get("namespaces", "plain")
        plain["metadata"]["labels"] = {"gpuwarden.dev/enforce": "true"}
        cluster.api.change("namespaces", plain)
        await here.passes(gpu_pod("plain"), ["node-1"], "newly enforced")


async def test_events_can_be_switched_off(cluster: FakeCluster) -> None:
    async with (
        cluster.controller(kubernetes__events="false") as here,
        here.client() as node,
    ):
        await node.accepted()
        here.clock.ahead_ns += 100_000_000_000

        async def stale() -> bool | None:
            return await here.metric('gpuwarden_nodes{state="stale"}') == 1 or None

        await eventually(stale, "the lease has ended")
        await asyncio.sleep(0.05)
    assert cluster.api.objects.all("events") == {}


async def test_a_waiting_pod_is_woken_when_a_node_s_evidence_helps_it(
    cluster: FakeCluster,
) -> None:
    waiting = gpu_pod(**{"gpuwarden.dev/min-level": "L0"})
    async with cluster.controller() as here, here.client() as node:
        here.clock.ahead_ns += 43_000_000_000
        await here.reason("list of", wanted=False)
        await here.passes(waiting, [], "the node has shown nothing yet")
        await node.accepted()
        cluster.api.create("pods", waiting)
        metadata = waiting["metadata"]
        key = f"{metadata['namespace']}/{metadata['name']}"

        async def woken() -> bool | None:
            stored = cluster.api.objects.get("pods", key)["metadata"]
            return "requeued.gpuwarden.dev/at" in stored["annotations"] or None

        await eventually(woken, "the pod is woken")
        assert "annotations" not in cluster.api.objects.get("nodes", "node-1")["metadata"]
        await here.passes(waiting, ["node-1"], "placement")


def policy(spec: dict[str, Any], generation: int = 1) -> dict[str, Any]:
    return {"metadata": {"name": "cluster", "generation": generation}, "spec": spec}


async def says(port: int, text: str) -> None:
    """The reason why the controller is not ready, before it says where it listens."""

    async def there() -> bool | None:
        url = f"http://127.0.0.1:{port}/readyz"
        try:
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                return text in await answer.text() or None
        except aiohttp.ClientError:
            return None

    await eventually(there, text)


async def test_the_cluster_s_policy_counts_and_no_agent_is_heard_before_it_is_known(
    cluster: FakeCluster, own_port: int
) -> None:
    objects, port = "attestationpolicies", own_port
    is_open = asyncio.Event()

    async def write_late() -> bool:
        await says(port, "policy: AttestationPolicy/cluster: got nothing")
        opened = is_open.is_set()
        cluster.api.create(objects, policy({"minLevel": "L0"}))
        return opened

    def change(spec: dict[str, Any], generation: int) -> None:
        cluster.api.change(
            objects, {**cluster.api.objects.get(objects, "cluster"), **policy(spec, generation)}
        )

    async def told(status: str) -> None:
        async def there() -> bool | None:
            found = cluster.api.objects.get(objects, "cluster").get("status", {"conditions": [{}]})
            return found["conditions"][0].get("status") == status or None

        await eventually(there, f"accepted: {status}")

    writing = asyncio.create_task(write_late())
    changes = {"policy__source": "cluster", "listen__ops": f"127.0.0.1:{port}"}
    async with cluster.controller(**changes) as here, here.client() as node:
        is_open.set()
        assert await writing is False
        requirement = gpu_pod(**{"gpuwarden.dev/min-level": "L0"})
        await node.accepted()
        here.clock.ahead_ns += 43_000_000_000
        await here.passes(requirement, ["node-1"], "placement")
        await told("True")
        change({"minLevel": "L1"}, 2)
        await here.passes(requirement, [], "the new policy demands more")
        change({"minLevel": "L0", "labels": {"big": "huh"}}, 3)
        await told("False")
        await here.passes(requirement, [], "a wrong policy changes nothing")
        cluster.api.delete(objects, "cluster")
        await here.passes(requirement, [], "nor does a deleted one")
    records = here.records()
    taken = [x["refs"]["policy"] for x in records if x["subject"] == "policy"]
    assert len(taken) == len(set(taken)) == 2


async def test_it_ends_while_it_waits_for_a_policy(cluster: FakeCluster, own_port: int) -> None:
    port, stop = own_port, asyncio.Event()

    async def end() -> None:
        await says(port, "policy: AttestationPolicy/cluster: got nothing")
        stop.set()

    ending = asyncio.create_task(end())
    changes = {"policy__source": "cluster", "listen__ops": f"127.0.0.1:{port}"}
    async with cluster.controller(stop=stop, **changes) as here:
        await ending
    assert here.task.result() == 0
