"""The controller's life in this process: everything between its settings and its drain."""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog
from grpc import StatusCode, aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from controller.access import ALLOWED_CALLERS, CallerKind
from controller.app import StartError, Tempo, run
from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.wiring.listeners import Addresses
from gpuwarden.clock import Clock, SystemClock
from gpuwarden.identity.spiffe_id import SpiffeId
from gpuwarden.identity.svid import Svid
from gpuwarden.identity.tunnel import Tunnel
from gpuwarden.settings.loader import CONTROLLER, Inputs, load
from gpuwarden.support.disclosure import CONTROLLER_PARTS
from gpuwarden.wire.v1 import fleet_pb2 as pb
from gpuwarden.wire.v1 import fleet_pb2_grpc as pb_grpc
from gpuwarden.wire.v1 import operator_pb2, operator_pb2_grpc, support_pb2, support_pb2_grpc
from sandbox.insecure_static_nodes import InsecureStaticNodes
from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.fakes.eventually import DEADLINE_S, eventually

TD = "example.org"
ATTESTATION = {
    "attestation.interval": "100ms",
    "attestation.challengeTtl": "100ms",
    "attestation.lease": "500ms",
}


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    """A controller configures the logging of its process, which here is the tests'."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


class Directory:
    """A directory without warning, as a real one."""

    def __init__(self) -> None:
        self.current = DirectorySnapshot({"node-1": KnownNode("uid-1")})

    def snapshot(self) -> DirectorySnapshot:
        return self.current

    def warning(self) -> str | None:
        return None


@dataclass
class Running:
    addresses: Addresses
    task: asyncio.Task[int]
    stop: asyncio.Event
    audit: Path

    async def get(self, path: str) -> tuple[int, str]:
        url = f"http://{self.addresses.ops}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status, await answer.text()

    async def reasons(self) -> list[str]:
        _, text = await self.get("/readyz")
        found: list[str] = json.loads(text)["reasons"]
        return found

    async def metric(self, name: str) -> float | None:
        _, text = await self.get("/metrics")
        for line in text.splitlines():
            key, _, value = line.rpartition(" ")
            if key == name:
                return float(value)
        return None

    def records(self) -> list[dict[str, Any]]:
        files = sorted(path for path in self.audit.iterdir() if path.suffix == ".jsonl")
        records = [json.loads(line) for file in files for line in file.read_bytes().splitlines()]
        return [record for record in records if record["kind"] != "checkpoint"]


def _loaded(folder: Path, workload_api: str, **changes: str) -> Any:
    values = {
        "trustDomain": TD,
        "cluster": "test",
        "workloadApi": workload_api,
        "listen.agents": "127.0.0.1:0",
        "listen.extender": "127.0.0.1:0",
        "listen.ops": "127.0.0.1:0",
        "listen.local": str(folder / "run" / "fleet.sock"),
        "audit.dir": str(folder / "audit"),
        "audit.reserve": "0",
        "store.path": str(folder / "ledger.db"),
        "log.level": "error",
        **ATTESTATION,
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    return load(CONTROLLER, Inputs(tuple((key, value, key) for key, value in values.items())))


@asynccontextmanager
async def _running(
    folder: Path,
    workload_api: str,
    directory: Any = None,
    *,
    clock: Clock | None = None,
    exchange: Any = None,
    stop: asyncio.Event | None = None,
    **changes: Any,
) -> AsyncIterator[Running]:
    stop = stop or asyncio.Event()
    told: list[Addresses] = []
    listening = asyncio.Event()

    def announce(addresses: Addresses) -> None:
        told.append(addresses)
        listening.set()

    task = asyncio.create_task(
        run(
            _loaded(folder, workload_api, **changes),
            directory=None if exchange else directory or Directory(),
            exchange=exchange,
            announce=announce,
            stop=stop,
            clock=clock,
            tempo=Tempo(tick_s=0.02, policy_look_s=0.02, first_svid_s=0.5),
        )
    )
    waiting = asyncio.create_task(listening.wait())
    parts: set[asyncio.Task[Any]] = {task, waiting}
    await asyncio.wait(parts, timeout=DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if task.done():
        await task
    try:
        yield Running(told[0], task, stop, folder / "audit")
    finally:
        stop.set()
        await task


@pytest.fixture
def workload_api(tmp_path: Path) -> Iterator[str]:
    api = InsecureWorkloadApi(tmp_path, TD)
    yield api.add("controller", f"spiffe://{TD}/gpuwarden/controller")
    api.close()


async def test_starts_becomes_ready_and_ends(tmp_path: Path, workload_api: str) -> None:
    async with _running(tmp_path, workload_api) as controller:
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


async def test_health_follows_readiness(tmp_path: Path, workload_api: str) -> None:
    """Where another controller would be, callers leave this one alone until it is ready."""
    statuses = health_pb2.HealthCheckResponse
    async with (
        _running(tmp_path, workload_api) as controller,
        aio.insecure_channel(f"unix:{controller.addresses.local}") as channel,
    ):
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(), timeout=DEADLINE_S)
        told = aiter(watch)
        seen = [(await anext(told)).status for _ in range(2)]
        assert seen == [statuses.NOT_SERVING, statuses.SERVING]
        assert await controller.reasons() == []


async def test_a_changed_policy_comes_into_force_and_a_wrong_one_does_not(
    tmp_path: Path, workload_api: str
) -> None:
    file = tmp_path / "policy.yaml"
    header = "apiVersion: config.gpuwarden.dev/v1alpha1\nkind: Policy\n"
    file.write_text(header)
    async with _running(tmp_path, workload_api, policy__file=str(file)) as controller:
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


class SteppingClock(SystemClock):
    """Wall time that a test can put forward."""

    step_ns = 0

    def wall_ns(self) -> int:
        return super().wall_ns() + self.step_ns


async def test_a_suspect_clock_is_a_warning(tmp_path: Path, workload_api: str) -> None:
    clock = SteppingClock()
    async with _running(tmp_path, workload_api, clock=clock) as controller:
        assert await controller.metric("gpuwarden_clock_suspect") == 0
        clock.step_ns = 60 * 1_000_000_000

        async def suspect() -> bool | None:
            return await controller.metric("gpuwarden_clock_suspect") == 1 or None

        await eventually(suspect, "the clock is suspect")
        _, text = await controller.get("/readyz")
        assert json.loads(text)["warnings"][-1].startswith("CONTROLLER_CLOCK_SUSPECT")


async def test_without_a_workload_api_it_waits_and_says_so(tmp_path: Path) -> None:
    async with _running(tmp_path, f"unix://{tmp_path}/nobody.sock") as controller:

        async def only_the_svid_is_missing() -> bool | None:
            words = [reason.split(":")[0] for reason in await controller.reasons()]
            return words == ["svid"] or None

        await eventually(only_the_svid_is_missing, "svid is the only reason")
        assert (await controller.get("/readyz"))[0] == 503
        assert (await controller.get("/healthz"))[0] == 200


async def test_a_part_that_ends_unexpectedly_ends_the_process(
    tmp_path: Path, workload_api: str
) -> None:
    class Breaking(Directory):
        broken = False

        def snapshot(self) -> DirectorySnapshot:
            if self.broken:
                raise RuntimeError("the directory has a bug")
            return super().snapshot()

    directory = Breaking()
    async with _running(tmp_path, workload_api, directory) as controller:
        directory.broken = True
        assert await asyncio.wait_for(controller.task, DEADLINE_S) == 1
    assert controller.records()[-1]["kind"] == "log.stop"


async def test_insecure_stand_ins_are_told_everywhere(tmp_path: Path, workload_api: str) -> None:
    async with _running(
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


async def test_a_store_that_forgets_is_told_as_such(tmp_path: Path, workload_api: str) -> None:
    async with _running(tmp_path, workload_api, store__kind="memory") as controller:
        _, text = await controller.get("/readyz")
        assert any(x.startswith("store.kind is memory") for x in json.loads(text)["warnings"])
    assert controller.records()[1]["refs"]["store"] == {"kind": "memory"}


async def test_a_denial_reaches_the_other_controller(tmp_path: Path, workload_api: str) -> None:
    """Two controllers on one store file; the other one never hears of it but through that."""
    store, other = str(tmp_path / "shared.db"), tmp_path / "other"
    other.mkdir()
    async with (
        _running(tmp_path, workload_api, store__path=store) as here,
        _running(other, workload_api, store__path=store) as there,
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


async def test_the_log_says_which_store_it_was(tmp_path: Path, workload_api: str) -> None:
    seen = []
    for _ in range(2):
        async with _running(tmp_path, workload_api) as controller:
            pass
        seen.append([x for x in controller.records() if x["subject"] == "settings"][-1]["refs"])
    first, second = (refs["store"] for refs in seen)
    assert (first["created"], second["created"]) == (True, False)
    assert first["store_id"] == second["store_id"]


async def _filter(controller: Running, required: str) -> tuple[dict[str, Any], str]:
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
    tmp_path: Path, workload_api: str, changes: dict[str, Any], status: int, text: str
) -> None:
    with pytest.raises(StartError, match=text) as caught:
        async with _running(tmp_path, workload_api, **changes):
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
    tmp_path: Path, kind: CallerKind
) -> None:
    """Every method that the program serves over mTLS, for every role, then an honest call."""
    with InsecureWorkloadApi(tmp_path, TD) as api:
        endpoint = api.add("controller", f"spiffe://{TD}/gpuwarden/controller")
        async with (
            _running(tmp_path, endpoint) as controller,
            _calling(api, CALLERS[kind], controller.addresses.agents) as channel,
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
