"""The controller's life in this process: everything between its settings and its drain."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from grpc import StatusCode, aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from controller.access import ALLOWED_CALLERS, CallerKind
from controller.app import StartError, Supervisor, Tempo
from controller.fleet.directory import DirectorySnapshot
from gpuwarden.identity.spiffe_id import SpiffeId
from gpuwarden.identity.svid import Svid
from gpuwarden.identity.tunnel import Tunnel
from gpuwarden.support.part import CONTROLLER_PARTS
from gpuwarden.wire.v1 import (
    audit_pb2,
    audit_pb2_grpc,
    operator_pb2,
    operator_pb2_grpc,
    support_pb2,
    support_pb2_grpc,
)
from gpuwarden.wire.v1 import fleet_pb2 as pb
from gpuwarden.wire.v1 import fleet_pb2_grpc as pb_grpc
from sandbox.insecure_static_nodes import InsecureStaticNodes
from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.fakes.eventually import DEADLINE_S, eventually
from tests.fakes.running_controller import (
    TD,
    OneNode,
    RunningController,
    running_controller,
)


async def test_starts_becomes_ready_and_ends(
    tmp_path: Path, workload_api: InsecureWorkloadApi
) -> None:
    async with running_controller(tmp_path, workload_api) as controller:
        assert (await controller.reasons())[0].startswith("first round")

        async def ready() -> bool | None:
            return None if await controller.reasons() else True

        await eventually(ready, "ready")
        assert await controller.metric("gpuwarden_ready") == 1
        assert await controller.metric("gpuwarden_audit_queue_records") is not None
        assert (tmp_path / "run" / "fleet.sock").exists()
    assert controller.task.result() == 0
    kinds = [record["kind"] for record in controller.records()]
    assert kinds == ["log.start", "config.change", "log.stop"]
    settings = controller.records()[1]
    assert (settings["subject"], len(settings["refs"]["config"])) == ("settings", 64)


async def test_health_follows_readiness(tmp_path: Path, workload_api: InsecureWorkloadApi) -> None:
    """Where another controller would be, callers leave this one alone until it is ready."""
    statuses = health_pb2.HealthCheckResponse
    async with (
        running_controller(tmp_path, workload_api) as controller,
        aio.insecure_channel(f"unix:{controller.addresses.local}") as channel,
    ):
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=DEADLINE_S)
        told = aiter(watch)
        seen = [(await anext(told)).status for _ in range(2)]
        assert seen == [statuses.NOT_SERVING, statuses.SERVING]
        assert await controller.reasons() == []


async def test_a_changed_policy_comes_into_force_and_a_wrong_one_does_not(
    tmp_path: Path, workload_api: InsecureWorkloadApi
) -> None:
    file = tmp_path / "policy.yaml"
    header = "apiVersion: config.gpuwarden.dev/v1alpha1\nkind: Policy\n"
    file.write_text(header)
    async with running_controller(tmp_path, workload_api, policy__file=str(file)) as controller:
        name = "gpuwarden_policy_reloads_total"
        file.write_text("nonsense: true\n")

        async def refused() -> float | None:
            return await controller.metric(f'{name}{{result="refused"}}')

        assert await eventually(refused, "refused policy") == 1
        file.write_text(header + "labels: {big: 'memory>=40Gi'}\n")

        async def taken() -> float | None:
            return await controller.metric(f'{name}{{result="taken"}}')

        assert await eventually(taken, "changed policy") == 1
    subjects = [record["subject"] for record in controller.records()]
    assert subjects.count("policy") == 1


async def test_a_suspect_clock_is_a_warning(
    tmp_path: Path, workload_api: InsecureWorkloadApi
) -> None:
    async with running_controller(tmp_path, workload_api) as controller:
        assert await controller.metric("gpuwarden_clock_suspect") == 0
        controller.clock.wall_step_ns = 60 * 1_000_000_000

        async def suspect() -> bool | None:
            return await controller.metric("gpuwarden_clock_suspect") == 1 or None

        await eventually(suspect, "the clock is suspect")
        _, text = await controller.get("/readyz")
        assert json.loads(text)["warnings"][-1].startswith("CONTROLLER_CLOCK_SUSPECT")


async def test_without_a_workload_api_it_waits_and_says_so(tmp_path: Path) -> None:
    async with running_controller(tmp_path, f"unix://{tmp_path}/nobody.sock") as controller:

        async def only_the_svid_is_missing() -> bool | None:
            words = [reason.split(":")[0] for reason in await controller.reasons()]
            return words == ["svid"] or None

        await eventually(only_the_svid_is_missing, "svid is the only reason")
        assert (await controller.get("/readyz"))[0] == 503
        assert (await controller.get("/healthz"))[0] == 200


async def test_a_part_that_ends_unexpectedly_ends_the_process(
    tmp_path: Path, workload_api: InsecureWorkloadApi
) -> None:
    class Breaking(OneNode):
        broken = False

        def snapshot(self) -> DirectorySnapshot:
            if self.broken:
                raise RuntimeError("the directory has a bug")
            return super().snapshot()

    directory = Breaking()
    async with running_controller(tmp_path, workload_api, directory) as controller:
        directory.broken = True
        assert await asyncio.wait_for(controller.task, DEADLINE_S) == 1
    assert controller.records()[-1]["kind"] == "log.stop"


async def test_callers_are_sent_away_before_anything_stops_that_runs_by_itself(
    tmp_path: Path, workload_api: InsecureWorkloadApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of the log and a watch of the fleet hear that it is this controller that ends."""
    ended: list[tuple[StatusCode, str | None]] = []
    during: list[list[str]] = []
    end, stop = asyncio.Event(), Supervisor.stop
    async with (
        running_controller(tmp_path, workload_api, stop=end) as controller,
        aio.insecure_channel(f"unix:{controller.addresses.local}") as channel,
    ):
        logs: Any = audit_pb2_grpc.AuditServiceStub(channel)
        fleet: Any = pb_grpc.FleetServiceStub(channel)
        records = audit_pb2.ReadRecordsRequest(last=1, follow=True)
        open_calls = [
            aiter(logs.ReadRecords(records, timeout=DEADLINE_S)),
            aiter(fleet.WatchNodes(pb.WatchNodesRequest(), timeout=DEADLINE_S)),
        ]
        for call in open_calls:
            await anext(call)

        async def stopping(supervisor: Supervisor) -> None:
            for call in open_calls:
                with pytest.raises(aio.AioRpcError) as caught:
                    [x async for x in call]
                ended.append((caught.value.code(), caught.value.details()))
            during.append(await controller.reasons())
            for address in (controller.addresses.agents, controller.addresses.extender):
                host, _, port = address.rpartition(":")
                with pytest.raises(ConnectionRefusedError):
                    await asyncio.open_connection(host, int(port))
            await stop(supervisor)

        monkeypatch.setattr(Supervisor, "stop", stopping)
        end.set()
        assert await controller.task == 0
    assert ended == [(StatusCode.UNAVAILABLE, "this controller is stopping")] * 2
    ((reason, *_),) = during
    assert reason == "draining: the process is about to end"


