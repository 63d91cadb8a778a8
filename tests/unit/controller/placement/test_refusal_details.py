"""What a refusal rests on, in numbers and names; the texts of /filter are constant."""

from dataclasses import replace
from typing import Any

import pytest

from controller.fleet.view import GpuView, NodeView
from controller.placement.gpu_map import Place
from controller.placement.node_verdict import Judge
from controller.placement.refusal_details import detailed
from controller.placement.refusals import REFUSALS, WITHOUT_RECORD
from controller.placement.requirements import Requirements
from controller.placement.snapshot import Scene
from controller.placement.static_hashes import InsecureStaticHashes
from controller.policy import AttestationClass, ClassHash, Level, NodeMode, Policy
from gpuwarden.evidence.model import GpuProcess
from gpuwarden.policy.selector import parse_selector
from gpuwarden.reasons import ReasonCode as R
from tests.builders.fleet_views import (
    LEASE_NS,
    NOW_NS,
    SECOND_NS,
    acceptance,
    gpu,
    hash_of,
    healthy,
    mig_slice,
    node,
)
from tests.builders.scenes import scene

A, B, C = hash_of("a"), hash_of("b"), hash_of("c")
EIGHT = [gpu(index) for index in range(8)]
RESOURCE = "nvidia.com/gpu"


def wants(count: int = 0, **requirement: Any) -> Requirements:
    return Requirements(managed=True, count=count, **requirement)


def of(gpus: list[GpuView], mode: NodeMode = NodeMode.ENV, **more: Any) -> NodeView:
    return node("n", acceptance(gpus=gpus, **more), mode=mode)


def facts(needs: Requirements, where: Scene, code: R) -> str:
    """What stands behind the constant text of the code."""
    judge = Judge(needs, where)
    refusal = judge.refusal("n")
    assert refusal is not None
    found = detailed("n", refusal, judge, where)
    assert (refusal.code, found.code) == (code, code)
    return found.detail.removeprefix(refusal.detail)


# --- numbers of devices


@pytest.mark.parametrize(
    ("count", "busy", "code", "text"),
    [
        (9, 6, R.GPU_NO_MATCH, ": needs 9 GPUs, node has 8, 2 free"),
        (8, 6, R.GPU_BUSY, ": needs 8 GPUs, node has 8, 2 free"),
        (1, 8, R.GPU_BUSY, ": needs 1 GPU, node has 8, 0 free"),
    ],
)
def test_how_many_are_needed_there_and_free(count: int, busy: int, code: R, text: str) -> None:
    where = scene(of(EIGHT), busy=tuple(f"GPU-{index}" for index in range(busy)))
    assert facts(wants(count), where, code) == text


def test_how_many_are_as_asked() -> None:
    big = [gpu(index, memory_mib=200_000) for index in range(3)]
    needs = wants(4, selector=parse_selector("memory>=100Gi"))
    where = scene(of([*big, *EIGHT[3:]]), busy=("GPU-0",))
    text = ": needs 4 GPUs, node has 8, 3 as asked, memory>=100Gi: 3 of 8, 2 free"
    assert facts(needs, where, R.GPU_NO_MATCH) == text
    all_of_them = wants(9, selector=parse_selector("memory>=1Gi"))
    assert facts(all_of_them, where, R.GPU_NO_MATCH) == ": needs 9 GPUs, node has 8, 7 free"


@pytest.mark.parametrize(
    ("selector", "failed"),
    [
        ("memory>=80Gi", "memory>=80Gi: 0 of 8 (largest 79.6Gi)"),
        ("memory>80Gi,compute>=10.0", "memory>80Gi: 0 of 8 (largest 79.6Gi), compute>=10.0: 0"),
        ("compute>=9.1", "compute>=9.1: 0 of 8 (largest 9.0)"),
        ("compute<9.0", "compute<9.0: 0 of 8 (smallest 9.0)"),
        ("memory<=1Gi,mig=false", "memory<=1Gi: 0 of 8 (smallest 79.6Gi), "),
        ("model=a100", "model=a100: 0 of 8, "),
        ("memory>=1Gi,model=a100", "0 as asked, model=a100: 0 of 8, "),
    ],
)
def test_the_term_that_fails_is_named_with_how_near_the_gpus_come(
    selector: str, failed: str
) -> None:
    said = facts(wants(1, selector=parse_selector(selector)), scene(of(EIGHT)), R.GPU_NO_MATCH)
    assert failed in said


