"""OperatorService on a socket: what a request must look like, who acts, what comes back."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from controller.access import Caller, CallerKind, owner_of_socket, present_caller
from controller.binding.operator_release import ReleaseDone, ReleaseService
from controller.binding.records import ReleaseOrder
from controller.fleet.enrollment import (
    AUTOMATIC,
    Candidate,
    EnrolledGpu,
    EnrollmentRecord,
    QuarantineEntry,
)
from controller.fleet.quarantine import show
from controller.operations.operator_service import Done, OperatorService, Order
from controller.rpc.interceptor import AuthorizationInterceptor, local_caller
from controller.rpc.server import local_server
from controller.rpc.services import MAX_REASON, OperatorServicer
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.error_metadata import FIELD_KEY, REASON_KEY
from gpuwarden.wire.v1 import operator_pb2 as pb
from gpuwarden.wire.v1 import operator_pb2_grpc as pb_grpc
from tests.fakes.calls import SeenCalls
from tests.fakes.clock import FakeClock
from tests.hang import HANG_S

DEADLINE = HANG_S
OLD, NEW = EnrolledGpu("GPU-old", "1", "k" * 64, "00000000:01:00.0"), EnrolledGpu("GPU-new", "2")
CANDIDATE = Candidate("INVENTORY_CHANGED", "uid-2", None, (NEW,), "e" * 64)
DENIAL = QuarantineEntry(
    "INVENTORY_CHANGED", "swapped", AUTOMATIC, 1_700_000_000_123_000_000, CANDIDATE
)
RECORD = EnrollmentRecord("gpu-1", "uid-1", "spiffe://x/spire/agent/a", (OLD,), denial=DENIAL)
SHOWN = show("gpu-1", RECORD, None, unwritten=None, now_ns=0)


@dataclass
class FakeOperatorService(OperatorService):
    """Remembers orders and answers as told."""

    answer: Done | Refusal = field(default_factory=lambda: Done(SHOWN))
    orders: list[tuple[str, Order, str | None]] = field(default_factory=list)

    async def accept(self, order: Order, expected: str) -> Done | Refusal:
        self.orders.append(("accept", order, expected))
        return self.answer

    async def quarantine(self, order: Order) -> Done | Refusal:
        self.orders.append(("quarantine", order, None))
        return self.answer

    async def release(self, order: Order, expected: str) -> Done | Refusal:
        self.orders.append(("release", order, expected))
        return self.answer


class FakeReleases(ReleaseService):
    """Likewise."""

    def __init__(self) -> None:
        self.answer: ReleaseDone | Refusal = ReleaseDone("gpu-1", "team-a", "train-0")
        self.orders: list[ReleaseOrder] = []

    async def release(self, order: ReleaseOrder) -> ReleaseDone | Refusal:
        self.orders.append(order)
        return self.answer


@dataclass
class World:
    operator_service: FakeOperatorService
    callers: list[Caller]
    stub: Any
    releases: FakeReleases


@pytest.fixture(params=[True])
async def world(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """Parametrized indirectly with whether anything is reserved."""
    operator_service, callers, releases = (
        FakeOperatorService(),
        [owner_of_socket(1000)],
        FakeReleases(),
    )
    service = OperatorServicer(operator_service, releases if request.param else None)

    async def authenticate(_context: object, _method: str, _now: datetime) -> Caller:
        return callers[0]

    server = local_server(
        path=tmp_path / "fleet.sock",
        interceptor=AuthorizationInterceptor(
            authenticate=authenticate, observer=SeenCalls(), clock=FakeClock()
        ),
        services=(lambda s: pb_grpc.add_OperatorServiceServicer_to_server(service, s),),
    )
    await server.start()
    async with aio.insecure_channel(server.address) as channel:
        yield World(operator_service, callers, pb_grpc.OperatorServiceStub(channel), releases)
    await server.stop(0)


def accept(**changes: str) -> pb.AcceptNodeRequest:
    fields = {"name": "gpu-1", "reason": "ticket 7", "expected_version": "v1"}
    return pb.AcceptNodeRequest(**(fields | changes))


def of_gpu(**changes: str) -> pb.ReleaseGpuRequest:
    fields = {"gpu": "GPU-a", "reservation": "v1.k.x", "reason": "ticket 7"}
    return pb.ReleaseGpuRequest(**(fields | changes))


async def test_the_socket_acts_for_its_owner(world: World) -> None:
    await world.stub.AcceptNode(accept(reason="  ticket 7 "), timeout=DEADLINE)
    await world.stub.QuarantineNode(
        pb.QuarantineNodeRequest(name="gpu-1", reason="é"), timeout=DEADLINE
    )
    await world.stub.ReleaseNode(
        pb.ReleaseNodeRequest(name="gpu-1", reason="x", expected_version="v2"), timeout=DEADLINE
    )
    assert world.operator_service.orders == [
        ("accept", Order("gpu-1", "ticket 7", "local uid 1000"), "v1"),
        ("quarantine", Order("gpu-1", "é", "local uid 1000"), None),
        ("release", Order("gpu-1", "x", "local uid 1000"), "v2"),
    ]


@pytest.mark.parametrize("name", ["ann@example.org", "a", "x" * 100])
async def test_who_the_caller_says_to_be_is_recorded_as_a_claim(world: World, name: str) -> None:
    """In every act."""
    await world.stub.AcceptNode(accept(claimed_by=name), timeout=DEADLINE)
    quarantine = pb.QuarantineNodeRequest(name="gpu-1", reason="x", claimed_by=name)
    await world.stub.QuarantineNode(quarantine, timeout=DEADLINE)
    release = pb.ReleaseNodeRequest(
        name="gpu-1", reason="x", expected_version="v2", claimed_by=name
    )
    await world.stub.ReleaseNode(release, timeout=DEADLINE)
    await world.stub.ReleaseGpu(of_gpu(claimed_by=name), timeout=DEADLINE)
    actors = [order.actor for _, order, _ in world.operator_service.orders]
    actors += [order.actor for order in world.releases.orders]
    assert actors == [f"local uid 1000, claimed by {name}"] * 4


@pytest.mark.parametrize("name", ["Ann B", "ann, proven", "ann\n", "x" * 101, "é"])
async def test_a_claim_that_is_no_name_is_refused(world: World, name: str) -> None:
    calls = (
        (world.stub.AcceptNode, accept(claimed_by=name)),
        (
            world.stub.QuarantineNode,
            pb.QuarantineNodeRequest(name="gpu-1", reason="x", claimed_by=name),
        ),
        (world.stub.ReleaseGpu, of_gpu(claimed_by=name)),
    )
    for method, request in calls:
        with pytest.raises(aio.AioRpcError) as caught:
            await method(request, timeout=DEADLINE)
        metadata = dict(caught.value.trailing_metadata() or ())
        assert (metadata[REASON_KEY], metadata[FIELD_KEY]) == ("REQ_INVALID", "claimed_by")
    assert world.operator_service.orders == []
    assert world.releases.orders == []


async def test_an_operator_acts_under_its_own_name(world: World) -> None:
    name = "spiffe://example.org/gpuwarden/operator/ann"
    world.callers[0] = Caller(CallerKind.OPERATOR, name, None)
    await world.stub.AcceptNode(accept(), timeout=DEADLINE)
    assert world.operator_service.orders[0][1].actor == name


@pytest.mark.parametrize("kind", sorted(set(CallerKind) - {CallerKind.OPERATOR, CallerKind.LOCAL}))
async def test_nobody_else_acts(world: World, kind: CallerKind) -> None:
    world.callers[0] = Caller(kind, "somebody", None)
    calls = (
        (world.stub.AcceptNode, accept()),
        (world.stub.QuarantineNode, pb.QuarantineNodeRequest(name="gpu-1", reason="x")),
        (world.stub.ReleaseNode, pb.ReleaseNodeRequest(name="gpu-1", reason="x")),
        (world.stub.ReleaseGpu, of_gpu()),
    )
    for method, request in calls:
        with pytest.raises(aio.AioRpcError) as caught:
            await method(request, timeout=DEADLINE)
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert world.operator_service.orders == []
    assert world.releases.orders == []


@pytest.mark.parametrize(
    ("changes", "field_name", "text"),
    [
        ({"name": ""}, "name", "an RFC 1123 node name"),
        ({"name": "../x"}, "name", "an RFC 1123 node name"),
        ({"reason": ""}, "reason", "1 to 500 printable characters"),
        ({"reason": "   "}, "reason", "1 to 500 printable characters"),
        ({"reason": "a\nforged"}, "reason", r"is 'a\nforged'"),
        ({"reason": "\x1b[31m"}, "reason", r"is '\x1b[31m'"),
        ({"reason": "x" * (MAX_REASON + 1)}, "reason", "is 501 characters"),
        ({"expected_version": ""}, "expected_version", "the version that was shown"),
        ({"expected_version": "x" * 129}, "expected_version", "the version that was shown"),
    ],
)
async def test_bad_input_names_its_field(
    world: World, changes: dict[str, str], field_name: str, text: str
) -> None:
    with pytest.raises(aio.AioRpcError) as caught:
        await world.stub.AcceptNode(accept(**changes), timeout=DEADLINE)
    metadata = dict(caught.value.trailing_metadata() or ())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (metadata[REASON_KEY], metadata[FIELD_KEY]) == ("REQ_INVALID", field_name)
    assert text in (caught.value.details() or "")
    assert world.operator_service.orders == []


async def test_a_gpu_is_released(world: World) -> None:
    answer = await world.stub.ReleaseGpu(of_gpu(reason=" ticket 7 "), timeout=DEADLINE)
    assert answer == pb.ReleaseGpuResponse(node="gpu-1", namespace="team-a", pod="train-0")
    expected = ReleaseOrder("GPU-a", "v1.k.x", "ticket 7", "local uid 1000")
    assert world.releases.orders == [expected]
    world.releases.answer = ReleaseDone(already=True)
    answer = await world.stub.ReleaseGpu(of_gpu(), timeout=DEADLINE)
    assert answer == pb.ReleaseGpuResponse(already=True)


@pytest.mark.parametrize(
    ("changes", "field_name", "text"),
    [
        ({"gpu": ""}, "gpu", "a UUID as GPU-… or MIG-…"),
        ({"gpu": "../nodes/x"}, "gpu", "a UUID as GPU-… or MIG-…"),
        ({"gpu": "GPU-" + "a" * 249}, "gpu", "a UUID as GPU-… or MIG-…"),
        ({"reservation": ""}, "reservation", "the id of a reservation"),
        ({"reservation": "v1\n"}, "reservation", "the id of a reservation"),
        ({"reservation": "a" * 193}, "reservation", "the id of a reservation"),
        ({"reason": ""}, "reason", "1 to 500 printable characters"),
        ({"reason": "x" * (MAX_REASON + 1)}, "reason", "is 501 characters"),
    ],
)
async def test_a_bad_order_about_a_gpu_names_its_field(
    world: World, changes: dict[str, str], field_name: str, text: str
) -> None:
    with pytest.raises(aio.AioRpcError) as caught:
        await world.stub.ReleaseGpu(of_gpu(**changes), timeout=DEADLINE)
    metadata = dict(caught.value.trailing_metadata() or ())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (metadata[REASON_KEY], metadata[FIELD_KEY]) == ("REQ_INVALID", field_name)
    assert text in (caught.value.details() or "")
    assert world.releases.orders == []


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ReasonCode.RESERVATION_IN_FORCE, grpc.StatusCode.FAILED_PRECONDITION),
        (ReasonCode.RESERVATION_IN_USE, grpc.StatusCode.FAILED_PRECONDITION),
        (ReasonCode.CONTROLLER_NOT_READY, grpc.StatusCode.UNAVAILABLE),
    ],
)
async def test_a_gpu_that_is_not_released(
    world: World, code: ReasonCode, status: grpc.StatusCode
) -> None:
    world.releases.answer = Refusal(code, "because")
    with pytest.raises(aio.AioRpcError) as caught:
        await world.stub.ReleaseGpu(of_gpu(), timeout=DEADLINE)
    assert (caught.value.code(), caught.value.details()) == (status, f"{code}: because")


@pytest.mark.parametrize("world", [False], indirect=True)
async def test_where_nothing_is_reserved_nothing_is_released(world: World) -> None:
    with pytest.raises(aio.AioRpcError) as caught:
        await world.stub.ReleaseGpu(of_gpu(), timeout=DEADLINE)
    assert "LEDGER_UNAVAILABLE: this controller reserves nothing" in (caught.value.details() or "")


async def test_the_longest_reason_is_allowed(world: World) -> None:
    await world.stub.AcceptNode(accept(reason="x" * MAX_REASON), timeout=DEADLINE)
    assert len(world.operator_service.orders[0][1].reason) == MAX_REASON


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ReasonCode.ENROLLMENT_CONFLICT, grpc.StatusCode.FAILED_PRECONDITION),
        (ReasonCode.CANDIDATE_UNKNOWN, grpc.StatusCode.FAILED_PRECONDITION),
        (ReasonCode.QUARANTINE_UNKNOWN, grpc.StatusCode.FAILED_PRECONDITION),
        (ReasonCode.GPU_CLAIMED_TWICE, grpc.StatusCode.FAILED_PRECONDITION),
        (ReasonCode.NODE_UNKNOWN, grpc.StatusCode.NOT_FOUND),
        (ReasonCode.AUDIT_UNAVAILABLE, grpc.StatusCode.UNAVAILABLE),
        (ReasonCode.ENROLLMENT_STALE, grpc.StatusCode.UNAVAILABLE),
    ],
)
async def test_refusals_are_statuses(
    world: World, code: ReasonCode, status: grpc.StatusCode
) -> None:
    world.operator_service.answer = Refusal(code, "because")
    with pytest.raises(aio.AioRpcError) as caught:
        await world.stub.AcceptNode(accept(), timeout=DEADLINE)
    assert caught.value.code() is status
    assert caught.value.details() == f"{code}: because"
    assert dict(caught.value.trailing_metadata() or ())[REASON_KEY] == code


async def test_everything_that_decides_is_reported(world: World) -> None:
    answer = await world.stub.AcceptNode(accept(), timeout=DEADLINE)
    told = answer.enrollment
    assert [(x.uuid, x.serial, x.identity_key, x.pci_bus_id, x.enrolled) for x in told.gpus] == [
        ("GPU-old", "1", "k" * 64, "00000000:01:00.0", False)
    ]
    assert (told.node_uid, told.spire_agent) == ("uid-1", "spiffe://x/spire/agent/a")
    assert (told.denial.code, told.denial.reason, told.denial.actor, told.denial.at) == (
        "INVENTORY_CHANGED",
        "swapped",
        "controller",
        "2023-11-14T22:13:20.123Z",
    )
    assert (told.candidate.code, told.candidate.evidence_digest) == ("INVENTORY_CHANGED", "e" * 64)
    assert [(x.change, x.subject, x.enrolled, x.offered) for x in told.candidate.changes] == [
        ("removed", "GPU-old", "1", ""),
        ("added", "GPU-new", "", "2"),
        ("changed", "node UID", "uid-1", "uid-2"),
        ("changed", "SPIRE agent", "spiffe://x/spire/agent/a", ""),
    ]
    assert told.version == SHOWN.version
    assert (told.previous_quarantine_ended_by, told.previous_quarantine_at) == ("", "")


async def test_who_ended_a_quarantine_is_reported_if_it_is_known(world: World) -> None:
    for record, ended in (
        (RECORD.lifted(DENIAL, "user ann"), ("user ann", "2023-11-14T22:13:20.123Z")),
        (replace(RECORD, denial=None, lifted_ns=DENIAL.wall_ns), ("", "")),
    ):
        world.operator_service.answer = Done(
            show("gpu-1", record, None, unwritten=None, now_ns=0), ()
        )
        answer = await world.stub.ReleaseNode(
            pb.ReleaseNodeRequest(name="gpu-1", reason="x", expected_version="v2"), timeout=DEADLINE
        )
        told = answer.enrollment
        assert (told.previous_quarantine_ended_by, told.previous_quarantine_at) == ended


async def test_what_is_not_there_is_absent(world: World) -> None:
    bare = replace(RECORD, gpus=(), denial=None)
    world.operator_service.answer = Done(
        show("gpu-1", bare, None, unwritten=None, now_ns=0), (), ("slow",)
    )
    request = pb.QuarantineNodeRequest(name="gpu-1", reason="x")
    answer = await world.stub.QuarantineNode(request, timeout=DEADLINE)
    assert not answer.enrollment.HasField("denial")
    assert not answer.enrollment.HasField("candidate")
    assert list(answer.warnings) == ["slow"]


def test_outside_of_a_call_nobody_calls() -> None:
    with pytest.raises(LookupError):
        present_caller()


async def test_the_socket_of_an_owner_needs_no_certificate() -> None:
    caller = await local_caller(owner_of_socket(0))(None, "", None)  # type: ignore[arg-type] # looks at neither
    assert caller == Caller(CallerKind.LOCAL, "local uid 0", None)
