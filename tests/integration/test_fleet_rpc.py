"""FleetService over the real unix socket listener, interceptor and health included."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from controller.access import LOCAL, Caller, CallerKind
from controller.audit.past_classes import ClassChange, PastClass, PastClasses
from controller.explain.status import Installation
from controller.fleet.enrollment import EnrolledGpu, EnrollmentRecord, QuarantineEntry
from controller.fleet.quarantine import Shown, show
from controller.messages import no_labels
from controller.operations.readiness import ListenerState, Readiness
from controller.policy import DEFAULT_POLICY, AttestationClass, ClassHash, Policy
from controller.rpc.fleet import FleetServicer
from controller.rpc.interceptor import AuthorizationInterceptor, local_caller
from controller.rpc.server import (
    ListenError,
    RpcServer,
    SocketInUseError,
    local_server,
    set_serving,
)
from controller.spire.facts import SpireCondition
from gpuwarden import __version__
from gpuwarden.evidence.canonical import canonical_json
from gpuwarden.evidence.class_document import class_document
from gpuwarden.evidence.model import PROTOCOL, LostGpu
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.error_metadata import FIELD_KEY, REASON_KEY
from gpuwarden.wire.v1 import fleet_pb2 as pb
from gpuwarden.wire.v1 import fleet_pb2_grpc as pb_grpc
from tests.builders.inventory import gpu, inventory
from tests.builders.node_views import (
    HASH_A,
    S,
    acceptance,
    fleet_of,
    gpu_view,
    node_view,
    past_refusal,
)
from tests.fakes.calls import SeenCalls
from tests.fakes.clock import FakeClock
from tests.fakes.fleet import FakeFleet
from tests.hang import HANG_S

DEADLINE = HANG_S
INSTALLATION = Installation(
    cluster="prod",
    replica="c-0",
    enforcement="namespaces",
    protection="cluster",
    replicas=("c-0", "c-1"),
    leads=True,
    alarms={"b": ("LOG_RESET",), "a": ("CHECKPOINT_INCONSISTENT", "LOG_RESET")},
    listeners=(
        ListenerState("admission", "PEM", demands_certificate=True, client_ends=None),
        ListenerState(
            "api",
            "PEM 2",
            demands_certificate=False,
            client_ends=datetime(2026, 3, 1, 2, 3, 4, tzinfo=UTC),
        ),
    ),
    spire=SpireCondition("too old", excessive=True),
)


@dataclass
class World:
    path: Path
    fleet: FakeFleet
    clock: FakeClock
    calls: SeenCalls
    server: RpcServer
    stub: "pb_grpc.FleetServiceAsyncStub"
    channel: aio.Channel
    records: dict[str, EnrollmentRecord]
    policy: list[Policy]
    readiness: list[Readiness]
    past: "KnownPast"
    fits: list[pb.Fit]


class KnownPast(PastClasses):
    """The classes of a log, as the test sets them."""

    def __init__(self) -> None:
        self.classes: list[PastClass] = []
        self.changes: list[ClassChange] = []
        self.fails = False

    def beginning(self, reference: str) -> tuple[PastClass, ...]:
        self._read()
        start = f"v1:sha256:{reference.removeprefix('v1:sha256:')}"
        return tuple(x for x in self.classes if x.attestation_hash.startswith(start))

    def changes_of(self, node: str) -> tuple[ClassChange, ...]:
        self._read()
        assert node == "a"
        return tuple(self.changes)

    def last_changes(self, nodes: Collection[str]) -> tuple[tuple[str, ClassChange], ...]:
        self._read()
        return tuple((node, self.changes[0]) for node in nodes if node != "a-never")

    def _read(self) -> None:
        if self.fails:
            raise OSError


def _shown(
    name: str, records: dict[str, EnrollmentRecord], fleet: FakeFleet, clock: FakeClock
) -> Shown:
    view, now_ns = fleet.snapshot().nodes.get(name), clock.boottime_ns()
    return show(name, records.get(name), view, unwritten=None, now_ns=now_ns)


def _fit_of(fits: list[pb.Fit]) -> Callable[[bytes, str], Awaitable[pb.FitPodResponse]]:
    async def fit(pod: bytes, namespace: str) -> pb.FitPodResponse:
        asked = [namespace, pod.decode()]
        return pb.FitPodResponse(managed=True, requirements=asked, fits=fits)

    return fit


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    fleet, clock, calls = FakeFleet(), FakeClock(boottime=50 * S), SeenCalls()
    records: dict[str, EnrollmentRecord] = {}
    policy = [DEFAULT_POLICY]
    readiness, past = [Readiness((), ())], KnownPast()
    fits: list[pb.Fit] = []
    service = FleetServicer(
        fleet,
        clock,
        policy=lambda: policy[0],
        shown=lambda name: _shown(name, records, fleet, clock),
        readiness=lambda: readiness[0],
        labels=lambda: no_labels,
        fit=_fit_of(fits),
        installation=lambda: INSTALLATION,
        past=past,
    )
    path = tmp_path / "fleet.sock"
    server = local_server(
        path=path,
        interceptor=AuthorizationInterceptor(
            authenticate=local_caller(LOCAL), observer=calls, clock=clock
        ),
        services=(lambda s: pb_grpc.add_FleetServiceServicer_to_server(service, s),),
    )
    await server.start()
    async with aio.insecure_channel(server.address) as channel:
        stub: Any = pb_grpc.FleetServiceStub(channel)
        yield World(
            path, fleet, clock, calls, server, stub, channel, records, policy, readiness, past, fits
        )
    await server.stop(0)


def _reason(error: aio.AioRpcError) -> tuple[str | None, str | None]:
    metadata = dict(error.trailing_metadata() or ())
    return metadata.get(REASON_KEY), metadata.get(FIELD_KEY)


async def test_the_socket_is_the_owners_alone(world: World) -> None:
    assert stat.S_IMODE(world.path.stat().st_mode) == 0o600
    assert world.path.stat().st_uid == os.getuid()


async def test_a_second_server_does_not_take_the_socket(world: World) -> None:
    interceptor = AuthorizationInterceptor(
        authenticate=local_caller(LOCAL), observer=world.calls, clock=world.clock
    )
    with pytest.raises(SocketInUseError, match="another process serves"):
        local_server(path=world.path, interceptor=interceptor, services=())
    assert (await world.stub.ListNodes(pb.ListNodesRequest(), timeout=DEADLINE)) is not None


async def test_a_socket_that_cannot_be_bound_names_the_setting(
    tmp_path: Path, world: World
) -> None:
    interceptor = AuthorizationInterceptor(
        authenticate=local_caller(LOCAL), observer=world.calls, clock=world.clock
    )
    with pytest.raises(ListenError, match=r"listen\.local: cannot bind"):
        local_server(path=tmp_path / "missing" / "s", interceptor=interceptor, services=())


async def test_list_nodes_is_sorted_and_says_what_is_not_ready(world: World) -> None:
    world.fleet.set(fleet_of(node_view("b"), node_view("a")))
    world.readiness[0] = Readiness(("first round: 3 ms", "svid: none"), ("insecure",))
    answer = await world.stub.ListNodes(pb.ListNodesRequest(), timeout=DEADLINE)
    assert [node.name for node in answer.nodes] == ["a", "b"]
    assert answer.nodes[0].fresh_for_ms == 50_000
    assert answer.not_ready == "first round: 3 ms; svid: none"
    assert list(answer.warnings) == ["insecure"]
    assert world.calls.seen == [("/gpuwarden.wire.v1.FleetService/ListNodes", LOCAL, None)]


async def test_get_node(world: World) -> None:
    world.fleet.set(fleet_of(node_view("a")))
    answer = await world.stub.GetNode(pb.GetNodeRequest(name="a"), timeout=DEADLINE)
    assert (answer.node.name, len(answer.node.gpus)) == ("a", 2)
    assert answer.HasField("use")


async def test_list_gpus_of_all_and_of_one(world: World) -> None:
    world.fleet.set(fleet_of(node_view("b"), node_view("a"), node_view("c", acceptance=None)))
    everything = await world.stub.ListGpus(pb.ListGpusRequest(), timeout=DEADLINE)
    assert [(gpu.node, gpu.index) for gpu in everything.gpus] == [
        ("a", 0),
        ("a", 1),
        ("b", 0),
        ("b", 1),
    ]
    assert {(gpu.state, gpu.attestation_hash) for gpu in everything.gpus} == {("free", HASH_A)}
    one = await world.stub.ListGpus(pb.ListGpusRequest(node="b"), timeout=DEADLINE)
    assert [(gpu.node, gpu.index) for gpu in one.gpus] == [("b", 0), ("b", 1)]


async def test_status_is_the_controller_and_its_fleet_in_numbers(world: World) -> None:
    lost = LostGpu(uuid="GPU-x", index=1, pci_bus_id="00000000:01:00.0", error="GPU_IS_LOST")
    gpus = (gpu_view(0), gpu_view(1, lost=lost), gpu_view(2, unhealthy="xid 79"))
    world.fleet.set(
        fleet_of(
            node_view("stale", acceptance=acceptance(fresh_until_ns=1, agent_version="0.2.0")),
            node_view("good", acceptance=acceptance(gpus=gpus)),
            node_view("new", acceptance=None),
            node_view("newer", acceptance=None),
        )
    )
    world.readiness[0] = Readiness(("audit: full", "svid: none"), ("insecure", "clock"))
    answer = await world.stub.GetStatus(pb.GetStatusRequest(), timeout=DEADLINE)
    assert (answer.cluster, answer.replica, answer.leads) == ("prod", "c-0", True)
    assert (answer.version, answer.protocol) == (__version__, PROTOCOL)
    assert (answer.enforcement, answer.protection) == ("namespaces", "cluster")
    assert list(answer.replicas) == ["c-0", "c-1"]
    assert answer.not_ready == "audit: full; svid: none"
    assert list(answer.warnings) == ["insecure", "clock"]
    assert {x.name: x.count for x in answer.nodes} == {"unknown": 2, "eligible": 1, "stale": 1}
    assert [(x.name, x.count) for x in answer.gpus] == [("lost", 1), ("ok", 3), ("unhealthy", 1)]
    assert [(x.name, x.count) for x in answer.agents] == [("0.1.0", 1), ("0.2.0", 1)]
    assert [(x.node, list(x.codes)) for x in answer.alarms] == [
        ("a", ["CHECKPOINT_INCONSISTENT", "LOG_RESET"]),
        ("b", ["LOG_RESET"]),
    ]
    assert [
        (x.name, x.certificates, x.demands_certificate, x.client_ends) for x in answer.listeners
    ] == [
        ("admission", "PEM", True, ""),
        ("api", "PEM 2", False, "2026-03-01T02:03:04Z"),
    ]
    assert answer.spire == pb.SpireServer(configured=True, error="too old", excessive=True)


async def test_classes(world: World) -> None:
    world.policy[0] = Policy(
        classes=MappingProxyType({"t": AttestationClass("t", (ClassHash(HASH_A),))})
    )
    world.fleet.set(fleet_of(node_view("a")))
    listed = await world.stub.ListClasses(pb.ListClassesRequest(), timeout=DEADLINE)
    assert [one.attestation_hash for one in listed.classes] == [HASH_A, ""]
    request = pb.GetClassRequest(class_ref="a" * 8)
    found = await world.stub.GetClass(request, timeout=DEADLINE)
    assert found.attestation_class.document == '{"level":"L0"}'


async def test_a_class_of_the_past_is_shown_by_its_hash(world: World) -> None:
    gone, other = "v1:sha256:" + "9" * 64, "v1:sha256:" + "9" * 63 + "8"
    document = class_document(inventory(), level="L0", trust_domain="x", attestor=None)
    world.past.classes = [PastClass(gone, "L0", document), PastClass(other, "L0", None)]
    found = await world.stub.GetClass(pb.GetClassRequest(class_ref=gone), timeout=DEADLINE)
    message = found.attestation_class
    assert (message.attestation_hash, message.level, list(message.nodes)) == (gone, "L0", [])
    assert message.document == canonical_json(document).decode()
    with pytest.raises(aio.AioRpcError, match="begins 2 hashes; give more digits"):
        await world.stub.GetClass(pb.GetClassRequest(class_ref="9" * 8), timeout=DEADLINE)
    with pytest.raises(aio.AioRpcError, match="no class"):
        await world.stub.GetClass(pb.GetClassRequest(class_ref="7" * 8), timeout=DEADLINE)
    world.past.fails = True
    with pytest.raises(aio.AioRpcError, match="no class"):
        await world.stub.GetClass(pb.GetClassRequest(class_ref=gone), timeout=DEADLINE)


async def test_an_explanation_says_what_changed_about_the_class_and_when(world: World) -> None:
    world.fleet.set(fleet_of(node_view("a")))
    old, new = (
        PastClass(f"v1:sha256:{vbios * 64}", "L0", document)
        for vbios in "12"
        for document in [
            class_document(inventory(gpu(vbios=vbios)), level="L0", trust_domain="x", attestor=None)
        ]
    )
    world.past.changes = [
        ClassChange("2026-11-28T12:03:00.000Z", old, new),
        ClassChange("2026-11-28T12:00:00.000Z", replace(old, document=None), new),
    ]
    answer = await world.stub.ExplainNode(pb.ExplainNodeRequest(name="a"), timeout=DEADLINE)
    first, second = answer.class_changes
    assert (first.at, first.old_hash, first.new_hash) == (
        "2026-11-28T12:03:00.000Z",
        old.attestation_hash,
        new.attestation_hash,
    )
    assert [(x.path, x.old, x.new) for x in first.facts] == [("gpus[10de:2330].vbios", "1", "2")]
    assert list(second.facts) == []
    world.past.fails = True
    answer = await world.stub.ExplainNode(pb.ExplainNodeRequest(name="a"), timeout=DEADLINE)
    assert list(answer.class_changes) == []


async def test_explain_node_in_order(world: World) -> None:
    lost = LostGpu(uuid="GPU-x", index=1, pci_bus_id="00000000:01:00.0", error="GPU_IS_LOST")
    gpus = (gpu_view(0), gpu_view(1, lost=lost), gpu_view(2, unhealthy="xid 79"))
    blocked = past_refusal(ReasonCode.INVENTORY_CHANGED, "new GPU GPU-9", 3)
    world.fleet.set(
        fleet_of(
            node_view(
                "a",
                acceptance=acceptance(gpus=gpus, warnings=("clock off by 40 s",)),
                blocked=blocked,
                refusals=(past_refusal(ReasonCode.CLOCK_SKEW, "off"), blocked),
                warnings=("GPU-0 is claimed by b",),
            )
        )
    )
    enrolled_gpus = (
        EnrolledGpu(uuid=gpus[0].uuid, serial="1"),
        EnrolledGpu(uuid="GPU-gone", enrolled=True),
    )
    denial = QuarantineEntry("INVENTORY_CHANGED", "swapped", "controller", 1)
    world.records["a"] = EnrollmentRecord("a", node_uid="u", gpus=enrolled_gpus, denial=denial)
    answer = await world.stub.ExplainNode(pb.ExplainNodeRequest(name="a"), timeout=DEADLINE)
    starts = [line.split(":")[0] for line in answer.findings]
    assert starts == [
        "trust was taken away until an operator acts",
        f"GPU 1 {gpus[1].uuid}",
        f"GPU 2 {gpus[2].uuid}",
        "enrolled GPUs",
        "enrolled GPU GPU-gone is not in the last accepted evidence",
    ]
    assert list(answer.node.warnings) == ["GPU-0 is claimed by b", "clock off by 40 s"]
    assert [refusal.code for refusal in answer.refusals] == ["CLOCK_SKEW", "INVENTORY_CHANGED"]
    assert answer.identity_document == '{"node":{}}'
    assert answer.pin_document == (
        '{"gpus":[{"enrolled":false,"identityKey":null,"migDevices":[],"serial":"1","uuid":"'
        + gpus[0].uuid
        + '"},'
        '{"enrolled":true,"identityKey":null,"migDevices":[],"serial":null,"uuid":"GPU-gone"}],'
        '"node":{"name":"a","uid":"u"},"spireAgent":null,"systemUuid":null}'
    )


async def test_explain_a_node_that_was_never_accepted(world: World) -> None:
    world.fleet.set(fleet_of(node_view("a", acceptance=None)))
    world.records["a"] = EnrollmentRecord("a", gpus=(EnrolledGpu(uuid="GPU-1"),))
    answer = await world.stub.ExplainNode(pb.ExplainNodeRequest(name="a"), timeout=DEADLINE)
    assert list(answer.findings) == [
        "no evidence has been seen since this controller started",
        "enrolled GPUs: 1, 0 of them by an operator",
    ]
    assert answer.identity_document == ""


async def test_explain_an_eligible_node_without_enrolled_gpus(world: World) -> None:
    world.fleet.set(fleet_of(node_view("a")))
    answer = await world.stub.ExplainNode(pb.ExplainNodeRequest(name="a"), timeout=DEADLINE)
    assert answer.findings[0] == "evidence counts for another 50 s"
    assert answer.findings[-1] == "enrolled GPUs: none yet"
    assert answer.pin_document == ""


async def test_fit_pod_tells_when_a_node_got_the_class_that_is_not_wanted(world: World) -> None:
    world.past.changes = [
        ClassChange(
            "2026-11-28T12:03:00Z", PastClass("old", "L0", None), PastClass("new", "L0", None)
        )
    ]
    refused = [pb.Fit(node=f"n{x:02}", code="HASH_MISMATCH") for x in range(12)]
    busy = pb.Fit(node="busy", code="GPU_BUSY")
    world.fits += [pb.Fit(node="a-never", code="HASH_MISMATCH"), busy, *refused]
    request = pb.FitPodRequest(pod_json=b"{}")
    told = {
        x.node: (x.class_change.at, x.class_change.old_hash, x.class_change.new_hash)
        for x in (await world.stub.FitPod(request, timeout=DEADLINE)).fits
        if x.HasField("class_change")
    }
    assert told == {f"n{x:02}": ("2026-11-28T12:03:00Z", "old", "new") for x in range(7)}

    world.past.fails = True
    fits = (await world.stub.FitPod(request, timeout=DEADLINE)).fits
    assert [x.node for x in fits if x.HasField("class_change")] == []


async def test_fit_pod_passes_bytes_and_namespace(world: World) -> None:
    request = pb.FitPodRequest(pod_json=b"{}", namespace="team-a")
    answer = await world.stub.FitPod(request, timeout=DEADLINE)
    assert list(answer.requirements) == ["team-a", "{}"]


@pytest.mark.parametrize(
    ("method", "request_", "expected"),
    [
        ("GetNode", pb.GetNodeRequest(name="x"), ("NOT_FOUND", "NODE_UNKNOWN", "name")),
        ("GetNode", pb.GetNodeRequest(name="A\x1b"), ("INVALID_ARGUMENT", "REQ_INVALID", "name")),
        ("ListGpus", pb.ListGpusRequest(node="_"), ("INVALID_ARGUMENT", "REQ_INVALID", "node")),
        ("ExplainNode", pb.ExplainNodeRequest(), ("INVALID_ARGUMENT", "REQ_INVALID", "name")),
        ("GetClass", pb.GetClassRequest(), ("INVALID_ARGUMENT", "REQ_INVALID", "class_ref")),
        (
            "GetClass",
            pb.GetClassRequest(class_ref="nope"),
            ("NOT_FOUND", "CLASS_UNKNOWN", "class_ref"),
        ),
        ("FitPod", pb.FitPodRequest(), ("INVALID_ARGUMENT", "REQ_INVALID", "pod_json")),
        (
            "FitPod",
            pb.FitPodRequest(pod_json=b"x" * (1024 * 1024 + 1)),
            ("INVALID_ARGUMENT", "REQ_INVALID", "pod_json"),
        ),
        (
            "FitPod",
            pb.FitPodRequest(pod_json=b"{}", namespace="No"),
            ("INVALID_ARGUMENT", "REQ_INVALID", "namespace"),
        ),
    ],
)
async def test_bad_input_names_the_field(
    world: World, method: str, request_: object, expected: tuple[str, str, str]
) -> None:
    status, reason, field_ = expected
    with pytest.raises(aio.AioRpcError) as caught:
        await getattr(world.stub, method)(request_, timeout=DEADLINE)
    assert caught.value.code() is grpc.StatusCode[status]
    assert _reason(caught.value) == (reason, field_)
    details = caught.value.details() or ""
    assert details.startswith(f"{reason}: ")
    assert "\x1b" not in details


async def _next(stream: AsyncIterator[pb.WatchNodesResponse]) -> pb.WatchNodesResponse:
    return await asyncio.wait_for(anext(stream), DEADLINE)


async def test_watch_lists_marks_and_follows(world: World) -> None:
    world.fleet.set(fleet_of(node_view("a"), node_view("b")))
    call = world.stub.WatchNodes(pb.WatchNodesRequest(), timeout=DEADLINE)
    stream = aiter(call)
    assert [(await _next(stream)).node.name for _ in range(2)] == ["a", "b"]
    assert (await _next(stream)).synced
    new = node_view("a", blocked=past_refusal(ReasonCode.SIG_INVALID))
    world.fleet.set(fleet_of(new))
    first, second = await _next(stream), await _next(stream)
    assert (first.node.name, first.node.state, first.removed) == ("a", "revoked", False)
    assert (second.node.name, second.removed) == ("b", True)
    call.cancel()


async def test_watch_tells_when_a_lease_runs_out_without_any_event(world: World) -> None:
    soon = acceptance(fresh_until_ns=world.clock.boottime + S // 20)
    world.fleet.set(fleet_of(node_view("a", acceptance=soon)))
    call = world.stub.WatchNodes(pb.WatchNodesRequest(), timeout=DEADLINE)
    stream = aiter(call)
    assert (await _next(stream)).node.state == "eligible"
    assert (await _next(stream)).synced
    world.clock.advance(0.06)
    assert (await _next(stream)).node.state == "stale"
    call.cancel()


async def test_a_watcher_that_leaves_is_forgotten_and_watchers_are_bounded(world: World) -> None:
    calls = [world.stub.WatchNodes(pb.WatchNodesRequest(), timeout=HANG_S) for _ in range(16)]
    for call in calls:
        assert (await _next(aiter(call))).synced
    assert len(world.fleet.listeners) == 16
    for call in calls:
        call.cancel()
    await asyncio.wait_for(world.fleet.nobody_listens.wait(), DEADLINE)


async def test_more_watchers_than_allowed_are_refused_at_once(world: World) -> None:
    channels = [
        aio.insecure_channel(world.server.address, options=(("grpc.use_local_subchannel_pool", 1),))
        for _ in range(3)
    ]
    stubs: list[Any] = [pb_grpc.FleetServiceStub(channel) for channel in channels]
    calls = [stubs[n % 3].WatchNodes(pb.WatchNodesRequest(), timeout=HANG_S) for n in range(64)]
    for call in calls:
        assert (await _next(aiter(call))).synced
    with pytest.raises(aio.AioRpcError) as caught:
        await _next(aiter(world.stub.WatchNodes(pb.WatchNodesRequest(), timeout=DEADLINE)))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert _reason(caught.value)[0] == "LIMIT_STREAMS"
    for channel in channels:
        await channel.close()


async def test_health_follows_readiness_and_the_end(world: World) -> None:
    stub: Any = health_pb2_grpc.HealthStub(world.channel)
    await set_serving(world.server, ready=False)
    watch = aiter(stub.Watch(health_pb2.HealthCheckRequest(), timeout=DEADLINE))
    serving = health_pb2.HealthCheckResponse
    assert (await asyncio.wait_for(anext(watch), DEADLINE)).status == serving.NOT_SERVING
    await set_serving(world.server, ready=True)
    assert (await asyncio.wait_for(anext(watch), DEADLINE)).status == serving.SERVING
    answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE)
    assert answer.status == serving.SERVING


async def test_what_is_not_registered_is_unimplemented(world: World) -> None:
    call: Any = world.channel.unary_unary("/gpuwarden.wire.v1.OperatorService/AcceptNode")
    with pytest.raises(aio.AioRpcError) as caught:
        await call(b"", timeout=DEADLINE)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@dataclass
class Somebody:
    """Authenticates everybody as one caller that may change."""

    caller: Caller | Refusal

    async def __call__(self, _context: object, _method: str, _now: datetime) -> Caller | Refusal:
        return self.caller


async def _served_as(
    tmp_path: Path, caller: Caller | Refusal, clock: FakeClock, world: World
) -> tuple[RpcServer, SeenCalls]:
    calls = SeenCalls()
    service = FleetServicer(
        world.fleet,
        clock,
        policy=lambda: DEFAULT_POLICY,
        shown=lambda name: _shown(name, world.records, world.fleet, world.clock),
        readiness=lambda: Readiness((), ()),
        labels=lambda: no_labels,
        fit=_fit_of(world.fits),
        installation=lambda: INSTALLATION,
        past=world.past,
    )
    server = local_server(
        path=tmp_path / "other.sock",
        interceptor=AuthorizationInterceptor(
            authenticate=Somebody(caller), observer=calls, clock=clock
        ),
        services=(lambda s: pb_grpc.add_FleetServiceServicer_to_server(service, s),),
    )
    await server.start()
    return server, calls


async def test_a_tenant_is_not_told_how_a_node_s_class_changed(
    tmp_path: Path, world: World
) -> None:
    world.past.changes = [
        ClassChange(
            "2026-11-28T12:03:00Z", PastClass("old", "L0", None), PastClass("new", "L0", None)
        )
    ]
    world.fits += [pb.Fit(node="n", code="HASH_MISMATCH")]
    told = []
    for kind in (CallerKind.INSPECTOR, CallerKind.TENANT):
        caller = Caller(kind, "user jane", None)
        server, _ = await _served_as(tmp_path, caller, world.clock, world)
        async with aio.insecure_channel(server.address) as channel:
            stub: Any = pb_grpc.FleetServiceStub(channel)
            request = pb.FitPodRequest(pod_json=b"{}")
            (fit,) = (await stub.FitPod(request, timeout=DEADLINE)).fits
            told.append(fit.HasField("class_change"))
        await server.stop(0)
    assert told == [True, False]


@pytest.mark.parametrize(
    ("caller", "status", "reason"),
    [
        (Caller(CallerKind.AGENT, "spiffe://td/a", None), "PERMISSION_DENIED", "ROLE_DENIED"),
        (Refusal(ReasonCode.CHAIN_INVALID, "no path"), "UNAUTHENTICATED", "CHAIN_INVALID"),
        (Refusal(ReasonCode.PEER_ROLE_UNKNOWN), "PERMISSION_DENIED", "PEER_ROLE_UNKNOWN"),
    ],
)
async def test_who_may_not_call_is_reported_so_on_unary_and_streams(
    tmp_path: Path, world: World, caller: Caller | Refusal, status: str, reason: str
) -> None:
    server, calls = await _served_as(tmp_path, caller, world.clock, world)
    async with aio.insecure_channel(server.address) as channel:
        stub: Any = pb_grpc.FleetServiceStub(channel)
        for attempt in (
            stub.ListNodes(pb.ListNodesRequest(), timeout=DEADLINE),
            anext(aiter(stub.WatchNodes(pb.WatchNodesRequest(), timeout=DEADLINE))),
        ):
            with pytest.raises(aio.AioRpcError) as caught:
                await attempt
            assert caught.value.code() is grpc.StatusCode[status]
            assert _reason(caught.value)[0] == reason
    assert [seen[2].code for seen in calls.seen if seen[2]] == [reason, reason]
    assert world.fleet.listeners == []
    await server.stop(0)


async def test_a_stream_ends_with_the_callers_certificate(tmp_path: Path, world: World) -> None:
    end = datetime.fromtimestamp(world.clock.wall / 1e9 + 0.2).astimezone()
    caller = Caller(CallerKind.INSPECTOR, "spiffe://td/i", end)
    server, _ = await _served_as(tmp_path, caller, world.clock, world)
    async with aio.insecure_channel(server.address) as channel:
        stub: Any = pb_grpc.FleetServiceStub(channel)
        stream = aiter(stub.WatchNodes(pb.WatchNodesRequest(), timeout=DEADLINE))
        assert (await _next(stream)).synced
        with pytest.raises(aio.AioRpcError) as caught:
            await _next(stream)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert _reason(caught.value)[0] == "SVID_EXPIRED"
    await server.stop(0)


def test_only_a_local_caller_needs_no_certificate() -> None:
    with pytest.raises(ValueError, match="only a local caller"):
        local_caller(Caller(CallerKind.OPERATOR, "x", None))
