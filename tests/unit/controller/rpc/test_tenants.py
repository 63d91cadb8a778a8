"""What a tenant is shown and refused: nothing of other namespaces leaves with an answer."""

from dataclasses import replace
from typing import Any

import pytest

from controller.access import Caller, CallerKind, Person, calling
from controller.binding.request import BoundPod
from controller.explain.tenant_messages import shown_reservations, shown_trace
from controller.ledger.record import PodRef
from controller.ledger.store import Entry, LedgerSnapshot
from controller.messages import trace_message
from controller.rpc.services import PlacementServicer
from gpuwarden.reason_texts import EXPLANATIONS
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.v1 import placement_pb2 as pb
from tests.builders.accounts import (
    GPU,
    OTHER_UID,
    account,
    held,
    node_of,
    pod_document,
    process,
)
from tests.builders.ledger import holder, record
from tests.fakes.clock import FakeClock

SECRET = "team-b/secret"  # noqa: S105 -- the name of another tenant's pod
JANE = Caller(CallerKind.TENANT, "user jane", None, Person("jane"))
INSPECTOR = Caller(CallerKind.INSPECTOR, "user joe", None, Person("joe"))


class AbortedError(Exception):
    pass


class Context:
    async def abort(self, code: Any, details: str, _metadata: Any = ()) -> None:
        raise AbortedError(f"{code.name} {details}")


