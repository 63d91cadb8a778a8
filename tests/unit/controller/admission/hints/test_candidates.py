"""Which GPU types a scorer may choose among, and by which label a choice is said."""

from dataclasses import replace
from typing import Any

import pytest

from controller.admission.hints.candidates import (
    MOST_LOOKED_AT,
    GpuTypes,
    candidates,
    gpu_types,
    tolerates_gpus,
)
from controller.admission.hints.request import HintedPod
from controller.admission.node_selection import OurToleration
from controller.fleet.directory import DirectorySnapshot, KnownNode, Taint
from controller.placement.keys import RequirementRules
from controller.placement.requirements import Requirements, parse_requirements
from controller.placement.snapshot import Scene
from controller.policy import Level, NodeMode, Policy
from gpuwarden.reasons import ReasonCode
from tests.builders.fleet_views import NOW_NS, SECOND_NS, hash_of, past
from tests.builders.hinted import (
    A100,
    A100_TYPE,
    CLASS,
    GPU_TAINT,
    H100,
    H100_TYPE,
    L4,
    L4_TYPE,
    PRODUCT,
    hinted_pod,
    machine,
    room,
    workload,
)

KEYS = (CLASS, PRODUCT)
A, H = machine("a", A100), machine("h", H100)


def pod(**parts: Any) -> HintedPod:
    return workload(hinted_pod(**parts)).pod


def found(
    scene: Scene,
    asking: HintedPod | None = None,
    *,
    enforced: bool = False,
    memory_gib: float | None = None,
    types: GpuTypes | None = None,
    ours: OurToleration = OurToleration.AS_GIVEN,
) -> tuple[str, ...]:
    asking = pod() if asking is None else asking
    needs = parse_requirements(asking, RequirementRules(), enforced=enforced)
    assert isinstance(needs, Requirements)
    types = gpu_types(scene.fleet, scene.nodes, KEYS) if types is None else types
    return candidates(asking, needs, types, scene, ours=ours, memory_gib=memory_gib)


# --- Types of a fleet


def test_types_come_from_evidence_in_order_with_the_least_memory() -> None:
    small = machine("b", A100, memory_mib=40960)
    blank = machine("x", None)
    unknown = replace(machine("y", L4), acceptance=None)
    scene = room(H, A, small, blank, unknown, machine("l", L4, memory_mib=None))
    types = gpu_types(scene.fleet, scene.nodes, KEYS)
    assert list(types.nodes.items()) == [
        (A100_TYPE, ("a", "b")),
        (H100_TYPE, ("h",)),
        (L4_TYPE, ("l",)),
    ]
    assert dict(types.memory_gib) == {A100_TYPE: 40.0, H100_TYPE: 81559 / 1024}
    assert dict(types.labels) == {}


def test_a_type_of_which_one_gpu_tells_no_memory_has_none() -> None:
    scene = room(A, machine("b", A100, memory_mib=None), H)
    types = gpu_types(scene.fleet, scene.nodes, KEYS)
    assert list(types.memory_gib) == [H100_TYPE]


def labels_of(scene: Scene) -> dict[str, tuple[str, tuple[str, ...]]]:
    return dict(gpu_types(scene.fleet, scene.nodes, KEYS).labels)


def test_a_label_that_agrees_with_the_evidence_tells_the_type() -> None:
    labels = {"a": {PRODUCT: "A100"}, "b": {PRODUCT: "A100-SHARED"}, "h": {PRODUCT: "H100"}}
    assert labels_of(room(A, machine("b", A100), H, labels=labels)) == {
        A100_TYPE: (PRODUCT, ("A100", "A100-SHARED")),
        H100_TYPE: (PRODUCT, ("H100",)),
    }


def test_of_several_labels_the_first_that_agrees_is_used() -> None:
    labels = {"a": {CLASS: "A100-80GB", PRODUCT: "A100"}, "h": {PRODUCT: "H100"}}
    assert labels_of(room(A, H, labels=labels)) == {
        A100_TYPE: (CLASS, ("A100-80GB",)),
        H100_TYPE: (PRODUCT, ("H100",)),
    }


def test_a_label_that_two_types_have_tells_neither() -> None:
    labels = {"a": {PRODUCT: "gpu"}, "h": {PRODUCT: "gpu"}}
    assert labels_of(room(A, H, labels=labels)) == {}


def test_a_node_that_shows_nothing_and_has_the_label_takes_it_from_all() -> None:
    labels = {"a": {CLASS: "A100", PRODUCT: "A100"}, "liar": {CLASS: "A100"}}
    assert labels_of(room(A, labels=labels)) == {A100_TYPE: (PRODUCT, ("A100",))}


# --- Candidates


def test_types_that_could_serve_are_candidates() -> None:
    assert found(room(H, A)) == (A100_TYPE, H100_TYPE)
    assert found(room()) == ()


@pytest.mark.parametrize("enforced", [False, True])
def test_evidence_must_be_fresh(*, enforced: bool) -> None:
    scene = room(A, now_ns=NOW_NS + 89 * SECOND_NS)
    assert found(scene, enforced=enforced) == (A100_TYPE,)
    assert found(room(A, now_ns=NOW_NS + 90 * SECOND_NS), enforced=enforced) == ()