async def test_insecure_settings_are_reported_everywhere(
    tmp_path: Path, workload_api: InsecureWorkloadApi
) -> None:
    async with running_controller(
        tmp_path,
        workload_api,
        InsecureStaticNodes(["node-1"]),
        insecureStaticHashes="true",
        staticHashes='{"node-1": "gold"}',
    ) as controller:
        _, text = await controller.get("/readyz")
        warnings = json.loads(text)["warnings"]
        assert [warning.split(":")[0] for warning in warnings] == [
            "InsecureStaticNodes",
            "InsecureStaticHashes",
            "spire.server is off",
        ]
        async with aio.insecure_channel(f"unix:{controller.addresses.local}") as channel:
            stub: Any = pb_grpc.FleetServiceStub(channel)
            listed = await stub.ListNodes(pb.ListNodesRequest(), timeout=DEADLINE_S)
            assert list(listed.warnings) == warnings

        async def ready() -> bool | None:
            return None if await controller.reasons() else True

        await eventually(ready, "ready")
        answer, marks = await _filter(controller, "gold")
        assert answer["NodeNames"] == ["node-1"]
        assert "static-hashes" in marks
    assert len(controller.records()[1]["refs"]["insecure"]) == 2


async def test_a_store_in_memory_is_reported_as_such(
    tmp_path: Path, workload_api: InsecureWorkloadApi
) -> None:
    async with running_controller(tmp_path, workload_api, store__kind="memory") as controller:
        _, text = await controller.get("/readyz")
        assert any(x.startswith("store.kind is memory") for x in json.loads(text)["warnings"])
    assert controller.records()[1]["refs"]["store"] == {"kind": "memory"}


