"""A whole controller with the Kubernetes API: what it takes from there, what it does without."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from controller.fleet.enrollment import QuarantineEntry
from controller.kube.enrollments import enrollment_spec, read_enrollment
from controller.kube.resources import CALLS, LEASE_NAME
from controller.kube.transport import Transport
from gpuwarden.clock import SystemClock
from gpuwarden.wire.v1 import attestation_pb2 as pb
from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.builders.kube_access import in_cluster
from tests.builders.svids import new_svid
from tests.fakes.api_server import FakeApiServer, place_of
from tests.fakes.attest_client import AttestClient, Ended
from tests.fakes.eventually import DEADLINE_S, eventually
from tests.integration.test_controller_app import Running, _restored_logging, _running

__all__ = ["_restored_logging"]
"""A fixture that is used by every test of the module where it stands."""

TD = "example.org"
CONTROLLER = f"spiffe://{TD}/gpuwarden/controller"
ROUNDS = {
    "attestation__interval": "25s",
    "attestation__challengeTtl": "15s",
    "attestation__lease": "90s",
    "kubernetes__staleAfter": "45s",
    "kubernetes__namespace": "gpuwarden-system",
}


class JumpingClock(SystemClock):
    """The machine's, moved forward by a test."""

    ahead_ns = 0

    def boottime_ns(self) -> int:
        return super().boottime_ns() + self.ahead_ns

    def wall_ns(self) -> int:
        return super().wall_ns() + self.ahead_ns


@dataclass
class Replica:
    """A controller, whatever API server it has."""

    controller: Running
    clock: JumpingClock
    ca: Any

    def client(self, node: str = "node-1") -> AttestClient:
        port = int(self.controller.addresses.agents.rpartition(":")[2])
        svid = new_svid(self.ca, f"spiffe://{TD}/gpuwarden/agent/{node}")
        return AttestClient(svid, port, node=node)

    async def filtered(self, pod: dict[str, Any]) -> dict[str, Any]:
        body = {"Pod": pod, "Nodes": None, "NodeNames": ["node-1", "node-2"]}
        url = f"http://{self.controller.addresses.extender}/filter"
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
            found: dict[str, Any] = await answer.json()
            return found

    async def passes(self, pod: dict[str, Any], nodes: list[str], what: str) -> None:
        async def there() -> bool | None:
            return (await self.filtered(pod))["NodeNames"] == nodes or None

        await eventually(there, what)

    async def reason(self, text: str, *, wanted: bool = True, within_s: float = DEADLINE_S) -> None:
        async def there() -> bool | None:
            found = any(text in x for x in await self.controller.reasons())
            return found is wanted or None

        await eventually(there, f"{text}: {wanted}", within_s=within_s)

    async def refusal(self, node: str) -> str | None:
        """Of a stream that is not admitted."""
        async with self.client(node) as client:
            await client.hello()
            return (await client.ended()).reason


@dataclass
class World(Replica):
    api: FakeApiServer

    async def events(self, reason: str) -> list[dict[str, Any]]:
        async def there() -> list[dict[str, Any]] | None:
            found = self.api.objects.all("events").values()
            return [x for x in found if x["reason"] == reason] or None

        return await eventually(there, f"an Event {reason}")


@pytest.fixture
def workload_api(tmp_path: Path) -> Iterator[InsecureWorkloadApi]:
    with InsecureWorkloadApi(tmp_path, TD) as api:
        yield api


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[FakeApiServer]:
    made = FakeApiServer(tmp_path)
    await made.start()
    made.create("nodes", {"metadata": {"name": "node-1"}})
    for name, labels in (("plain", {}), ("strict", {"gpuwarden.dev/enforce": "true"})):
        made.create("namespaces", {"metadata": {"name": name, "labels": labels}})
    yield made
    await made.stop()


@asynccontextmanager
async def world(
    folder: Path, api: FakeApiServer, workload_api: InsecureWorkloadApi, **changes: Any
) -> AsyncIterator[World]:
    socket = workload_api.add("controller", CONTROLLER)
    exchange = Transport(in_cluster(folder / "sa", api), SystemClock())
    clock = JumpingClock()
    values: dict[str, Any] = {**ROUNDS, **changes}
    async with _running(folder, socket, clock=clock, exchange=exchange, **values) as controller:
        yield World(controller, clock, workload_api.ca, api)
    made = {(verb, place_of(path.partition("?")[0]).collection) for verb, path in api.requests}
    assert made <= {(x.verb.value, x.resource.plural) for x in CALLS}


def pod(namespace: str = "plain", **annotations: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "namespace": namespace, "annotations": annotations},
        "spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
    }


