from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.fleet.view import GpuView, NodeView
from controller.placement.gpu_map import Place
from controller.placement.node_verdict import Judge, Limit, Promise, promise_of, promise_to
from controller.placement.refusals import REFUSALS, STILL_CLAIMED, message
from controller.placement.requirements import Guarantee, Requirements, RequirementsInvalid
from controller.placement.snapshot import Scene
from controller.placement.static_hashes import InsecureStaticHashes
from controller.policy import (
    AttestationClass,
    ClassHash,
    Level,
    MigStrategy,
    NodeMode,
    NodePool,
    Policy,
)
from gpuwarden.reasons import ReasonCode
from tests.builders.fleet_views import (
    LEASE_NS,
    NOW_NS,
    acceptance,
    gpu,
    hash_of,
    healthy,
    mig_slice,
    node,
)
from tests.builders.pods import parsed_requirements
from tests.builders.scenes import scene

# --- One node, one pod: the code against it, in the order of the checks

A, B = hash_of("a"), hash_of("b")


def code(
    needs: Requirements | RequirementsInvalid, where: Scene, name: str = "n"
) -> ReasonCode | None:
    refusal = Judge(needs, where).refusal(name)
    return None if refusal is None else refusal.code


def wants(**requirement: object) -> Requirements:
    return Requirements(managed=True, **requirement)  # type: ignore[arg-type] # fields by name


def of_class(name: str = "prod") -> Requirements:
    return wants(attestation_class=name)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (node("n"), ReasonCode.NODE_NO_EVIDENCE),
        (node("n", refused=ReasonCode.SIG_INVALID), ReasonCode.NODE_REFUSED),
        (healthy("n", blocked=None), None),
        (node("n", acceptance(), blocked=ReasonCode.NODE_DENIED), ReasonCode.NODE_REFUSED),
        (
            node("n", acceptance(), blocked=ReasonCode.INVENTORY_CHANGED),
            ReasonCode.NODE_QUARANTINED,
        ),
        (node("n", blocked=ReasonCode.DUPLICATE_AGENT), ReasonCode.NODE_QUARANTINED),
        (node("n", acceptance(issued_ns=NOW_NS - LEASE_NS)), ReasonCode.NODE_STALE),
        (node("n", acceptance(issued_ns=NOW_NS - LEASE_NS + 1)), None),
    ],
)
def test_standing_of_a_node(view: NodeView, expected: ReasonCode | None) -> None:
    assert code(wants(), scene(view)) == expected


def test_a_name_that_nobody_knows_has_no_evidence() -> None:
    assert code(wants(), scene(), "elsewhere") is ReasonCode.NODE_NO_EVIDENCE


def test_a_refused_node_says_which_refusal() -> None:
    refusal = Judge(wants(), scene(node("n", refused=ReasonCode.SIG_INVALID))).refusal("n")
    assert refusal is not None
    assert message(refusal) == "gpuwarden: NODE_REFUSED evidence refused (SIG_INVALID)"


def test_freshness_is_asked_at_each_decision() -> None:
    where = scene(healthy("n"))
    later = replace(where, now=replace(where.now, boottime_ns=NOW_NS + LEASE_NS))
    assert code(wants(), where) is None
    assert code(wants(), later) is ReasonCode.NODE_STALE
    assert Judge(wants(), later).passing(["n"]) == []


def test_hash_list() -> None:
    where = scene(healthy("n", "a"))
    assert code(wants(hashes=frozenset({A, B})), where) is None
    assert code(wants(hashes=frozenset({B})), where) is ReasonCode.HASH_MISMATCH


def test_a_pod_cannot_choose_what_the_cluster_does_not_allow() -> None:
    where = scene(healthy("n", "a"), policy=Policy(allowed_hashes=frozenset({B})))
    assert code(wants(hashes=frozenset({A})), where) is ReasonCode.CLASS_NOT_ALLOWED
    assert code(wants(), where) is ReasonCode.CLASS_NOT_ALLOWED


@pytest.mark.parametrize("own", [Level.NONE, Level.L0, Level.L1, Level.L2, Level.L3])
def test_level_by_pod_class_and_cluster(own: Level) -> None:
    for level in (Level.L0, Level.L1, Level.L2, Level.L3):
        low = [Level.NONE, *Level].index(own) < [Level.NONE, *Level].index(level)
        expected = ReasonCode.LEVEL_TOO_LOW if low else None
        view = node("n", acceptance(level=own))
        named = AttestationClass("prod", (ClassHash(A),), min_level=level)
        bottom = Policy(min_level=Level.NONE)
        assert code(wants(min_level=level), scene(view, policy=bottom)) == expected
        expected = None if level is Level.L0 else expected  # the default of both: demands nothing
        assert code(wants(), scene(view, policy=Policy(min_level=level))) == expected
        policy = Policy(classes={"prod": named}, min_level=Level.NONE)
        assert code(of_class(), scene(view, policy=policy)) == expected


