"""What the ledger holds stands in /filter's way as it does in the gate's."""

from dataclasses import replace
from typing import Any

import pytest

from controller.binding.decision import GateView, Refused, decide_binding
from controller.binding.use import LedgerUse
from controller.fleet.view import NodeView
from controller.ledger.record import GpuRecord, HolderState, Origin
from controller.placement.requirements import Requirements, parse_requirements, share_group
from controller.placement.snapshot import Scene
from controller.placement.verbs import filter_nodes, prioritize_nodes
from controller.policy import NodeMode
from gpuwarden.reasons import Refusal
from tests.builders.admitted_pods import Document
from tests.builders.bindings import NODE, UID, asked, binding, env_pod, gate_view, stored
from tests.builders.fleet_views import acceptance, gpu, hash_of, mig_slice, node
from tests.builders.ledger import holder, record

WHOLE = node(NODE, acceptance(hash_of("a"), [gpu(0), gpu(1)]))
SPLIT = node(
    NODE,
    acceptance(
        hash_of("a"),
        [gpu(0, mig=True, mig_devices=[mig_slice("MIG-a"), mig_slice("MIG-b")]), gpu(1)],
    ),
)
PLUGIN = replace(WHOLE, mode=NodeMode.PLUGIN)
ANY = env_pod()
PART = env_pod({"gpuwarden.dev/gpu-selector": "mig=true"})
GPU_1 = env_pod({"gpuwarden.dev/gpu-uuids": "GPU-1"})
REQUESTING = env_pod({"gpuwarden.dev/min-level": "L0"})
REQUESTING["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}


def held(gpu_uuid: str, pod_uid: str = "uid-0", *, at: str = NODE, **more: Any) -> GpuRecord:
    part = holder(gpu_uuid, **more)
    part = replace(part, pod=replace(part.pod, uid=pod_uid))
    return replace(record(part, gpu=gpu_uuid), node=at)


def by_gate(pod: Document, view: GateView) -> Refusal | None:
    found = decide_binding(asked(binding()), stored(pod), view, enforced=True)
    return found.refusals[0] if isinstance(found, Refused) else None


def scene_of(pod: Document, view: GateView) -> tuple[Requirements, Scene]:
    admitted = stored(pod).pod
    assert admitted is not None
    needs = parse_requirements(admitted, view.rules.wishes, enforced=True)
    assert isinstance(needs, Requirements)
    use = LedgerUse(lambda: view.ledger).use(UID, share_group(admitted, needs))
    scene = replace(
        view.scene,
        busy=use.busy,
        shared=use.shared,
        own=use.own,
        claimed=use.claimed,
        parts=use.parts,
        holders=use.holders,
    )
    return needs, scene


CASES: dict[str, tuple[NodeView, Document, GpuRecord, str]] = {
    "part that is not shown": (WHOLE, ANY, held("MIG-a"), "GPU_BUSY"),
    "named beside such a part": (WHOLE, GPU_1, held("MIG-a"), "GPU_BUSY"),
    "own part that is not shown": (WHOLE, ANY, held("MIG-a", UID), ""),
    "part on another node": (WHOLE, ANY, held("MIG-a", at="gpu-2"), ""),
    "part that is shown": (SPLIT, GPU_1, held("MIG-a"), ""),
    "other part": (SPLIT, PART, held("MIG-a"), ""),
    "part beside one that is not shown": (SPLIT, PART, held("MIG-c"), ""),
    "part of a held whole": (SPLIT, PART, held("GPU-0"), "GPU_BUSY"),
    "claimed where kubelet gives": (PLUGIN, REQUESTING, held("GPU-1"), "NODE_MODE"),
    "given by kubelet": (PLUGIN, REQUESTING, held("GPU-1", origin=Origin.SETTLEMENT), ""),
    "an end that nobody saw": (
        PLUGIN,
        REQUESTING,
        held("GPU-1", state=HolderState.RELEASING, adopted=True),
        "",
    ),
}


@pytest.mark.parametrize(("where", "pod", "kept", "code"), CASES.values(), ids=CASES)
def test_both_say_the_same(where: NodeView, pod: Document, kept: GpuRecord, code: str) -> None:
    view = gate_view(where, records=(kept,))
    needs, scene = scene_of(pod, view)
    found = filter_nodes([NODE], needs, scene)
    gate = by_gate(pod, view)
    assert (gate.code.value if gate else "") == code
    assert found.reasons.get(NODE) == gate
    assert filter_nodes([NODE], needs, scene).passed == ([] if code else [NODE])


def test_scores_count_what_is_free() -> None:
    """Of two nodes with two GPUs the one with a part in the way has none to give."""
    other = node("gpu-2", acceptance(hash_of("a"), [gpu(0), gpu(1)]))
    needs, scene = scene_of(ANY, gate_view(WHOLE, other, records=(held("MIG-a"),)))
    scores = prioritize_nodes([NODE, "gpu-2"], needs, scene)
    assert scores[NODE] == 0 < scores["gpu-2"]


def test_an_answer_does_not_outlive_a_claim() -> None:
    """A claim that is no claim any more changes nothing of what is busy."""
    view = gate_view(PLUGIN, records=(held("GPU-1"),))
    needs, scene = scene_of(REQUESTING, view)
    assert filter_nodes([NODE] * 4, needs, scene).passed == []
    freed = replace(scene, claimed=frozenset())
    assert filter_nodes([NODE] * 4, needs, freed).passed == [NODE] * 4