def test_a_label_of_a_model_that_fails_is_named() -> None:
    said = facts(wants(1, labels=frozenset({"model-a100"})), scene(of(EIGHT)), R.GPU_NO_MATCH)
    assert "0 as asked, model-a100: 0 of 8, " in said


def test_how_many_are_lost() -> None:
    gpus = [gpu(0), gpu(1, lost=True), gpu(2, unhealthy="XID 79")]
    text = ": needs 2 GPUs, node has 1, 1 free, 2 lost or unhealthy"
    assert facts(wants(2), scene(of(gpus)), R.GPU_LOST) == text


def test_parts_of_gpus_count_for_pods_that_need_one() -> None:
    split = gpu(1, mig=True, mig_devices=[mig_slice("MIG-a"), mig_slice("MIG-b")])
    where = scene(of([gpu(0), split]), busy=("GPU-0", "MIG-a", "MIG-b"))
    assert facts(wants(1), where, R.GPU_BUSY) == ": needs 1 GPU, node has 3, 0 free"
    text = ": needs 2 GPUs, node has 1, 0 free, GPUs that are split by MIG not counted"
    assert facts(wants(2), where, R.GPU_NO_MATCH) == text


def test_use_without_a_record_keeps_its_own_text() -> None:
    used = replace(
        acceptance(gpus=[gpu(0)], processes={"GPU-0": 1}),
        processes=(GpuProcess("GPU-0", 1, "uid-9"),),
    )
    where = scene(node("n", used))
    judge = Judge(wants(1), where)
    assert judge.refusal("n") == WITHOUT_RECORD
    assert facts(wants(1), where, R.GPU_BUSY) == ": needs 1 GPU, node has 1, 0 free"


def test_what_kubelet_could_choose() -> None:
    gpus = [gpu(0), gpu(1, memory_mib=10_000), gpu(2, lost=True)]
    where = scene(of(gpus, NodeMode.PLUGIN))
    needs = wants(3, requests=((RESOURCE, 3),))
    text = ": needs 3 nvidia.com/gpu, kubelet can choose among 2, 1 lost or unhealthy"
    assert facts(needs, where, R.GPU_LOST) == text
    picky = wants(1, requests=((RESOURCE, 1),), selector=parse_selector("memory>=40Gi"))
    text = ": needs 1 nvidia.com/gpu, kubelet can choose among 2, 1 as asked"
    text += ", memory>=40Gi: 1 of 2, 1 lost or unhealthy"
    assert facts(picky, where, R.EXACT_UNAVAILABLE) == text


# --- devices that the pod names


def named(*uuids: str, **more: Any) -> Requirements:
    return wants(len(uuids), uuids=uuids, **more)


@pytest.mark.parametrize(
    ("needs", "code", "text"),
    [
        (named("GPU-0", "GPU-8"), R.GPU_NO_MATCH, ": node has no GPU-8"),
        (named("GPU-0", "GPU-6"), R.GPU_LOST, ": GPU-6 is lost or unhealthy"),
        (named("GPU-0", "GPU-1", "GPU-2"), R.GPU_BUSY, ": GPU-1 is another pod's, GPU-2 is used"),
        (
            named("GPU-0", selector=parse_selector("memory>=100Gi")),
            R.GPU_NO_MATCH,
            ": GPU-0 is not as asked",
        ),
        (
            wants(2, place=Place("n", (0, 7)), mapped=True),
            R.GPU_NO_MATCH,
            ": node has no GPU 7",
        ),
        (
            named(*(f"GPU-1{index}" for index in range(6))),
            R.GPU_NO_MATCH,
            f": {', '.join(f'node has no GPU-1{index}' for index in range(4))}, and 2 more",
        ),
        (
            wants(1, place=Place("n", (0,)), mapped=True, uuids=("GPU-3",)),
            R.GPU_NO_MATCH,
            "",
        ),
    ],
)
def test_what_is_against_a_device_that_the_pod_names(
    needs: Requirements, code: R, text: str
) -> None:
    gpus = [*EIGHT[:6], gpu(6, lost=True)]
    where = scene(of(gpus, processes={"GPU-2": 1}), busy=("GPU-1",))
    assert facts(needs, where, code).startswith(text)
    assert bool(facts(needs, where, code)) == bool(text)