def test_class_accepts_its_hashes_in_their_time() -> None:
    start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC)
    prod = AttestationClass("prod", (ClassHash(A, start, end), ClassHash(B)))
    policy = Policy(classes={"prod": prod})
    old, new = healthy("old", "a"), healthy("new", "b")

    def passing(wall: datetime) -> list[str]:
        return Judge(of_class(), scene(old, new, policy=policy, wall=wall)).passing(["old", "new"])

    assert passing(datetime(2025, 12, 31, tzinfo=UTC)) == ["new"]
    assert passing(start) == ["old", "new"]
    assert passing(end) == ["new"]


def test_class_and_hash_list_must_both_hold() -> None:
    policy = Policy(classes={"prod": AttestationClass("prod", (ClassHash(A), ClassHash(B)))})
    where = scene(healthy("n", "a"), policy=policy)
    both = replace(of_class(), hashes=frozenset({B}))
    assert code(both, where) is ReasonCode.HASH_MISMATCH
    assert code(replace(both, hashes=frozenset({A})), where) is None


def test_unknown_class_refuses_every_node_whatever_it_is() -> None:
    where = scene(healthy("n"), node("m"))
    assert {code(of_class("nope"), where, name) for name in "nmx"} == {ReasonCode.CLASS_UNKNOWN}


def test_invalid_requirements_refuse_every_node() -> None:
    invalid = parsed_requirements({"gpuwarden.dev/min-level": "L9"})
    judge = Judge(invalid, scene(healthy("n")))
    refusal = judge.refusal("n")
    assert refusal is not None
    assert refusal.code is ReasonCode.REQ_INVALID
    assert "gpuwarden.dev/min-level: got L9" in refusal.detail
    assert judge.passing(["n"]) == []


def test_a_map_without_an_ordinal_yet_passes_nowhere() -> None:
    needs = wants(mapped=True, count=1)
    assert code(needs, scene(healthy("n"))) is ReasonCode.REQ_INVALID


def test_a_label_that_the_policy_does_not_know_is_the_pods_fault() -> None:
    needs = wants(labels=frozenset({"big", "model-x"}), count=1)
    known = Policy(labels={"big": "memory>=40Gi"})
    refusal = Judge(needs, scene(healthy("n"))).refusal("n")
    assert refusal is not None
    assert "GPU label big is not in the policy" in refusal.detail
    assert code(needs, scene(healthy("n"), policy=known)) is ReasonCode.GPU_NO_MATCH


def test_the_map_comes_before_the_nodes_standing() -> None:
    needs = wants(mapped=True, place=Place("m", (0,)), count=1)
    where = scene(node("n"), healthy("m"))
    assert code(needs, where) is ReasonCode.MAP_ELSEWHERE
    assert code(needs, where, "m") is None


@pytest.mark.parametrize(
    ("mode", "fits"),
    [
        (NodeMode.ENV, {"node", "requirement"}),
        (NodeMode.PLUGIN, {"node", "request", "both"}),
        (NodeMode.PER_GPU, set()),
        (NodeMode.DRA, set()),
    ],
)
def test_a_pods_own_way_of_getting_a_gpu_must_be_the_nodes(mode: NodeMode, fits: set[str]) -> None:
    request = (("nvidia.com/gpu", 1),)
    ways = {
        "node": wants(),
        "requirement": wants(count=1),
        "request": wants(count=1, requests=request),
        "claim": wants(count=1, claims=True),
        "both": wants(count=1, claims=True, requests=request),
    }
    where = scene(healthy("n", mode=mode))
    for way, needs in ways.items():
        assert code(needs, where) == (None if way in fits else ReasonCode.NODE_MODE), way


@pytest.mark.parametrize("mode", [NodeMode.PER_GPU, NodeMode.DRA])
def test_a_mode_that_is_not_available_says_so_whatever_is_asked(mode: NodeMode) -> None:
    where = scene(healthy("n", mode=mode))
    request = (("nvidia.com/gpu", 1),)
    for needs in (wants(), wants(count=1), wants(count=1, claims=True), wants(requests=request)):
        refusal = Judge(needs, where).refusal("n")
        assert refusal is not None
        assert message(refusal) == f"gpuwarden: NODE_MODE nodes of mode {mode} give no GPUs yet"