async def test_nodes_come_from_the_api_and_pins_go_there(
    tmp_path: Path, api: FakeApiServer, workload_api: InsecureWorkloadApi
) -> None:
    async with world(tmp_path, api, workload_api) as here, here.client() as node:
        await here.reason("list of", wanted=False)
        await node.accepted()
        kept = api.objects.get("nodeenrollments", "node-1")
        _, record = read_enrollment(json.dumps(kept).encode())
        assert record.instance == node.instance
        assert record.node_uid == api.objects.get("nodes", "node-1")["metadata"]["uid"]
        assert record.gpus
        assert await here.refusal("node-2") == "NODE_UNKNOWN"
        api.create("nodes", {"metadata": {"name": "node-2"}})

        async def admitted() -> bool | None:
            async with here.client("node-2") as other:
                await other.hello()
                return not isinstance(await other.read(), Ended) or None

        await eventually(admitted, "the new node is admitted")
        api.delete("nodes", "node-1")

        async def refused() -> bool | None:
            return await here.refusal("node-1") == "NODE_UNKNOWN" or None

        await eventually(refused, "the deleted node is refused")
        assert await here.controller.metric('gpuwarden_kube_objects{resource="nodes"}') == 1
        assert (
            await here.controller.metric('gpuwarden_kube_age_seconds{resource="nodes"}') is not None
        )


async def test_placement_goes_on_without_the_api_and_nothing_is_granted_on_stale_facts(
    tmp_path: Path, api: FakeApiServer, workload_api: InsecureWorkloadApi
) -> None:
    async with world(tmp_path, api, workload_api) as here, here.client() as node:
        requirement = pod(**{"gpuwarden.dev/min-level": "L0"})
        verdict = await node.accepted()
        here.clock.ahead_ns += 43_000_000_000
        await here.passes(requirement, ["node-1"], "placement")
        await api.stop()
        await asyncio.sleep(0)
        await here.passes(requirement, ["node-1"], "placement without the API server")
        here.clock.ahead_ns += 46_000_000_000
        await here.reason("the list of nodes are too old")
        await here.reason("the enrollments are too old")
        assert await here.refusal("node-1") == "ENROLLMENT_STALE"
        await here.passes(requirement, ["node-1"], "placement from what was verified before")
        here.clock.ahead_ns += 2_000_000_000
        await here.passes(requirement, [], "the lease has ended")
        await api.start()
        await here.reason("too old", wanted=False)
        async with here.client() as again:
            again.instance = node.instance
            renewed = await again.accepted()
        assert renewed.attestation_hash == verdict.attestation_hash
        await here.passes(requirement, ["node-1"], "placement again")


async def test_it_starts_without_the_api_and_says_so(
    tmp_path: Path, api: FakeApiServer, workload_api: InsecureWorkloadApi
) -> None:
    await api.stop()
    async with world(tmp_path, api, workload_api) as here:
        await here.reason("the list of nodes are too old")
        await here.reason("the enrollments are too old")
        assert await here.refusal("node-1") == "ENROLLMENT_STALE"
        assert await here.controller.metric("gpuwarden_store_available") == 0
        await api.start()
        await here.reason("too old", wanted=False)
        async with here.client() as node:
            await node.accepted()
        assert await here.controller.metric("gpuwarden_store_available") == 1


async def test_a_denial_of_another_replica_takes_the_node_out_and_is_told(
    tmp_path: Path, api: FakeApiServer, workload_api: InsecureWorkloadApi
) -> None:
    workload = pod("strict")
    workload["metadata"]["name"] = "train-0"
    workload["spec"]["nodeName"] = "node-1"
    api.create("pods", workload)
    async with world(tmp_path, api, workload_api) as here, here.client() as node:

        async def leads() -> bool | None:
            return await here.controller.metric("gpuwarden_leader") == 1 or None

        await eventually(leads, "it leads")
        await node.accepted()
        kept = api.objects.get("nodeenrollments", "node-1")
        _, record = read_enrollment(json.dumps(kept).encode())
        denial = QuarantineEntry("DUPLICATE_AGENT", "two\x1b[31m of them", "controller", 1)
        kept["spec"] = enrollment_spec(replace(record, denial=denial))
        api.change("nodeenrollments", kept)
        told = await here.events("NodeQuarantined")
        assert {x["regarding"]["kind"] for x in told} <= {"Node", "Pod"}
        assert await here.refusal("node-1") == "NODE_DENIED"

        async def both() -> bool | None:
            found = api.objects.all("events").values()
            kinds = {x["regarding"]["kind"] for x in found if x["reason"] == "NodeQuarantined"}
            return kinds == {"Node", "Pod"} or None

        await eventually(both, "node and pod are told")
        assert all("\x1b" not in x["note"] for x in told)
        lease = api.objects.get("leases", f"gpuwarden-system/{LEASE_NAME}")
        assert lease["spec"]["holderIdentity"].startswith("controller-0_")
    lease = api.objects.get("leases", f"gpuwarden-system/{LEASE_NAME}")
    assert lease["spec"]["holderIdentity"] == ""


async def test_refused_evidence_is_told_on_the_node(
    tmp_path: Path, api: FakeApiServer, workload_api: InsecureWorkloadApi
) -> None:
    async with world(tmp_path, api, workload_api) as here, here.client() as node:

        async def leads() -> bool | None:
            return await here.controller.metric("gpuwarden_leader") == 1 or None

        await eventually(leads, "it leads")
        await node.accepted()
        async with here.client() as bad:
            bad.instance = node.instance
            challenge = await bad.admitted()
            await bad.answer(challenge, audience="somebody-else")
            verdict = await bad.read()
            assert isinstance(verdict, Ended) or verdict.verdict.outcome != pb.OUTCOME_ACCEPTED
        (event,) = await here.events("EvidenceRefused")
        assert "AUDIENCE_MISMATCH" in event["note"]
        assert event["regarding"]["name"] == "node-1"


