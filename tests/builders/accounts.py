"""Pods with a past, and what is known of them."""

from dataclasses import replace
from typing import Any

import msgspec

from controller.explain.pod import AllocationTrace, Asked, trace_of
from controller.fleet.view import NodeView
from controller.ledger.record import GpuRecord, HolderState, PodRef
from controller.ledger.reservation_id import ReservationSubject
from controller.ledger.store import Entry, LedgerSnapshot
from controller.placement.explanation import PodExplanation, explain_bound, explain_waiting
from controller.placement.keys import RequirementRules
from controller.placement.pod import decode_pod
from controller.placement.requirements import Requirements, parse_requirements
from controller.policy import NodeMode
from gpuwarden.audit.reading import Recent
from gpuwarden.evidence.model import Allocation, GpuProcess
from tests.builders.bindings import IDS
from tests.builders.fleet_views import NOW_NS, fleet, healthy, mig_slice
from tests.builders.ledger import holder
from tests.builders.scenes import scene

UID = "0b7c1a52-0000-4000-8000-000000000001"
OTHER_UID = "0b7c1a52-0000-4000-8000-000000000002"
NODE = "gpu-1"
GPU = "GPU-gpu-1-0"
OTHER_GPU = "GPU-gpu-1-1"
ID = IDS.make(ReservationSubject("team-a", NODE, (GPU,), UID))
CREATED, SCHEDULED = "2026-11-27T20:00:00Z", "2026-11-27T20:00:03Z"
STARTED, MADE = "2026-11-27T20:00:05Z", "2026-11-27T20:00:02Z"
NOTHING = Recent()
REQUIREMENT = {"gpuwarden.dev/gpu-selector": "memory>=1Gi"}
TOLD = {
    "gpuwarden.dev/gpu-uuids-assigned": GPU,
    "gpuwarden.dev/reservation-id": ID,
    "gpuwarden.dev/guarantee-given": "node",
}


def pod_document(
    annotations: dict[str, str] | None = None, *, node: str = NODE, **status: Any
) -> dict[str, Any]:
    """A bound pod with one GPU whose container has started, unless said otherwise."""
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": SCHEDULED}
    found: dict[str, Any] = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "False"}, condition],
        "containerStatuses": [{"state": {"running": {"startedAt": STARTED}}}],
    }
    return {
        "metadata": {
            "namespace": "team-a",
            "name": "train-0",
            "uid": UID,
            "creationTimestamp": CREATED,
            "annotations": REQUIREMENT | TOLD if annotations is None else annotations,
        },
        "spec": {"containers": [{"name": "main"}], **({"nodeName": node} if node else {})},
        "status": found | status,
    }


def waiting_document(text: str = "0/3 nodes are available") -> dict[str, Any]:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": text,
        "lastTransitionTime": SCHEDULED,
    }
    return pod_document(
        REQUIREMENT, node="", phase="Pending", conditions=[condition], containerStatuses=None
    )


def held(
    state: HolderState = HolderState.CONFIRMED, gpu: str = GPU, uid: str = UID, **more: Any
) -> GpuRecord:
    ref = PodRef("team-a", "train-0", uid)
    part = holder(gpu, pod=ref, reservation=more.pop("reservation", ID), state=state, **more)
    return GpuRecord(gpu, NODE, (part,))


def node_of(
    *processes: GpuProcess,
    allocations: tuple[Allocation, ...] | None = (),
    mode: NodeMode = NodeMode.ENV,
    read: bool = True,
    split: tuple[str, ...] = (),
) -> NodeView:
    """The node, with what its last evidence says of use; `split`: MIG devices of its first GPU."""
    made = healthy(NODE, gpus=2, mode=mode)
    assert made.acceptance is not None
    first, second = made.acceptance.gpus
    first = replace(first, mig=bool(split), mig_devices=tuple(map(mig_slice, split)))
    accepted = replace(
        made.acceptance,
        gpus=(first, second),
        processes=processes if read else None,
        allocations=allocations,
    )
    return replace(made, acceptance=accepted)


def process(gpu: str = GPU, uid: str | None = UID) -> GpuProcess:
    return GpuProcess(gpu, 7, uid)


def given(gpu: str = GPU) -> Allocation:
    return Allocation("team-a", "train-0", "main", "nvidia.com/gpu", gpu)


def account(
    document: dict[str, Any] | None,
    *records: GpuRecord,
    node: NodeView | None = None,
    recent: Recent = NOTHING,
    **changes: Any,
) -> AllocationTrace | None:
    """The account of `train-0` where these are the ledger's records."""
    nodes = (node_of() if node is None else node,)
    body = None if document is None else msgspec.json.encode(document)
    explanation = None
    if body is not None:
        pod = decode_pod(body)
        needs, here = parse_requirements(pod, RequirementRules()), scene(*nodes)
        if isinstance(needs, Requirements) and not needs.managed:
            explanation = PodExplanation(needs=needs)
        elif pod.spec.node_name:
            explanation = explain_bound(needs, here, pod.spec.node_name)
        else:
            explanation = explain_waiting(needs, here, frozenset())
    asked = Asked(
        namespace="team-a",
        name="train-0",
        body=body,
        explanation=explanation,
        ledger=LedgerSnapshot.of(Entry(x, "1", MADE) for x in records),
        fleet=fleet(*nodes),
        ids=IDS,
        recent=recent,
        now_ns=NOW_NS,
    )
    return trace_of(replace(asked, **changes))