@pytest.mark.parametrize(
    ("mode", "needs"),
    [
        (NodeMode.ENV, {"count": 1, "claims": True}),
        (NodeMode.PLUGIN, {"count": 1}),
    ],
)
def test_a_mode_that_gives_gpus_otherwise_says_that(mode: NodeMode, needs: dict[str, Any]) -> None:
    refusal = Judge(wants(**needs), scene(healthy("n", mode=mode))).refusal("n")
    assert refusal is REFUSALS[ReasonCode.NODE_MODE]


def test_a_node_whose_gpus_are_still_had_by_claims_says_that() -> None:
    needs = wants(count=1, requests=(("nvidia.com/gpu", 1),))
    where = scene(healthy("n", mode=NodeMode.PLUGIN))
    assert code(needs, where) is None
    refusal = Judge(needs, replace(where, claimed=frozenset({"GPU-n-0"}))).refusal("n")
    assert refusal is STILL_CLAIMED


def split_and_whole(*, strategy: MigStrategy | None, whole: bool = True) -> Scene:
    """A node with a split GPU, perhaps beside a whole one; a pool says what its plugin does."""
    gpus = [gpu(1, mig=True, mig_devices=[mig_slice("MIG-a")]), *([gpu(0)] if whole else ())]
    shown = replace(node("n", acceptance(gpus=gpus)), mode=NodeMode.PLUGIN)
    return scene(shown, policy=Policy(pools=(NodePool("n", mig_strategy=strategy),)))


WHOLE = (("nvidia.com/gpu", 1),)
PART = (("nvidia.com/mig-1g.10gb", 1),)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("strategy", [None, *MigStrategy])
def test_a_device_plugin_may_give_a_split_gpu_as_a_whole_one(
    strategy: MigStrategy | None, *, whole: bool
) -> None:
    where = split_and_whole(strategy=strategy, whole=whole)
    expected = ReasonCode.EXACT_UNAVAILABLE if strategy is MigStrategy.NONE else None
    for accepts in (None, Guarantee.SET):
        needs = wants(count=1, requests=WHOLE, accepts=accepts)
        assert code(needs, where) is expected
        assert Judge(needs, where).passing(["n"]) == ([] if expected else ["n"])


def test_that_matters_to_pods_that_want_a_whole_gpu_and_more_than_the_node() -> None:
    where = split_and_whole(strategy=MigStrategy.NONE)
    assert code(wants(count=1, requests=WHOLE, accepts=Guarantee.NODE), where) is None
    assert code(wants(count=1, requests=PART), where) is None
    assert code(wants(count=2, requests=WHOLE + PART), where) is ReasonCode.EXACT_UNAVAILABLE
    assert code(wants(), where) is None


@pytest.mark.parametrize("other", [gpu(1, mig=True, lost=True), gpu(1)], ids=["lost", "not split"])
def test_it_matters_while_a_gpu_is_split(other: GpuView) -> None:
    shown = replace(node("n", acceptance(gpus=[gpu(0), other])), mode=NodeMode.PLUGIN)
    pools = (NodePool("n", mig_strategy=MigStrategy.NONE),)
    assert code(wants(count=1, requests=WHOLE), scene(shown, policy=Policy(pools=pools))) is None


STATIC = InsecureStaticHashes({"n": "abc123", "m": "xyz"})


def test_seed_vector_of_the_static_map() -> None:
    needs = wants(hashes=frozenset({"abc123"}), count=1, requests=(("nvidia.com/gpu", 1),))
    judge = Judge(needs, scene(static=InsecureStaticHashes({"kind-worker": "abc123"})))
    refusal = judge.refusal("kind-worker2")
    assert judge.passing(["kind-worker", "kind-worker2"]) == ["kind-worker"]
    assert refusal is not None
    assert "no attestation hash" in message(refusal)


@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        (wants(hashes=frozenset({"abc123"})), None),
        (wants(hashes=frozenset({"ABC123"})), ReasonCode.HASH_MISMATCH),
        (wants(), ReasonCode.NODE_NO_EVIDENCE),
        (wants(count=1, requests=(("nvidia.com/gpu", 1),)), ReasonCode.NODE_NO_EVIDENCE),
        (wants(hashes=frozenset({"abc123"}), min_level=Level.L0), ReasonCode.LEVEL_TOO_LOW),
        (wants(hashes=frozenset({"abc123"}), count=1), ReasonCode.GPU_NO_MATCH),
        (wants(hashes=frozenset({"abc123"}), uuids=("GPU-1",), count=1), ReasonCode.GPU_NO_MATCH),
    ],
)
def test_static_hashes_answer_for_hashes_only(
    needs: Requirements, expected: ReasonCode | None
) -> None:
    assert code(needs, scene(static=STATIC)) == expected
    assert code(needs, scene(node("n"), static=STATIC)) == expected