async def test_enforced_namespaces_guard_their_gpu_pods(
    tmp_path: Path, api: FakeApiServer, workload_api: InsecureWorkloadApi
) -> None:
    async with world(tmp_path, api, workload_api) as here, here.client() as node:
        await node.accepted()
        here.clock.ahead_ns += 43_000_000_000
        await here.passes(pod("strict"), ["node-1"], "enforced")
        assert (await here.filtered(pod("plain")))["NodeNames"] == ["node-1", "node-2"]
        assert (await here.filtered(pod("nobody-knows-it")))["NodeNames"] == ["node-1"]
        plain = api.objects.get("namespaces", "plain")
        plain["metadata"]["labels"] = {"gpuwarden.dev/enforce": "true"}
        api.change("namespaces", plain)
        await here.passes(pod("plain"), ["node-1"], "newly enforced")


async def test_events_can_be_switched_off(
    tmp_path: Path, api: FakeApiServer, workload_api: InsecureWorkloadApi
) -> None:
    async with (
        world(tmp_path, api, workload_api, kubernetes__events="false") as here,
        here.client() as node,
    ):
        await node.accepted()
        here.clock.ahead_ns += 100_000_000_000

        async def stale() -> bool | None:
            return await here.controller.metric('gpuwarden_nodes{state="stale"}') == 1 or None

        await eventually(stale, "the lease has ended")
        await asyncio.sleep(0.05)
    assert api.objects.all("events") == {}


async def test_a_node_is_touched_when_its_evidence_helps_a_waiting_pod(
    tmp_path: Path, api: FakeApiServer, workload_api: InsecureWorkloadApi
) -> None:
    waiting = pod(**{"gpuwarden.dev/min-level": "L0"})
    async with world(tmp_path, api, workload_api) as here, here.client() as node:
        here.clock.ahead_ns += 43_000_000_000
        await here.reason("list of", wanted=False)
        await here.passes(waiting, [], "the node has shown nothing yet")
        await node.accepted()
        assert "annotations" not in api.objects.get("nodes", "node-1")["metadata"]
        api.create("pods", waiting)

        async def touched() -> bool | None:
            metadata = api.objects.get("nodes", "node-1")["metadata"]
            return "gpuwarden.dev/requeued" in metadata.get("annotations", {}) or None

        await eventually(touched, "the node is touched")
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
    tmp_path: Path, api: FakeApiServer, workload_api: InsecureWorkloadApi
) -> None:
    objects, port = "attestationpolicies", free_port()
    is_open = asyncio.Event()

    async def write_late() -> bool:
        await says(port, "policy: AttestationPolicy/cluster: missing")
        opened = is_open.is_set()
        api.create(objects, policy({"minLevel": "L0"}))
        return opened

    def change(spec: dict[str, Any], generation: int) -> None:
        api.change(objects, {**api.objects.get(objects, "cluster"), **policy(spec, generation)})

    async def told(status: str) -> None:
        async def there() -> bool | None:
            found = api.objects.get(objects, "cluster").get("status", {"conditions": [{}]})
            return found["conditions"][0].get("status") == status or None

        await eventually(there, f"accepted: {status}")

    writing = asyncio.create_task(write_late())
    changes = {"policy__source": "cluster", "listen__ops": f"127.0.0.1:{port}"}
    async with world(tmp_path, api, workload_api, **changes) as here, here.client() as node:
        is_open.set()
        assert await writing is False
        requirement = pod(**{"gpuwarden.dev/min-level": "L0"})
        await node.accepted()
        here.clock.ahead_ns += 43_000_000_000
        await here.passes(requirement, ["node-1"], "placement")
        await told("True")
        change({"minLevel": "L1"}, 2)
        await here.passes(requirement, [], "the new policy demands more")
        change({"minLevel": "L0", "labels": {"big": "huh"}}, 3)
        await told("False")
        await here.passes(requirement, [], "a wrong policy changes nothing")
        api.delete(objects, "cluster")
        await here.passes(requirement, [], "nor does a deleted one")
    records = here.controller.records()
    taken = [x["refs"]["policy"] for x in records if x["subject"] == "policy"]
    assert len(taken) == len(set(taken)) == 2


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_it_ends_while_it_waits_for_a_policy(
    tmp_path: Path, api: FakeApiServer, workload_api: InsecureWorkloadApi
) -> None:
    port, stop = free_port(), asyncio.Event()

    async def end() -> None:
        await says(port, "policy: AttestationPolicy/cluster: missing")
        stop.set()

    ending = asyncio.create_task(end())
    changes = {"policy__source": "cluster", "listen__ops": f"127.0.0.1:{port}"}
    async with world(tmp_path, api, workload_api, stop=stop, **changes) as here:
        await ending
    assert here.controller.task.result() == 0