class Rights:
    """Tenants may read pods in team-a, and team-b/train-0."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def about_pods(self, caller: Caller, namespace: str, name: str = "") -> Refusal | None:
        if caller.kind is not CallerKind.TENANT:
            return None
        self.asked.append((namespace, name))
        if namespace == "team-a" or (namespace, name) == ("team-b", "train-0"):
            return None
        return Refusal(ReasonCode.ROLE_DENIED, f"needs get pods in {namespace}")


def _everything(message: Any) -> Any:
    """A message whose every field has a value; texts are of another namespace."""
    for field in message.DESCRIPTOR.fields:
        target = getattr(message, field.name)
        if field.message_type is not None:
            _everything(target.add() if field.is_repeated else target)
        elif field.is_repeated:
            target.append(SECRET)
        else:
            kinds = {field.CPPTYPE_STRING: SECRET, field.CPPTYPE_BOOL: True}
            setattr(message, field.name, kinds.get(field.cpp_type, 7))
    return message


# --- what is shown


def test_a_trace_names_no_other_pod() -> None:
    foreign = process(uid=OTHER_UID)
    secret = BoundPod(PodRef(SECRET, "infer-0", OTHER_UID), "gpu-1", None)
    found = account(pod_document(), held(), node=node_of(foreign), pod_of=lambda _: secret)
    assert found is not None
    service_answer = trace_message(found, 0)
    assert SECRET in str(service_answer)
    shown = shown_trace(service_answer)
    assert SECRET not in str(shown)
    assert OTHER_UID not in str(shown)
    stages = {x.name: x for x in shown.stages}
    assert stages["nvml"].state == "mismatch"
    assert list(stages["nvml"].findings) == ["what else is on these GPUs is shown to inspectors"]
    before = {x.name: x for x in service_answer.stages}
    for name in ("required", "reserved", "bound", "kubelet"):
        assert stages[name] == before[name]
    assert shown.wrong
    assert shown.uid == service_answer.uid


def test_a_tenant_is_told_that_its_gpu_has_failed() -> None:
    node = node_of(process(uid=OTHER_UID))
    assert node.acceptance is not None
    first, second = node.acceptance.gpus
    gpus = (replace(first, unhealthy="xid 79"), second)
    node = replace(node, acceptance=replace(node.acceptance, gpus=gpus))
    found = account(pod_document(), held(), node=node)
    assert found is not None
    stages = {x.name: x for x in shown_trace(trace_message(found, 0)).stages}
    failed, elsewhere = stages["nvml"].findings
    assert failed.startswith("its GPU GPU-gpu-1-0 is unhealthy (xid 79)")
    assert elsewhere == "what else is on these GPUs is shown to inspectors"


def test_texts_about_nodes_and_counts_of_holders_are_left_out() -> None:
    full = _everything(pb.ExplainPodResponse())
    full.code, full.stages[0].name = ReasonCode.GPU_BUSY, "nvml"
    full.earlier[0].share_group = ""
    shown = shown_trace(full)
    assert shown.detail == EXPLANATIONS[ReasonCode.GPU_BUSY].cause
    assert shown.rejections[0] == pb.Rejection(code=SECRET, count=7, nodes=[SECRET])
    assert shown.earlier[0].gpus[0].holders == 1
    assert list(shown.stages[0].findings) != [SECRET]


@pytest.mark.parametrize("code", ["REQ_INVALID", "QUOTA_EXCEEDED", "BYPASS_ENV"])
def test_what_the_pod_itself_is_refused_for_is_said_in_full(code: str) -> None:
    full = pb.ExplainPodResponse(code=code, detail="gpu-count: expected a number")
    assert shown_trace(full).detail == "gpu-count: expected a number"


def test_a_field_that_is_added_is_not_shown_by_oversight() -> None:
    """Each message that tenants get has just the fields that somebody has judged."""
    judged: dict[Any, int] = {
        pb.ExplainPodResponse: 19,
        pb.Stage: 7,
        pb.Rejection: 4,
        pb.Reservation: 12,
        pb.ReservedGpu: 3,
        pb.PodRecord: 8,
        pb.ListReservationsResponse: 2,
    }
    assert {x: len(x.DESCRIPTOR.fields) for x in judged} == judged


def test_holders_are_counted_within_a_share_group_alone() -> None:
    gpus = [pb.ReservedGpu(uuid=GPU, state="Confirmed", holders=3)]
    page = pb.ListReservationsResponse(
        reservations=[
            pb.Reservation(id="a", share_group="0=n:0", gpus=gpus),
            pb.Reservation(id="b", gpus=gpus),
        ],
        next_after="b",
    )
    shown = shown_reservations(page)
    assert [x.gpus[0].holders for x in shown.reservations] == [3, 1]
    assert shown.next_after == "b"
    assert shown.reservations[0] == page.reservations[0]


# --- who is asked for what


def placement(rights: Rights) -> PlacementServicer:
    theirs = holder(pod=PodRef("team-b", "secret", "uid-9", None))
    ledger = LedgerSnapshot.of(
        [Entry(record(), "1"), Entry(record(theirs, gpu="GPU-b"), "1")], fresh_until_ns=1_000
    )

    async def about(_namespace: str, _name: str) -> Any:
        return account(pod_document(), held())

    return PlacementServicer(
        lambda: ledger, FakeClock(boottime=0), about=about, about_pods=rights.about_pods
    )


async def _listed(service: PlacementServicer, caller: Caller, **fields: Any) -> list[str]:
    context: Any = Context()
    with calling(caller):
        found = await service.ListReservations(pb.ListReservationsRequest(**fields), context)
    return [x.namespace for x in found.reservations]


async def test_a_tenant_lists_one_namespace_and_others_all() -> None:
    rights = Rights()
    service = placement(rights)
    assert await _listed(service, JANE, namespace="team-a") == ["team-a"]
    assert await _listed(service, INSPECTOR) == ["team-a", "team-b"]
    assert rights.asked == [("team-a", "")]
    with pytest.raises(AbortedError, match="PERMISSION_DENIED ROLE_DENIED: needs get pods in team"):
        await _listed(service, JANE, namespace="team-b")
    with pytest.raises(AbortedError, match="give it"):
        await _listed(service, JANE)
    assert len(rights.asked) == 2


async def test_a_tenant_explains_a_pod_that_they_may_read() -> None:
    rights = Rights()
    service, context = placement(rights), Context()
    for namespace, name in (("team-a", "train-0"), ("team-b", "train-0")):
        with calling(JANE):
            request = pb.ExplainPodRequest(namespace=namespace, name=name)
            assert (await service.ExplainPod(request, context)).stages  # type: ignore[arg-type]
    request = pb.ExplainPodRequest(namespace="team-b", name="train-1")
    with calling(JANE), pytest.raises(AbortedError, match="PERMISSION_DENIED"):
        await service.ExplainPod(request, context)  # type: ignore[arg-type]
    assert rights.asked == [("team-a", "train-0"), ("team-b", "train-0"), ("team-b", "train-1")]