def test_static_hashes_never_overrule_evidence() -> None:
    needs = wants(hashes=frozenset({"abc123"}))
    for view, expected in (
        (healthy("n"), ReasonCode.HASH_MISMATCH),
        (node("n", refused=ReasonCode.SIG_INVALID), ReasonCode.NODE_REFUSED),
        (node("n", blocked=ReasonCode.DUPLICATE_AGENT), ReasonCode.NODE_QUARANTINED),
        (node("n", acceptance(issued_ns=0)), ReasonCode.NODE_STALE),
    ):
        assert code(needs, scene(view, static=STATIC)) is expected


def test_cluster_policy_binds_static_hashes_too() -> None:
    needs = wants(hashes=frozenset({"abc123", "xyz"}))
    only = Policy(allowed_hashes=frozenset({"xyz"}))
    assert code(needs, scene(static=STATIC, policy=only)) is ReasonCode.CLASS_NOT_ALLOWED
    assert code(needs, scene(static=STATIC, policy=only), "m") is None
    strict = Policy(min_level=Level.L1)
    assert code(needs, scene(static=STATIC, policy=strict)) is ReasonCode.LEVEL_TOO_LOW


def test_texts_are_constant_and_of_one_line() -> None:
    for code_, refusal in REFUSALS.items():
        assert refusal.code is code_
        assert message(refusal).startswith(f"gpuwarden: {code_} ")
        assert message(refusal).isprintable()


# --- What nodes promise of GPUs: never more than the mode, the protection and the runtime allow

NAME = "gpu-1"
HONOURS = Policy(pools=(NodePool("gpu-*", honours_variable=True),))
ONE = Requirements(managed=True, count=1)


def place(
    *, managed: bool = True, protected: bool = True, fresh: bool = True, honours: bool = True
) -> Scene:
    nodes = DirectorySnapshot({NAME: KnownNode("u", managed)}, NOW_NS + 1 if fresh else NOW_NS)
    made = scene(policy=HONOURS if honours else Policy())
    return replace(made, nodes=nodes, protected=protected)


@pytest.mark.parametrize("mode", NodeMode)
@pytest.mark.parametrize(
    ("where", "limit"),
    [
        (place(protected=False), Limit.PROTECTION_OFF),
        (place(managed=False), Limit.NO_TAINT),
        (place(fresh=False), Limit.TAINTS_UNKNOWN),
        (replace(place(), nodes=DirectorySnapshot({})), Limit.NO_TAINT),
    ],
)
def test_an_unprotected_node_promises_itself_alone(
    mode: NodeMode, where: Scene, limit: Limit
) -> None:
    assert promise_of(NAME, mode, where) == Promise(Guarantee.NODE, limit)


@pytest.mark.parametrize(
    ("mode", "honours", "promise"),
    [
        (NodeMode.ENV, True, Promise(Guarantee.EXACT)),
        (NodeMode.ENV, False, Promise(Guarantee.NODE, Limit.RUNTIME)),
        (NodeMode.PLUGIN, True, Promise(Guarantee.SET, Limit.KUBELET)),
        (NodeMode.PER_GPU, True, Promise(Guarantee.NODE, Limit.MODE)),
        (NodeMode.DRA, True, Promise(Guarantee.NODE, Limit.MODE)),
    ],
)
def test_a_protected_node_promises_what_its_mode_can_give(
    mode: NodeMode, honours: bool, promise: Promise
) -> None:
    assert promise_of(NAME, mode, place(honours=honours)) == promise
    assert promise_to(ONE, NAME, mode, place(honours=honours)) == promise


def test_only_the_pool_of_the_node_counts() -> None:
    other = Policy(pools=(NodePool("gpu-1"), NodePool("*", honours_variable=True)))
    where = replace(place(), policy=scene(policy=other).policy)
    assert promise_of(NAME, NodeMode.ENV, where) == Promise(Guarantee.NODE, Limit.RUNTIME)


def test_a_pod_without_gpus_is_promised_the_node() -> None:
    needs = replace(ONE, count=0)
    for mode in NodeMode:
        assert promise_to(needs, NAME, mode, place()) == Promise(Guarantee.NODE)


def test_who_accepts_less_may_get_another_device_where_kubelet_chooses() -> None:
    needs = replace(ONE, accepts=Guarantee.NODE)
    assert promise_to(needs, NAME, NodeMode.PLUGIN, place()) == Promise(
        Guarantee.NODE, Limit.ACCEPTED
    )
    assert promise_to(needs, NAME, NodeMode.ENV, place()) == Promise(Guarantee.EXACT)