def test_devices_that_kubelet_cannot_be_made_to_choose() -> None:
    needs = named("GPU-0", "GPU-1", requests=((RESOURCE, 2),))
    where = scene(of(EIGHT, NodeMode.PLUGIN))
    assert facts(needs, where, R.EXACT_UNAVAILABLE) == ": pod names 2 GPUs"


# --- classes, levels, modes, leases


def test_the_nodes_class_beside_the_required_one() -> None:
    classes = {
        "gold": AttestationClass("gold", (ClassHash(B), ClassHash(C))),
        "silver": AttestationClass("silver", (ClassHash(A),)),
        "lead": AttestationClass("lead", (ClassHash(A),)),
    }
    where = scene(healthy("n", "a"))
    text = facts(wants(hashes=frozenset({B})), where, R.HASH_MISMATCH)
    assert text == f": node has {A}, required {B}"
    where = scene(healthy("n", "a"), policy=Policy(classes=classes))
    text = facts(wants(attestation_class="gold"), where, R.HASH_MISMATCH)
    assert text == f": node has {A} (class lead, silver), required {B} or 1 more (class gold)"
    neither = wants(attestation_class="gold", hashes=frozenset({A}))
    text = facts(neither, where, R.HASH_MISMATCH)
    assert text.endswith("required a hash that pod and class both accept (class gold)")


def test_a_class_that_the_cluster_does_not_accept() -> None:
    where = scene(healthy("n", "a"), policy=Policy(allowed_hashes=frozenset({B})))
    assert facts(wants(), where, R.CLASS_NOT_ALLOWED) == f": node has {A}"


def test_a_class_that_nobody_knows_is_named() -> None:
    needs = wants(attestation_class="gold")
    assert facts(needs, scene(healthy("n")), R.CLASS_UNKNOWN) == ": gold"


def test_the_level_that_is_required_and_that_of_the_node() -> None:
    where = scene(of([], level=Level.L1))
    needs = wants(min_level=Level.L2)
    assert facts(needs, where, R.LEVEL_TOO_LOW) == ": L2 required, node has L1"


def test_nodes_with_static_hashes() -> None:
    where = scene(static=InsecureStaticHashes({"n": "abc"}))
    other = wants(hashes=frozenset({"x"}))
    assert facts(other, where, R.HASH_MISMATCH) == ": node has abc, required x"
    needs = wants(hashes=frozenset({"abc"}), min_level=Level.L1)
    assert facts(needs, where, R.LEVEL_TOO_LOW) == ": L1 required, node has none"
    one = wants(1, hashes=frozenset({"abc"}))
    assert facts(one, where, R.GPU_NO_MATCH) == ""


@pytest.mark.parametrize(
    ("needs", "mode", "text"),
    [
        (wants(1), NodeMode.PLUGIN, ": node is in mode plugin, pod requests no GPU resource"),
        (
            wants(1, requests=((RESOURCE, 1),)),
            NodeMode.ENV,
            ": node is in mode env, pod requests a GPU resource",
        ),
        (wants(1, claims=True), NodeMode.ENV, ": node is in mode env, pod requests a claim"),
        (wants(1), NodeMode.DRA, ""),
    ],
)
def test_the_mode_of_the_node_and_what_the_pod_requests(
    needs: Requirements, mode: NodeMode, text: str
) -> None:
    assert facts(needs, scene(of(EIGHT, mode)), R.NODE_MODE) == text


def test_since_when_a_lease_is_over() -> None:
    where = scene(of([], issued_ns=NOW_NS - LEASE_NS - 41 * SECOND_NS))
    assert facts(wants(), where, R.NODE_STALE) == ": its lease ended 41 s ago"


def test_the_node_that_the_map_names() -> None:
    needs = wants(1, place=Place("other", (0,)), mapped=True)
    assert facts(needs, scene(healthy("n")), R.MAP_ELSEWHERE) == ": other"


def test_a_refusal_without_numbers_stays_as_it_is() -> None:
    where = scene(node("n"))
    judge = Judge(wants(), where)
    refusal = REFUSALS[R.NODE_NO_EVIDENCE]
    assert detailed("n", refusal, judge, where) is refusal
    assert detailed("n", REFUSALS[R.NODE_STALE], judge, where) == REFUSALS[R.NODE_STALE]