async def test_a_denial_reaches_the_other_controller(
    tmp_path: Path, workload_api: InsecureWorkloadApi
) -> None:
    """Two controllers on one store file; the other one never hears of it but through that."""
    store, other = str(tmp_path / "shared.db"), tmp_path / "other"
    other.mkdir()
    async with (
        running_controller(tmp_path, workload_api, store__path=store) as here,
        running_controller(other, workload_api, store__path=store) as there,
        aio.insecure_channel(f"unix:{here.addresses.local}") as channel,
        aio.insecure_channel(f"unix:{there.addresses.local}") as elsewhere,
    ):
        operator: Any = operator_pb2_grpc.OperatorServiceStub(channel)
        fleet: Any = pb_grpc.FleetServiceStub(elsewhere)

        async def is_in(state: str) -> bool | None:
            answer = await fleet.GetNode(pb.GetNodeRequest(name="node-1"), timeout=DEADLINE_S)
            return answer.node.state == state or None

        assert await is_in("unknown")
        order = operator_pb2.QuarantineNodeRequest(name="node-1", reason="smells")
        done = await operator.QuarantineNode(order, timeout=DEADLINE_S)
        assert not done.warnings
        await eventually(lambda: is_in("quarantined"), "quarantined there too")
        release = operator_pb2.ReleaseNodeRequest(
            name="node-1", reason="explained", expected_version=done.enrollment.version
        )
        await operator.ReleaseNode(release, timeout=DEADLINE_S)
        await eventually(lambda: is_in("refused"), "may try again there too")
    acts = [x for x in here.records() if x["kind"] == "node.operator"]
    assert [(x["decision"], x["refs"]["reason"]) for x in acts] == [
        ("quarantined", "smells"),
        ("released", "explained"),
    ]
    assert acts[0]["actor"] == f"local uid {os.geteuid()}"
    states = [x["decision"] for x in there.records() if x["kind"] == "node.state"]
    assert states == ["quarantined", "released"]


def test_a_denial_is_looked_for_twice_a_second() -> None:
    assert Tempo().store_look_s == 0.5


async def test_the_log_says_which_store_it_was(
    tmp_path: Path, workload_api: InsecureWorkloadApi
) -> None:
    seen = []
    for _ in range(2):
        async with running_controller(tmp_path, workload_api) as controller:
            pass
        seen.append([x for x in controller.records() if x["subject"] == "settings"][-1]["refs"])
    first, second = (refs["store"] for refs in seen)
    assert (first["created"], second["created"]) == (True, False)
    assert first["store_id"] == second["store_id"]


