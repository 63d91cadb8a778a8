from dataclasses import replace
from typing import Any

import pytest

from controller.binding.decision import BindingView, Refused, decide_binding
from controller.binding.use import LedgerUse
from controller.fleet.view import NodeView
from controller.ledger.record import GpuRecord, HolderState, Origin, PodRef
from controller.placement.filter_and_score import FilterOutcome, filter_nodes, prioritize_nodes
from controller.placement.keys import RequirementRules
from controller.placement.refusals import WITHOUT_RECORD
from controller.placement.requirements import Requirements, parse_requirements, share_group
from controller.placement.snapshot import Scene
from controller.policy import NodeMode, Policy
from gpuwarden.evidence.model import Allocation, GpuProcess
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.admitted_pods import Document
from tests.builders.bindings import NODE, UID, asked, binding, binding_view, env_pod, stored
from tests.builders.fleet_views import acceptance, gpu, hash_of, mig_slice, node
from tests.builders.ledger import holder, record
from tests.fakes.binding_world import BindingWorld, Replica
from tests.fakes.pod_creation import Creation, early_pod, owned

# --- What the ledger holds stands in /filter's way as it does in the binding webhook's

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


def by_binding_webhook(pod: Document, view: BindingView) -> Refusal | None:
    found = decide_binding(asked(binding()), stored(pod), view, enforced=True)
    return found.refusals[0] if isinstance(found, Refused) else None


def scene_of(pod: Document, view: BindingView) -> tuple[Requirements, Scene]:
    admitted = stored(pod).pod
    assert admitted is not None
    needs = parse_requirements(admitted, view.rules.requirements, enforced=True)
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
    "given by kubelet": (PLUGIN, REQUESTING, held("GPU-1", origin=Origin.KUBELET), ""),
    "an end that nobody saw": (
        PLUGIN,
        REQUESTING,
        held("GPU-1", state=HolderState.RELEASING, restored=True),
        "",
    ),
}


@pytest.mark.parametrize(("where", "pod", "kept", "code"), CASES.values(), ids=CASES)
def test_both_say_the_same(where: NodeView, pod: Document, kept: GpuRecord, code: str) -> None:
    view = binding_view(where, records=(kept,))
    needs, scene = scene_of(pod, view)
    found = filter_nodes([NODE], needs, scene)
    binding_webhook = by_binding_webhook(pod, view)
    assert (binding_webhook.code.value if binding_webhook else "") == code
    assert found.reasons.get(NODE) == binding_webhook
    assert filter_nodes([NODE], needs, scene).passed == ([] if code else [NODE])


def test_scores_count_what_is_free() -> None:
    """Of two nodes with two GPUs the one with a part in the way has none to give."""
    other = node("gpu-2", acceptance(hash_of("a"), [gpu(0), gpu(1)]))
    needs, scene = scene_of(ANY, binding_view(WHOLE, other, records=(held("MIG-a"),)))
    scores = prioritize_nodes([NODE, "gpu-2"], needs, scene)
    assert scores[NODE] == 0 < scores["gpu-2"]


def test_an_answer_does_not_outlive_a_claim() -> None:
    """A claim that is no claim any more changes nothing of what is busy."""
    view = binding_view(PLUGIN, records=(held("GPU-1"),))
    needs, scene = scene_of(REQUESTING, view)
    assert filter_nodes([NODE] * 4, needs, scene).passed == []
    freed = replace(scene, claimed=frozenset())
    assert filter_nodes([NODE] * 4, needs, freed).passed == [NODE] * 4


# --- GPUs that kubelet gave to pods, or that pods use, without a record: others are chosen, and w

GPUS = tuple(f"GPU-{NODE}-{index}" for index in range(8))
NO_PROCESSES = Policy(processes_count_as_use=False)


def given(*gpus: str, pod: str = "idle") -> dict[str, Any]:
    """Kubelet's allocations to an unmanaged pod."""
    return {"given": [Allocation("team-a", pod, "main", "nvidia.com/gpu", x) for x in gpus]}


def filtered(world: BindingWorld, me: Replica, name: str) -> FilterOutcome:
    """/filter's answer about the pod, by what this replica knows now."""
    stored = world.pods.known("team-a", name)
    assert stored is not None
    assert stored.pod is not None
    needs = parse_requirements(stored.pod, RequirementRules(), enforced=True)
    assert isinstance(needs, Requirements)
    use = me.use.use(stored.uid, share_group(stored.pod, needs))
    return filter_nodes([NODE], needs, me.scenes.now(use))


async def test_of_the_others_one_is_given() -> None:
    world = BindingWorld()
    me = await world.replica()
    world.report(**given(GPUS[0]))
    name = world.pod("train-0")
    assert filtered(world, me, name).passed == [NODE]
    assert world.lands(name, await me.bind(name))
    assert world.assigned() == {name: (GPUS[1],)}


@pytest.mark.parametrize("policy", [Policy(), NO_PROCESSES])
async def test_one_of_the_gpus_without_unreserved_use_is_given(policy: Policy) -> None:
    world = BindingWorld()
    world.policy = policy
    me = await world.replica()
    world.report(GpuProcess(GPUS[0], 7, "uid-stranger"))
    name = world.pod("train-0")
    assert filtered(world, me, name).passed == [NODE]
    assert world.lands(name, await me.bind(name))
    assert world.assigned() == {name: (GPUS[1],)}


