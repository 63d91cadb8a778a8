"""Which node and which GPUs a pod gets at its creation, and what is said where it gets none."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from controller.admission.early_reservation import EarlyAsk
from controller.binding.decision import (
    BindingView,
    EarlyPlace,
    InFlight,
    choose_early,
    reference_of,
    taken_up,
)
from controller.binding.use import LedgerUse
from controller.fleet.directory import KnownNode, Taint
from controller.fleet.view import NodeView
from controller.ledger.record import GpuRecord, PodRef, ShareGroup
from controller.placement.cures import is_passing
from controller.placement.requirements import Requirements
from controller.policy import NodeMode
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.admitted_pods import Document, admitted, container, new_pod, validate
from tests.builders.bindings import NODE, binding_view
from tests.builders.fleet_views import (
    LEASE_NS,
    NOW_NS,
    acceptance,
    gpu,
    hash_of,
    healthy,
    node,
)
from tests.builders.ledger import holder, record

EARLY = {"gpuwarden.dev/reserve": "admission", "gpuwarden.dev/gpu-selector": "memory>=1Gi"}
UNBORN = PodRef("team-a", None, None, None)
SOMEBODY = PodRef("team-b", "other", "uid-other")
OWNER = {"kind": "StatefulSet", "name": "train", "uid": "set-1", "controller": True}
MAP = f"0={NODE}:2\n1={NODE}:2"
SHARE = ShareGroup("team-a", "set-1", f"{NODE}:2")


def early_pod(more: Mapping[str, str] | None = None, **spec: Any) -> Document:
    return new_pod(annotations=EARLY | dict(more or {}), **spec)


def ask_for(document: Document, *, enforced: bool = True) -> EarlyAsk:
    needs = validate(document).needs
    assert isinstance(needs, Requirements)
    return EarlyAsk(
        "request-1", "team-a", admitted(document), needs, None, enforced=enforced, dry_run=False
    )


def chosen(
    view: BindingView, document: Document | None = None, *, enforced: bool = True
) -> EarlyPlace | Refusal:
    ask = ask_for(early_pod() if document is None else document, enforced=enforced)
    nodes = {name: KnownNode() for name in view.scene.fleet.nodes}
    return choose_early(ask, view, LedgerUse(lambda: view.ledger).use, nodes)


def place(found: EarlyPlace | Refusal) -> tuple[str, tuple[str, ...]]:
    assert isinstance(found, EarlyPlace), found
    return found.node, found.reserve.gpus


def held(gpu_uuid: str, pod: PodRef = SOMEBODY, *, at: str = NODE) -> GpuRecord:
    return replace(record(holder(gpu_uuid, pod=pod), gpu=gpu_uuid), node=at)


def mapped(ordinal: int) -> Document:
    made = new_pod(
        annotations={
            "gpuwarden.dev/reserve": "admission",
            "gpu-scheduling-map": MAP,
            "gpuwarden.dev/ordinal": str(ordinal),
        }
    )
    made["metadata"]["ownerReferences"] = [OWNER]
    return made


# --- whom it is for


def test_a_pod_is_known_as_far_as_it_is_told() -> None:
    assert reference_of(ask_for(early_pod())) == UNBORN
    named = early_pod()
    named["metadata"] |= {"name": "train-0", "ownerReferences": [OWNER]}
    assert reference_of(ask_for(named)) == PodRef("team-a", "train-0", None, "set-1")


def test_what_is_claimed_names_pod_and_evidence() -> None:
    found = chosen(binding_view())
    assert isinstance(found, EarlyPlace)
    assert (found.reserve.pod, found.reserve.evidence) == (UNBORN, "e" * 64)


# --- the choice of a node


def few(name: str, gpus: int = 2) -> NodeView:
    return healthy(name, gpus=gpus)


def test_the_node_that_is_fullest_afterwards_comes_first() -> None:
    view = binding_view(few("gpu-1", 4), few("gpu-2", 2), few("gpu-3", 3))
    assert place(chosen(view)) == ("gpu-2", ("GPU-gpu-2-0",))


def test_of_equal_nodes_the_first_by_name_comes_first() -> None:
    view = binding_view(few("gpu-2"), few("gpu-1"), few("gpu-3"))
    assert place(chosen(view)) == ("gpu-1", ("GPU-gpu-1-0",))


def test_what_is_held_makes_a_node_fuller() -> None:
    view = binding_view(few("gpu-1"), few("gpu-2"), records=(held("GPU-gpu-2-0", at="gpu-2"),))
    assert place(chosen(view)) == ("gpu-2", ("GPU-gpu-2-1",))


def test_what_is_being_claimed_makes_a_node_fuller() -> None:
    view = binding_view(few("gpu-1"), few("gpu-2"), claiming={"GPU-gpu-2-0": InFlight(SOMEBODY)})
    assert place(chosen(view)) == ("gpu-2", ("GPU-gpu-2-1",))


def test_a_share_group_joins_a_claim_of_its_own_that_is_on_its_way() -> None:
    first, gpu_2 = PodRef("team-a", "train-0", None, "set-1"), f"GPU-{NODE}-2"
    own = binding_view(claiming={gpu_2: InFlight(first, SHARE)})
    assert place(chosen(own, mapped(1))) == (NODE, (gpu_2,))
    for other in (None, replace(SHARE, owner="set-2")):
        apart = binding_view(claiming={gpu_2: InFlight(first, other)})
        found = chosen(apart, mapped(1))
        assert isinstance(found, Refusal)
        assert found.code is ReasonCode.GPU_BUSY


def test_where_one_node_refuses_the_next_is_tried() -> None:
    tried: list[str] = []

    def refusal(name: str, _gpus: tuple[str, ...]) -> Refusal | None:
        tried.append(name)
        return None if name == "gpu-2" else Refusal(ReasonCode.GPU_BUSY, "unreserved use")

    view = binding_view(healthy("gpu-1"), healthy("gpu-2"), grant_refusal=refusal)
    assert place(chosen(view)) == ("gpu-2", ("GPU-gpu-2-0",))
    assert tried == ["gpu-1", "gpu-2"]


def test_not_all_of_many_nodes_are_tried() -> None:
    tried: list[str] = []

    def refusal(name: str, _gpus: tuple[str, ...]) -> Refusal:
        tried.append(name)
        return Refusal(ReasonCode.GPU_BUSY, "unreserved use")

    names = [f"gpu-{n:02}" for n in range(20)]
    view = binding_view(*map(few, names), grant_refusal=refusal)
    found = chosen(view)
    assert tried == names[:16]
    assert found == Refusal(ReasonCode.GPU_BUSY, "no node has what the pod asks for: 16 GPU_BUSY")


# --- what is said where there is none


def test_a_controller_that_is_not_ready_says_so_whatever_nodes_there_are() -> None:
    view = binding_view(not_ready="first round")
    not_ready = Refusal(ReasonCode.CONTROLLER_NOT_READY, "first round")
    assert chosen(view) == not_ready
    nowhere = replace(view.scene.fleet, nodes={})
    assert chosen(replace(view, scene=replace(view.scene, fleet=nowhere))) == not_ready


def test_of_one_node_its_own_refusal_is_said() -> None:
    busy = Refusal(ReasonCode.GPU_BUSY, "unreserved use")
    assert chosen(binding_view(grant_refusal=lambda _node, _gpus: busy)) == busy
    lost = chosen(binding_view(node(NODE, acceptance(gpus=[gpu(0, lost=True)]))))
    assert isinstance(lost, Refusal)
    assert lost.code is ReasonCode.GPU_LOST
    assert lost.detail.endswith("needs 1 GPU, node has 0, 0 free, 1 lost or unhealthy")
    assert "no node" not in lost.detail


def small(name: str) -> NodeView:
    """Its GPU is never large enough."""
    return node(name, acceptance(gpus=[gpu(0, f"GPU-{name}-0", memory_mib=1)]))


def lost(name: str) -> NodeView:
    return node(name, acceptance(gpus=[gpu(0, f"GPU-{name}-0", lost=True)]))


def stale(name: str) -> NodeView:
    gpus = [gpu(0, f"GPU-{name}-0")]
    return node(name, acceptance(gpus=gpus, issued_ns=NOW_NS - LEASE_NS))


def busy(name: str) -> NodeView:
    made = acceptance(gpus=[gpu(0, f"GPU-{name}-0")], processes={f"GPU-{name}-0": 1})
    return node(name, made)


def plugin(name: str) -> NodeView:
    return healthy(name, mode=NodeMode.PLUGIN)


@pytest.mark.parametrize(
    ("nodes", "code", "counts"),
    [
        (
            (busy("a"), lost("b"), lost("c")),
            ReasonCode.GPU_BUSY,
            "1 GPU_BUSY, 2 GPU_LOST; a: too few",
        ),
        (
            (small("a"), lost("b"), small("c")),
            ReasonCode.GPU_LOST,
            "1 GPU_LOST, 2 GPU_NO_MATCH; b: a GPU",
        ),
        (
            (plugin("a"), plugin("b"), small("c")),
            ReasonCode.GPU_NO_MATCH,
            "1 GPU_NO_MATCH, 2 NODE_MODE; c: too few",
        ),
        (
            (node("a"), node("b"), lost("c")),
            ReasonCode.GPU_LOST,
            "1 GPU_LOST, 2 NODE_NO_EVIDENCE; c: a GPU",
        ),
    ],
    ids=["busy ones come free", "lost ones may come back", "another mode", "no evidence"],
)
def test_of_many_nodes_what_says_most_is_said(
    nodes: tuple[NodeView, ...], code: ReasonCode, counts: str
) -> None:
    found = chosen(binding_view(*nodes))
    assert isinstance(found, Refusal)
    assert found.code is code
    assert found.detail.startswith(f"no node has what the pod asks for: {counts}")
    assert ": needs 1 GPU, node has " in found.detail


@pytest.mark.parametrize("gone", [stale("gpu-2"), node("gpu-2")], ids=["stale", "unknown"])
def test_a_pod_waits_for_the_node_that_others_cannot_stand_in_for(gone: NodeView) -> None:
    named = early_pod({"gpuwarden.dev/gpu-uuids": "GPU-gpu-2-0"})
    found = chosen(binding_view(healthy("gpu-1"), gone, healthy("gpu-3")), named)
    alone = chosen(binding_view(gone), named)
    assert isinstance(found, Refusal)
    assert isinstance(alone, Refusal)
    assert found.code is alone.code
    assert is_passing(found.code)
    assert f"2 GPU_NO_MATCH, 1 {found.code}; gpu-2: {alone.detail}" in found.detail


NOT_READY = Taint("node.kubernetes.io/not-ready", "", "NoExecute")
CORDONED = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
OURS = Taint("team", "b", "NoSchedule")


@pytest.mark.parametrize(
    ("there", "taints", "code"),
    [
        (stale("gpu-2"), (NOT_READY,), ReasonCode.NODE_STALE),
        (healthy("gpu-2"), (CORDONED,), ReasonCode.NODE_NO_EVIDENCE),
        (healthy("gpu-2"), (CORDONED, OURS), ReasonCode.GPU_NO_MATCH),
        (healthy("gpu-2"), (OURS,), ReasonCode.GPU_NO_MATCH),
        (healthy("gpu-2", gpus=0), (CORDONED,), ReasonCode.GPU_NO_MATCH),
    ],
    ids=["reboots", "cordoned", "cordoned and not for it", "not for it", "has not what it asks"],
)
def test_a_pod_waits_for_a_node_that_kubernetes_keeps_pods_off(
    there: NodeView, taints: tuple[Taint, ...], code: ReasonCode
) -> None:
    named = ask_for(early_pod({"gpuwarden.dev/gpu-uuids": "GPU-gpu-2-0"}))
    view = binding_view(healthy("gpu-1"), there, healthy("gpu-3"))
    nodes = {"gpu-1": KnownNode(), "gpu-2": KnownNode(taints=taints), "gpu-3": KnownNode()}
    found = choose_early(named, view, LedgerUse(lambda: view.ledger).use, nodes)
    assert isinstance(found, Refusal)
    assert found.code is code
    waits = "pods are kept off gpu-2 now by a taint node.kubernetes.io/*"
    assert found.detail.startswith(waits) == is_passing(code)


def test_of_codes_that_pass_the_commonest_is_said() -> None:
    found = chosen(binding_view(lost("a"), stale("b"), stale("c"), *map(small, "defg")))
    assert isinstance(found, Refusal)
    assert found.code is ReasonCode.NODE_STALE


def test_what_is_against_the_node_of_named_gpus_is_said_not_that_others_lack_them() -> None:
    named = early_pod(
        {"gpuwarden.dev/gpu-uuids": "GPU-gpu-2-0", "gpuwarden.dev/required-hash": hash_of("a")}
    )
    view = binding_view(healthy("gpu-1"), healthy("gpu-2", "b"), healthy("gpu-3"))
    found = chosen(view, named)
    assert isinstance(found, Refusal)
    assert found.code is ReasonCode.HASH_MISMATCH


def test_refusals_of_a_grant_count_with_those_of_the_evidence() -> None:
    busy_there = Refusal(ReasonCode.GPU_BUSY, "unreserved use")
    view = binding_view(
        few("a"), busy("b"), few("c"), grant_refusal=lambda _node, _gpus: busy_there
    )
    found = chosen(view)
    assert isinstance(found, Refusal)
    assert found.detail.startswith("no node has what the pod asks for: 3 GPU_BUSY; b: too few")


def test_no_node_at_all_says_what_outside_an_enforced_namespace_is_missing() -> None:
    view = binding_view()
    nowhere = replace(view, scene=replace(view.scene, fleet=replace(view.scene.fleet, nodes={})))
    text = "no node that the pod could go to is known by its evidence"
    assert chosen(nowhere) == Refusal(ReasonCode.NODE_NO_EVIDENCE, text)
    taint = "those with the taint gpuwarden.dev/managed are for pods of enforced namespaces"
    assert chosen(nowhere, enforced=False) == Refusal(
        ReasonCode.NODE_NO_EVIDENCE, f"{text}; {taint}"
    )


def test_kubelet_would_reject_the_pod_on_the_node_that_it_names() -> None:
    document = early_pod(nodeName=NODE, nodeSelector={"zone": "x"})
    text = "spec.nodeName: kubelet would reject the pod there for its selectors or tolerations"
    assert chosen(binding_view(), document) == Refusal(ReasonCode.BYPASS_NODE_NAME, text)


def test_where_kubelet_chooses_nothing_is_reserved() -> None:
    view = binding_view(healthy(NODE, mode=NodeMode.PLUGIN))
    text = "kubelet chooses the GPUs there: none can be reserved before"
    found = chosen(view, new_pod(container(gpus=1), annotations={}))
    assert found == Refusal(ReasonCode.EXACT_UNAVAILABLE, text)


# --- the same reservation for a further pod

LATER = (f"GPU-{NODE}-3", f"GPU-{NODE}-5")
TWO = early_pod({"gpuwarden.dev/gpu-count": "2"})
PART = holder(*LATER, pod=UNBORN, reservation="v1.k.early")
HELD = tuple(replace(record(PART, gpu=x), node=NODE) for x in LATER)


def test_a_further_pod_gets_what_is_reserved_and_no_other_gpus() -> None:
    found = taken_up(ask_for(TWO), binding_view(records=HELD), PART, NODE)
    assert place(found) == (NODE, LATER)
    assert isinstance(found, EarlyPlace)
    assert found.reserve.reservation == "v1.k.early"


def test_what_is_reserved_does_not_count_against_a_quota_that_was_lowered() -> None:
    view = binding_view(records=HELD, quota=0)
    assert place(taken_up(ask_for(TWO), view, PART, NODE)) == (NODE, LATER)


def test_what_can_no_longer_be_had_is_lost_unless_a_grant_says_why() -> None:
    cards = [gpu(n, f"GPU-{NODE}-{n}", lost=n == 5) for n in range(8)]
    view = binding_view(node(NODE, acceptance(gpus=cards)), records=HELD)
    text = "what was reserved at its creation cannot be had"
    assert taken_up(ask_for(TWO), view, PART, NODE) == Refusal(ReasonCode.GPU_LOST, text)
    asked: list[tuple[str, tuple[str, ...]]] = []
    used = Refusal(ReasonCode.GPU_BUSY, "unreserved use")

    def refusal(name: str, gpus: tuple[str, ...]) -> Refusal:
        asked.append((name, gpus))
        return used

    against = replace(view, grant_refusal=refusal)
    assert taken_up(ask_for(TWO), against, PART, NODE) == used
    assert asked == [(NODE, LATER)]