async def _filter(controller: RunningController, required: str) -> tuple[dict[str, Any], str]:
    annotations = {"attestation-hash.my-company.com/required-hash": required}
    pod = {"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "c"}]}}
    url = f"http://{controller.addresses.extender}/filter"
    body = {"Pod": pod, "NodeNames": ["node-1", "node-2"]}
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
        found: dict[str, Any] = await answer.json()
        return found, answer.headers.get("Gpuwarden-Insecure", "")


@pytest.mark.parametrize(
    ("changes", "status", "text"),
    [
        ({"policy__file": "/nonexistent/policy.yaml"}, 2, "/nonexistent/policy.yaml"),
        ({"policy__source": "cluster"}, 2, "policy.source: got cluster; expected file"),
        ({"listen__agents": "192.0.2.1:1"}, 1, "listen.agents: cannot bind"),
        ({"listen__ops": "192.0.2.1:1"}, 1, "192.0.2.1"),
        ({"listen__local": "/proc/version"}, 1, "is not a socket"),
        ({"listen__local": "/proc/none/fleet.sock"}, 1, "/proc/none"),
        ({"store__path": "/proc/none/ledger.db"}, 1, "store: /proc/none"),
    ],
)
async def test_what_cannot_start_says_what_and_why(
    tmp_path: Path,
    workload_api: InsecureWorkloadApi,
    changes: dict[str, Any],
    status: int,
    text: str,
) -> None:
    with pytest.raises(StartError, match=text) as caught:
        async with running_controller(tmp_path, workload_api, **changes):
            pass
    assert caught.value.status == status


CALLERS = {
    CallerKind.AGENT: "/gpuwarden/agent/node-1",
    CallerKind.CONTROLLER: "/gpuwarden/controller",
    CallerKind.INSPECTOR: "/gpuwarden/inspector/ops",
    CallerKind.OPERATOR: "/gpuwarden/operator/ops",
    CallerKind.NONE: "/ns/default/sa/web",
}


@asynccontextmanager
async def _calling(api: InsecureWorkloadApi, path: str, address: str) -> AsyncIterator[aio.Channel]:
    """A channel over mTLS to the agents' listener, as the workload with this path."""
    issued = api.ca.issue(f"spiffe://{TD}{path}")
    roots = tuple(root.certificate for root in api.roots)
    svid = Svid(SpiffeId(TD, path), issued.private_key, issued.chain, roots, 1)
    host, _, port = address.rpartition(":")
    expected = SpiffeId(TD, "/gpuwarden/controller")
    async with Tunnel(svid, host, int(port), expected) as tunnel, tunnel.channel() as channel:
        yield channel


@pytest.mark.parametrize("kind", CALLERS, ids=lambda kind: kind.value)
async def test_the_whole_listener_keeps_to_the_table_of_roles(
    tmp_path: Path, workload_api: InsecureWorkloadApi, kind: CallerKind
) -> None:
    """Every method that the program serves over mTLS, for every role, then an honest call."""
    async with (
        running_controller(tmp_path, workload_api) as controller,
        _calling(workload_api, CALLERS[kind], controller.addresses.agents) as channel,
    ):
        for method, allowed in ALLOWED_CALLERS.items():
            call: Any = channel.unary_unary(method)
            with pytest.raises(aio.AioRpcError) as caught:
                await call(b"\xff", timeout=DEADLINE_S)
            denied = caught.value.code() is StatusCode.PERMISSION_DENIED
            assert denied == (kind not in allowed), (method, caught.value)
            assert caught.value.code() is not StatusCode.UNIMPLEMENTED, method
        if kind in {CallerKind.INSPECTOR, CallerKind.OPERATOR}:
            fleet: Any = pb_grpc.FleetServiceStub(channel)
            answer = await fleet.ListNodes(pb.ListNodesRequest(), timeout=DEADLINE_S)
            assert [node.name for node in answer.nodes] == ["node-1"]
            support: Any = support_pb2_grpc.SupportServiceStub(channel)
            told = support.Collect(support_pb2.CollectRequest(), timeout=DEADLINE_S)
            assert [(one.part, one.missing) async for one in told] == [
                (name, "") for name in CONTROLLER_PARTS
            ]