async def test_where_none_is_left_both_say_why() -> None:
    world = BindingWorld(2)
    me = await world.replica()
    world.report(**given(*GPUS[:2]))
    name = world.pod("train-0")
    assert filtered(world, me, name).reasons == {NODE: WITHOUT_RECORD}
    assert (await me.bind(name)).refusals == (WITHOUT_RECORD,)
    world.report(**given(GPUS[1]))
    assert filtered(world, me, name).passed == [NODE]
    assert world.lands(name, await me.bind(name))


async def test_a_gpu_that_is_asked_for_by_name_is_refused_with_the_reason() -> None:
    world = BindingWorld()
    me = await world.replica()
    world.report(**given(GPUS[3]))
    name = world.pod("train-0", annotations={"gpuwarden.dev/gpu-uuids": GPUS[3]})
    assert filtered(world, me, name).reasons == {NODE: WITHOUT_RECORD}
    assert (await me.bind(name)).refusals == (WITHOUT_RECORD,)
    other = world.pod("train-1", annotations={"gpuwarden.dev/gpu-uuids": GPUS[4]})
    assert world.lands(other, await me.bind(other))


@pytest.mark.parametrize("policy", [Policy(), NO_PROCESSES])
async def test_a_retry_gets_what_it_has_although_it_runs_by_now(policy: Policy) -> None:
    world = BindingWorld()
    world.policy = policy
    me = await world.replica()
    name = world.pod("train-0")
    await me.bind(name)
    world.report(GpuProcess(GPUS[0], 7, "uid-train-0"))
    assert filtered(world, me, name).passed == [NODE]
    assert world.lands(name, await me.bind(name))
    assert world.assigned() == {name: (GPUS[0],)}
    assert world.states() == {GPUS[0]: ["Proposed"]}


@pytest.mark.parametrize("stranger", ["idle", "train-0"])
async def test_a_retry_does_not_get_a_gpu_in_unreserved_use_meanwhile(stranger: str) -> None:
    """Kubelet gives nothing to a pod that waits: of its name there was one before."""
    world = BindingWorld()
    me = await world.replica()
    name = world.pod("train-0")
    await me.bind(name)
    world.report(**given(GPUS[0], pod=stranger))
    assert world.lands(name, await me.bind(name))
    assert world.assigned() == {name: (GPUS[1],)}


async def test_a_pod_with_a_reservation_is_not_unreserved_use() -> None:
    """It holds its GPU, whatever it is called there; nobody else's is taken for it."""
    world = BindingWorld(2)
    me = await world.replica()
    first = world.pod("train-0")
    assert world.lands(first, await me.bind(first))
    world.report(GpuProcess(GPUS[0], 7, "uid-train-0"))
    second = world.pod("train-1")
    assert filtered(world, me, second).passed == [NODE]
    assert world.lands(second, await me.bind(second))
    assert world.assigned() == {first: (GPUS[0],), second: (GPUS[1],)}


async def test_no_early_reservation_of_a_gpu_in_unreserved_use() -> None:
    world = BindingWorld(2)
    me = await world.replica()
    world.report(**given(GPUS[0]))
    api = Creation(world, me, me)
    made = await api.create(early_pod(), "train-0")
    assert made is not None
    assert made["metadata"]["annotations"]["gpuwarden.dev/gpu-uuids-assigned"] == GPUS[1]
    assert await api.create(early_pod(), "train-1") is None


async def test_unreserved_use_after_the_creation_is_reported_at_the_binding_webhook() -> None:
    world = BindingWorld(2)
    me = await world.replica()
    assert await Creation(world, me, me).create(early_pod(), "train-0") is not None
    world.report(**given(GPUS[0]))
    busy = Refusal(ReasonCode.GPU_BUSY, f"kubelet has given {GPUS[0]} to a pod")
    assert (await me.bind("train-0")).refusals == (busy,)
    world.report()
    assert world.lands("train-0", await me.bind("train-0"))
    assert world.assigned() == {"train-0": (GPUS[0],)}


async def test_a_pod_with_gpus_from_kubelet_keeps_them_alone_after_a_change_of_mode() -> None:
    """Kubelet gave it while the node was a `plugin` one: the record says so."""
    world = BindingWorld(2)
    me = await world.replica()
    ref = PodRef("team-b", "idle", "uid-idle")
    kept = replace(record(holder(GPUS[0], pod=ref), gpu=GPUS[0]), node=NODE)
    assert await world.store.compare_and_set(None, kept)
    world.report(**given(GPUS[0]))
    name = world.pod("train-0")
    assert world.lands(name, await me.bind(name))
    assert world.assigned() == {name: (GPUS[1],)}


async def test_of_a_share_group_the_next_comes_early_to_what_the_first_uses() -> None:
    world = BindingWorld()
    me = await world.replica()
    api = Creation(world, me, me)

    def of_the_group(ordinal: int) -> Document:
        requirements = {
            "gpuwarden.dev/reserve": "admission",
            "gpu-scheduling-map": f"0={NODE}:0\n1={NODE}:0",
            "gpuwarden.dev/ordinal": str(ordinal),
        }
        return owned(early_pod(requirements), "owner-a")

    first = await api.create(of_the_group(0), "train-0")
    assert first is not None
    assert world.lands("train-0", await me.bind("train-0"))
    world.report(GpuProcess(GPUS[0], 7, first["metadata"]["uid"]))
    assert await api.create(of_the_group(1), "train-1") is not None
    assert world.states() == {GPUS[0]: ["Proposed", "Proposed"]}
    world.report(GpuProcess(GPUS[0], 7, "uid-stranger"))
    assert (await me.bind("train-1")).refusals == (WITHOUT_RECORD,)