def test_a_node_that_was_refused_or_is_unknown_to_the_cluster_serves_nobody() -> None:
    refused = replace(A, blocked=past(ReasonCode.NODE_DENIED))
    assert found(room(refused, H)) == (H100_TYPE,)
    scene = replace(room(A, H), nodes=DirectorySnapshot({"h": KnownNode("uid")}))
    assert found(scene) == (H100_TYPE,)


def test_a_node_that_left_the_fleet_since_the_types_were_made_serves_nobody() -> None:
    before = room(A, H)
    types = gpu_types(before.fleet, before.nodes, KEYS)
    assert found(room(H), types=types) == (H100_TYPE,)


def test_the_pods_own_selector_narrows_the_choice() -> None:
    scene = room(A, H, labels={"h": {"zone": "b"}})
    assert found(scene, pod(nodeSelector={"zone": "b"})) == (H100_TYPE,)


def test_the_common_taint_does_not_count_and_others_do() -> None:
    def tainted(taint: Taint) -> Scene:
        nodes = {"a": KnownNode("uid", taints=(taint,)), "h": KnownNode("uid")}
        return replace(room(A, H), nodes=DirectorySnapshot(nodes))

    other = Taint("team", "b", "NoSchedule")
    assert found(tainted(GPU_TAINT)) == (A100_TYPE, H100_TYPE)
    assert found(tainted(other)) == (H100_TYPE,)
    tolerant = pod(tolerations=[{"key": "team", "operator": "Exists"}])
    assert found(tainted(other), tolerant) == (A100_TYPE, H100_TYPE)
    assert found(tainted(GPU_TAINT), tolerant) == (A100_TYPE, H100_TYPE)
    managed = Taint("gpuwarden.dev/managed", "", "NoExecute")
    assert found(tainted(managed)) == (H100_TYPE,)
    assert found(tainted(managed), ours=OurToleration.INJECTED) == (A100_TYPE, H100_TYPE)


def test_a_requirement_narrows_the_choice() -> None:
    assert A.acceptance is not None
    other = replace(A, acceptance=replace(A.acceptance, attestation_hash=hash_of("b")))
    asking = pod(annotations={"gpuwarden.dev/required-hash": hash_of("b")})
    assert found(room(other, H), asking) == (A100_TYPE,)
    assert found(room(A, H), pod(annotations={"gpuwarden.dev/min-level": Level.L2.value})) == ()


def test_who_requires_nothing_is_not_judged_by_the_policy() -> None:
    strict = room(A, policy=Policy(min_level=Level.L2))
    assert found(strict) == (A100_TYPE,)
    assert found(strict, enforced=True) == ()


def test_a_type_that_is_only_busy_stays_a_candidate() -> None:
    asking = pod(gpus=None, annotations={"gpuwarden.dev/gpu-count": "1"})
    nodes = (replace(x, mode=NodeMode.ENV) for x in (A, H))
    busy = room(*nodes, busy=("GPU-a-0", "GPU-a-1"))
    assert found(busy, asking) == (A100_TYPE, H100_TYPE)


@pytest.mark.parametrize(
    ("asked", "fits"), [(None, True), (80.0, True), (81.1111, True), (81.1113, False)]
)
def test_a_type_that_is_too_small_is_no_candidate(asked: float | None, *, fits: bool) -> None:
    scene = room(machine("a", A100, memory_mib=73 * 1024))
    assert found(scene, memory_gib=asked) == ((A100_TYPE,) if fits else ())


def test_a_type_that_is_just_large_enough_is_one() -> None:
    scene = room(machine("a", A100, memory_mib=72 * 1024))
    assert found(scene, memory_gib=80.0) == (A100_TYPE,)


def test_a_type_that_says_nothing_of_its_memory_is_one() -> None:
    assert found(room(machine("a", A100, memory_mib=None)), memory_gib=999.0) == (A100_TYPE,)


def test_only_so_many_nodes_of_a_type_are_looked_at() -> None:
    assert MOST_LOOKED_AT == 1000
    scene = room(A, labels={"a": {"zone": "b"}})
    asking = pod(nodeSelector={"zone": "b"})
    last = GpuTypes({A100_TYPE: (*["gone"] * 999, "a")}, {}, {})
    assert found(scene, asking, types=last) == (A100_TYPE,)
    behind = GpuTypes({A100_TYPE: (*["gone"] * 1000, "a")}, {}, {})
    assert found(scene, asking, types=behind) == ()


@pytest.mark.parametrize(
    ("tolerations", "tolerant"),
    [
        (None, False),
        ([{"key": "nvidia.com/gpu", "operator": "Exists"}], True),
        ([{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}], True),
        ([{"operator": "Exists"}], True),
        ([{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}], False),
        ([{"key": "nvidia.com/gpu", "value": "true"}], False),
    ],
)
def test_who_tolerates_the_common_taint(tolerations: Any, *, tolerant: bool) -> None:
    assert tolerates_gpus(pod(tolerations=tolerations)) is tolerant
