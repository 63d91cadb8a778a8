import hashlib
from dataclasses import replace

import pytest

from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.fleet.view import GpuView, NodeView
from controller.placement.devices import DevicePool
from controller.placement.explanation import (
    EXAMPLES,
    NodeFit,
    explain_bound,
    explain_fit,
    explain_waiting,
)
from controller.placement.filter_and_score import (
    MAX_REASONS,
    MAX_SCORE,
    HeldBack,
    bin_packing,
    filter_nodes,
    prioritize_nodes,
    with_hint,
)
from controller.placement.gpu_map import Place
from controller.placement.node_verdict import Judge, Limit, Promise
from controller.placement.requirements import Guarantee, Requirements
from controller.placement.selector import breaks_island, islands
from controller.placement.snapshot import Scene, placement_policy
from controller.placement.static_hashes import InsecureStaticHashes
from controller.placement.verdict_cache import PlacementMemory
from controller.policy import Level, NodeMode, NodePool, Policy
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.fleet_views import (
    LEASE_NS,
    NOW_NS,
    acceptance,
    fleet,
    gpu,
    hash_of,
    healthy,
    node,
    past,
)
from tests.builders.pods import parsed_requirements, requirements
from tests.builders.scenes import scene

# --- Filter, prioritize and fit over small fleets

A = Requirements(managed=True, hashes=frozenset({hash_of("a")}), count=1)
ONE = Requirements(managed=True, count=1)


def test_passed_is_a_subset_in_input_order() -> None:
    where = scene(healthy("n1"), healthy("n2", "b"), healthy("n3"), node("n4"))
    outcome = filter_nodes(["n3", "n9", "n2", "n1", "n4"], A, where)
    assert outcome.passed == ["n3", "n1"]
    assert {name: refusal.code for name, refusal in outcome.reasons.items()} == {
        "n9": ReasonCode.NODE_NO_EVIDENCE,
        "n2": ReasonCode.HASH_MISMATCH,
        "n4": ReasonCode.NODE_NO_EVIDENCE,
    }


def test_totals_count_every_node_and_the_digest_stands_for_the_list() -> None:
    where = scene(*[healthy(f"n{i:03}", "b") for i in range(250)], healthy("good"))
    names = [*(f"n{i:03}" for i in range(250)), "unknown", "good"]
    outcome = filter_nodes(names, A, where)
    assert len(outcome.reasons) == MAX_REASONS
    assert list(outcome.reasons) == names[:MAX_REASONS]
    totals = outcome.totals()
    assert totals.passed == 1
    assert totals.rejected == {ReasonCode.HASH_MISMATCH: 250, ReasonCode.NODE_NO_EVIDENCE: 1}
    assert totals.digest == filter_nodes(names, A, where).totals().digest
    assert totals.digest != filter_nodes(names[1:], A, where).totals().digest


@pytest.mark.parametrize("asked", [A, ONE], ids=["one in many passes", "all but one pass"])
def test_the_digest_is_that_of_all_lines_in_order(asked: Requirements) -> None:
    names = [f"n{i:04}" for i in range(2500)]
    where = scene(*(healthy(name, "b") for name in names[1:]), healthy(names[0]), node("silent"))
    names.insert(1700, "silent")
    where = replace(where, memory=PlacementMemory())
    lines = []
    for name in names:
        refusal = Judge(asked, where).refusal(name)
        lines.append(f"{name} {refusal.code if refusal else '-'}\n")
    totals = filter_nodes(names, asked, where).totals()
    assert totals.digest == hashlib.sha256("".join(lines).encode()).hexdigest()
    assert list(totals.rejected) == sorted(totals.rejected)


def test_empty_input_and_empty_fleet() -> None:
    assert filter_nodes([], A, scene()).passed == []
    assert filter_nodes(["n"], A, scene()).passed == []


def test_map_and_policy_narrow_the_candidates() -> None:
    nodes = [healthy("n1"), healthy("n2", "b")]
    names = ["n1", "n2"]
    mapped = replace(ONE, mapped=True, place=Place("n2", (0,)))
    assert filter_nodes(names, mapped, scene(*nodes)).passed == ["n2"]
    only_b = Policy(allowed_hashes=frozenset({hash_of("b"), hash_of("c")}))
    assert filter_nodes(names, ONE, scene(*nodes, policy=only_b)).passed == ["n2"]
    both = replace(A, hashes=frozenset({hash_of("a"), hash_of("b")}))
    assert filter_nodes(names, both, scene(*nodes)).passed == names


def test_static_names_are_candidates() -> None:
    static = InsecureStaticHashes({"s1": "abc", "s2": "abd"})
    needs = Requirements(managed=True, hashes=frozenset({"abc", hash_of("a")}))
    where = scene(healthy("n1"), static=static)
    assert filter_nodes(["s1", "s2", "n1"], needs, where).passed == ["s1", "n1"]


def test_invalid_requirements_pass_nowhere() -> None:
    invalid = parsed_requirements({"gpu-scheduling-map": "nonsense"})
    outcome = filter_nodes(["n1"], invalid, scene(healthy("n1")))
    assert outcome.passed == []
    assert outcome.reasons["n1"].code is ReasonCode.REQ_INVALID


def test_memory_never_outlives_the_evidence_policy_or_use_it_came_from() -> None:
    memory = PlacementMemory()
    same = placement_policy(Policy())
    names = ["n"]

    def passed(**changes: object) -> list[str]:
        where = scene(memory=memory, **{"policy": same, **changes})  # type: ignore[arg-type] # fields by name
        return filter_nodes(names, A, where).passed

    good = fleet(healthy("n"))
    assert passed(snapshot=good) == names
    assert passed(snapshot=good) == names
    assert passed(snapshot=good, busy=tuple(f"GPU-n-{i}" for i in range(8))) == []
    assert passed(snapshot=good, policy=Policy(min_level=Level.L1)) == []
    assert passed(snapshot=good) == names
    revoked = replace(good.nodes["n"], blocked=past(ReasonCode.NODE_DENIED))
    assert passed(snapshot=fleet(revoked)) == []
    assert passed(snapshot=good) == names
    assert passed(snapshot=fleet(healthy("n", gpus=0))) == []
    assert passed(snapshot=fleet(healthy("n", mode=NodeMode.PLUGIN))) == []
    assert passed(snapshot=fleet(node("n", acceptance(), blocked=ReasonCode.NODE_DENIED))) == []
    assert passed(snapshot=good, now_ns=NOW_NS + LEASE_NS) == []
    assert passed(snapshot=good) == names


def test_memory_is_bounded() -> None:
    memory = PlacementMemory()
    first = memory.verdicts("question 0", 0)
    for number in range(1, 40):
        memory.verdicts(f"question {number}", 0)
    assert memory.verdicts("question 39", 0) is memory.verdicts("question 39", 0)
    assert memory.verdicts("question 0", 0) is not first
    accepted = acceptance()
    pools = [memory.pool(f"n{i}", accepted) for i in range(100)]
    assert memory.pool("n1", accepted) is pools[1]
    memory.forget_all_but({"n1": 0})
    assert memory.pool("n1", accepted) is pools[1]
    assert memory.pool("n2", accepted) is not pools[2]


def test_a_question_that_nobody_repeats_lets_go_of_the_fleets_old_evidence() -> None:
    memory, minute = PlacementMemory(), 60_000_000_000
    once, often = memory.verdicts("once", 0), memory.verdicts("often", 0)
    assert memory.verdicts("often", minute - 1) is often
    assert memory.verdicts("once", minute - 1) is once
    assert memory.verdicts("often", 2 * minute - 2) is often
    memory.verdicts("another", 2 * minute - 1)
    assert memory.verdicts("often", 2 * minute - 1) is often
    assert memory.verdicts("once", 2 * minute - 1) is not once


@pytest.mark.parametrize(
    ("left", "expected"), [(0, 4), (1, 3), (2, 2), (3, 2), (4, 1), (100, 1), (-1, 4)]
)
def test_bin_packing(left: int, expected: int) -> None:
    assert bin_packing(left) == expected


def test_scores_are_integers_for_each_host_once_and_monotone_in_fit() -> None:
    where = scene(*[healthy(f"n{gpus}", gpus=gpus) for gpus in (1, 2, 3, 8)], healthy("b", "b"))
    names = ["n8", "n1", "n2", "n3", "b", "unknown", "n1"]
    scores = prioritize_nodes(names, A, where)
    assert scores == {"n1": 10, "n2": 8, "n3": 6, "n8": 4, "b": 0, "unknown": 0}
    assert all(type(score) is int and 0 <= score <= 10 for score in scores.values())


def test_use_makes_a_node_tighter() -> None:
    where = scene(healthy("n"), healthy("m"), busy=tuple(f"GPU-m-{i}" for i in range(7)))
    scores = prioritize_nodes(["n", "m"], A, where)
    assert scores["m"] > scores["n"]


def test_higher_level_than_asked_comes_last_then_freshness() -> None:
    one = (gpu(0),)
    half = NOW_NS - LEASE_NS // 2 - 1
    where = scene(
        node("plain", acceptance(gpus=one)),
        node("rare", acceptance(gpus=one, level=Level.L2)),
        node("older", acceptance(gpus=one, issued_ns=half)),
    )
    scores = prioritize_nodes(["plain", "rare", "older"], ONE, where)
    assert scores == {"plain": 10, "older": 9, "rare": 8}
    asked = replace(ONE, min_level=Level.L2)
    assert prioritize_nodes(["plain", "rare"], asked, where) == {"plain": 0, "rare": 10}


# --- A hint's choice


@pytest.mark.parametrize(
    ("points", "weight", "chosen", "other"),
    [(7, 0, 7, 7), (7, 1, 7, 6), (0, 50, 5, 0), (10, 50, 10, 5), (10, 100, 10, 0), (0, 100, 10, 0)],
)
def test_a_hint_takes_its_weight_of_the_score(
    points: int, weight: int, chosen: int, other: int
) -> None:
    assert with_hint(points, weight, 100) == chosen
    assert with_hint(points, weight, 0) == other


@pytest.mark.parametrize(
    ("points", "weight", "preference", "expected"),
    [
        (10, 100, 99, 9),
        (0, 100, 10, 1),
        (0, 100, 9, 0),
        (10, 60, 50, 7),
        (4, 60, 90, 7),
        (4, 60, 89, 6),
        (10, 0, 50, 10),
    ],
)
def test_a_next_best_type_gets_its_part_of_that(
    points: int, weight: int, preference: int, expected: int
) -> None:
    assert with_hint(points, weight, preference) == expected


def test_from_51_on_a_chosen_node_comes_before_those_that_are_not_named() -> None:
    def is_first(weight: int) -> bool:
        worst, best = with_hint(0, weight, 100), with_hint(MAX_SCORE, weight, 0)
        return worst > best

    assert [is_first(weight) for weight in (50, 51, 100)] == [False, True, True]


H100_TYPE = "NVIDIA-H100-80GB-HBM3"


def test_the_chosen_type_comes_first_among_nodes_that_pass() -> None:
    l4 = node("l4", acceptance(hash_of("a"), (gpu(0, "GPU-l4", product="NVIDIA L4"),)))
    nodes = (healthy("loose"), l4, healthy("wrong", "b"))
    names = ["loose", "l4", "wrong", "nobody"]

    def scores(weight: int, **chosen: int) -> list[int]:
        where = scene(*nodes, policy=Policy(hint_weight=weight))
        named = {name.replace("_", "-"): share for name, share in chosen.items()}
        return list(prioritize_nodes(names, A, where, named).values())

    assert scores(0, NVIDIA_H100_80GB_HBM3=100) == scores(60) == [4, 10, 0, 0]
    assert scores(60, NVIDIA_H100_80GB_HBM3=100) == [7, 4, 0, 0]
    assert scores(60, NVIDIA_L4=100) == [1, 10, 0, 0]
    assert scores(60, B200=100) == [1, 4, 0, 0]
    assert scores(60, B200=100, NVIDIA_H100_80GB_HBM3=90) == [7, 4, 0, 0]
    assert scores(60, NVIDIA_L4=20, NVIDIA_H100_80GB_HBM3=100) == [7, 5, 0, 0]


def test_a_choice_moves_no_node_that_cannot_pass() -> None:
    static = InsecureStaticHashes({"s": "opaque"})
    where = scene(static=static, policy=Policy(hint_weight=100))
    needs = Requirements(managed=True, hashes=frozenset({"opaque"}))
    assert filter_nodes(["s"], needs, where).passed == ["s"]
    assert prioritize_nodes(["s"], needs, where, {H100_TYPE: 100}) == {"s": 0}


def test_a_static_node_scores_nothing() -> None:
    needs = Requirements(managed=True, hashes=frozenset({"abc"}))
    where = scene(static=InsecureStaticHashes({"s": "abc"}))
    assert prioritize_nodes(["s"], needs, where) == {"s": 0}


def linked(*groups: str) -> list[GpuView]:
    """GPUs by letter; each group of letters is linked pairwise to one switch."""
    letters = "".join(groups)
    return [
        gpu(i, letter, peers=[f"switch-{next(g for g in groups if letter in g)}"])
        for i, letter in enumerate(letters)
    ]


def test_islands_by_switch_and_by_direct_link() -> None:
    assert sorted(map(sorted, islands(linked("ab", "cde", "f")))) == [["a", "b"], ["c", "d", "e"]]
    left, right = gpu(0, peers=["00000000:01:00.0"]), gpu(1)
    assert islands([left, right]) == [frozenset({"GPU-0", "GPU-1"})]
    chain = [gpu(0, peers=["x"]), gpu(1, peers=["y"]), gpu(2, peers=["x", "y"])]
    assert islands(chain) == [frozenset({"GPU-0", "GPU-1", "GPU-2"})]
    assert islands([gpu(0), gpu(1)]) == []


@pytest.mark.parametrize(
    ("groups", "count", "expected"),
    [
        (("abcd",), 4, False),
        (("abcd",), 1, True),
        (("abcd", "ef"), 2, False),
        (("abcd", "ef"), 6, False),
        (("abcd", "ef"), 3, True),
        (("abcd", "e"), 1, False),
        (("abcd", "e"), 5, False),
        (("abcd", "e"), 2, True),
    ],
)
def test_breaking_an_island(groups: tuple[str, ...], count: int, expected: bool) -> None:
    gpus = linked(*groups)
    free = DevicePool(acceptance(gpus=gpus)).devices
    assert breaks_island(count, free, gpus) is expected


def test_an_island_that_is_not_wholly_free_is_not_kept() -> None:
    gpus = linked("abcd")
    free = DevicePool(acceptance(gpus=gpus)).devices[1:]
    assert breaks_island(1, free, gpus) is False


def test_a_node_that_need_not_break_an_island_is_preferred() -> None:
    whole = node("whole", acceptance(gpus=linked("ab")))
    loose = node("loose", acceptance(gpus=[gpu(0), gpu(1)]))
    scores = prioritize_nodes(["whole", "loose"], ONE, scene(whole, loose))
    assert scores["loose"] > scores["whole"]
    two = replace(ONE, count=2)
    assert set(prioritize_nodes(["whole", "loose"], two, scene(whole, loose)).values()) == {10}


UNPROTECTED = Promise(Guarantee.NODE, Limit.PROTECTION_OFF)


def test_fit_explains_every_node() -> None:
    where = scene(
        healthy("n1"),
        healthy("n2", "b"),
        healthy("p", mode=NodeMode.PLUGIN),
        static=InsecureStaticHashes({"s": "x"}),
    )
    report = explain_fit(A, where)
    assert [fit.node for fit in report.fits] == ["n1", "n2", "p", "s"]
    assert report.fits[0] == NodeFit("n1", None, 4, UNPROTECTED)
    assert report.totals == {
        ReasonCode.HASH_MISMATCH: 2,
        ReasonCode.NODE_MODE: 1,
    }
    assert report.pod_refusal is None
    plugin = replace(A, requests=(("nvidia.com/gpu", 1),))
    refusal = report.fits[1].refusal
    assert refusal is not None
    assert "node has v1:sha256:" in refusal.detail
    (fit,) = explain_fit(plugin, where, names=["p"]).fits
    assert (fit.refusal, fit.promise) == (None, UNPROTECTED)


def test_fit_of_an_invalid_pod_and_of_a_static_node() -> None:
    report = explain_fit(
        parsed_requirements({"gpuwarden.dev/min-level": "x"}), scene(healthy("n1"))
    )
    assert report.pod_refusal is not None
    assert report.totals == {ReasonCode.REQ_INVALID: 1}
    needs = Requirements(managed=True, hashes=frozenset({"abc"}))
    where = scene(static=InsecureStaticHashes({"s": "abc"}))
    assert explain_fit(needs, where).fits == (NodeFit("s", None, 0, Promise(Guarantee.NODE)),)


@pytest.mark.parametrize(
    ("called", "directory", "passes"),
    [
        ("n2", DirectorySnapshot({}), "n2"),
        ("node2", DirectorySnapshot({}, map_names={"node2": "n2"}), "n2"),
        ("n2", DirectorySnapshot({"n2": KnownNode()}, map_names={"n2": "n1"}), "n2"),
        ("node2", DirectorySnapshot({}, map_names={"other": "n2"}), None),
    ],
    ids=["name", "label", "a name wins over a label", "unknown"],
)
def test_a_map_names_a_node_by_its_name_or_its_label(
    called: str, directory: DirectorySnapshot, passes: str | None
) -> None:
    where = replace(scene(healthy("n1"), healthy("n2")), nodes=directory)
    needs = replace(ONE, mapped=True, place=Place(called, (0,)))
    outcome = filter_nodes(["n1", "n2"], needs, where)
    assert outcome.passed == ([] if passes is None else [passes])
    assert {refusal.code for refusal in outcome.reasons.values()} == {ReasonCode.MAP_ELSEWHERE}


OVER = Refusal(ReasonCode.QUOTA_EXCEEDED, "the namespace holds 4 GPUs and may hold 4")
HELD_BACK = HeldBack(OVER)


def test_who_is_held_back_passes_no_node_whose_gpus_gpuwarden_gives() -> None:
    where = scene(healthy("n1"), healthy("n2", "b"), healthy("n3", mode=NodeMode.PLUGIN))
    names = ["n1", "n2", "n3", "n4"]
    outcome = filter_nodes(names, A, where, held_back=HELD_BACK)
    assert outcome.passed == []
    assert outcome.reasons["n1"] == OVER
    assert {x: y.code for x, y in outcome.reasons.items()} == {
        "n1": ReasonCode.QUOTA_EXCEEDED,
        "n2": ReasonCode.HASH_MISMATCH,
        "n3": ReasonCode.NODE_MODE,
        "n4": ReasonCode.NODE_NO_EVIDENCE,
    }
    assert outcome.totals().rejected[ReasonCode.QUOTA_EXCEEDED] == 1
    assert filter_nodes(names, A, where, frozenset({"n1"}), HELD_BACK).reasons["n1"] == OVER


def test_kubelet_s_gpus_and_pods_that_ask_for_none_are_not_held_back() -> None:
    where = scene(healthy("n1", mode=NodeMode.PLUGIN), healthy("n2"))
    by_kubelet = replace(ONE, requests=(("nvidia.com/gpu", 1),))
    assert filter_nodes(["n1", "n2"], by_kubelet, where, held_back=HELD_BACK).passed == ["n1"]
    nothing = Requirements(managed=True)
    assert filter_nodes(["n2"], nothing, where, held_back=HELD_BACK).passed == ["n2"]
    denied = HeldBack(Refusal(ReasonCode.BYPASS_HOST_PID, "hostPID"), everywhere=True)
    assert filter_nodes(["n1", "n2"], by_kubelet, where, held_back=denied).passed == []
    assert filter_nodes(["n2"], nothing, where, held_back=denied).passed == []


# --- Why a pod waits: the totals of /filter over every node that is known, with examples

NEEDS = requirements({"gpuwarden.dev/gpu-selector": "memory>=1Gi"})
BIG = requirements({"gpuwarden.dev/gpu-selector": "memory>=1Ti"})
NOBODY: frozenset[str] = frozenset()


def test_totals_and_examples_are_those_of_filter() -> None:
    nodes = (*(healthy(f"gpu-{n:02}", gpus=1) for n in range(12)), node("new-1"), node("new-0"))
    here = scene(*nodes)
    found = explain_waiting(BIG, here, NOBODY)
    assert found.passing == 0
    first, second = found.rejections
    assert (first.code, first.count) == (ReasonCode.GPU_NO_MATCH, 12)
    assert first.nodes == tuple(f"gpu-{n:02}" for n in range(EXAMPLES))
    assert (second.code, second.nodes) == (ReasonCode.NODE_NO_EVIDENCE, ("new-0", "new-1"))
    outcome = filter_nodes([x.name for x in nodes], BIG, here)
    assert outcome.totals().rejected == {x.code: x.count for x in found.rejections}
    text = outcome.reasons["gpu-00"].detail
    numbers = "needs 1 GPU, node has 1, 0 as asked, memory>=1Ti: 0 of 1 (largest 79.6Gi), 0 free"
    assert first.detail == f"gpu-00: {text}: {numbers}"
    assert second.detail == f"new-0: {outcome.reasons['new-0'].detail}"
    alone = explain_waiting(BIG, scene(nodes[0]), NOBODY).rejections[0]
    assert alone.detail == first.detail.removeprefix("gpu-00: ")


def test_texts_are_there_beyond_what_filter_answers_with() -> None:
    many = [node(f"a-{n:04}") for n in range(MAX_REASONS)]
    found = explain_waiting(BIG, scene(*many, healthy("z")), NOBODY)
    assert [x.code for x in found.rejections] == [
        ReasonCode.GPU_NO_MATCH,
        ReasonCode.NODE_NO_EVIDENCE,
    ]
    assert all(x.detail for x in found.rejections)


def stale(name: str) -> NodeView:
    gpus = [gpu(0, f"GPU-{name}-0")]
    return node(name, acceptance(gpus=gpus, issued_ns=NOW_NS - LEASE_NS))


def ranked(needs: Requirements, here: Scene) -> list[tuple[ReasonCode, int]]:
    return [(x.code, x.count) for x in explain_waiting(needs, here, NOBODY).rejections]


def test_a_node_that_would_take_the_pod_comes_before_many_that_are_not_meant() -> None:
    full = tuple(f"GPU-gpu-1-{n}" for n in range(8))
    stands = healthy("gpu-2", mode=NodeMode.PLUGIN), healthy("gpu-3", mode=NodeMode.PLUGIN)
    assert ranked(ONE, scene(healthy("gpu-1"), *stands, busy=full)) == [
        (ReasonCode.GPU_BUSY, 1),
        (ReasonCode.NODE_MODE, 2),
    ]


def test_the_node_of_a_map_comes_before_all_others() -> None:
    mapped = replace(ONE, place=Place("gpu-1", (0,)), mapped=True)
    others = healthy("gpu-2"), healthy("gpu-3")
    elsewhere = ReasonCode.MAP_ELSEWHERE, 2
    for first, code in (
        (stale("gpu-1"), ReasonCode.NODE_STALE),
        (node("gpu-1"), ReasonCode.NODE_NO_EVIDENCE),
        (healthy("gpu-1", gpus=0), ReasonCode.GPU_NO_MATCH),
    ):
        assert ranked(mapped, scene(first, *others)) == [(code, 1), elsewhere]


def test_the_node_of_named_gpus_comes_before_all_others_but_other_gpus_count() -> None:
    here = scene(stale("gpu-1"), healthy("gpu-2"), healthy("gpu-3"))
    named = replace(ONE, uuids=("GPU-gpu-1-0",))
    no_match = ReasonCode.GPU_NO_MATCH, 2
    assert ranked(named, here) == [(ReasonCode.NODE_STALE, 1), no_match]
    assert ranked(BIG, here) == [no_match, (ReasonCode.NODE_STALE, 1)]


def test_what_the_binding_webhook_has_just_denied_counts_as_rejected() -> None:
    here = scene(healthy("gpu-1"), healthy("gpu-2"))
    found = explain_waiting(NEEDS, here, frozenset({"gpu-2"}))
    assert (found.passing, found.examples) == (1, ("gpu-1",))
    assert [(x.code, x.nodes) for x in found.rejections] == [
        (ReasonCode.BINDING_DENIED_RECENTLY, ("gpu-2",))
    ]


def test_what_holds_a_pod_back_is_said() -> None:
    here = scene(healthy("gpu-1"), healthy("gpu-2"))
    (rejection,) = explain_waiting(NEEDS, here, NOBODY, HELD_BACK).rejections
    assert (rejection.code, rejection.count) == (OVER.code, 2)
    assert rejection.detail.endswith(OVER.detail)


def test_a_pod_that_no_node_can_help() -> None:
    found = explain_waiting(
        parsed_requirements({"gpuwarden.dev/min-level": "L9"}), scene(healthy("a")), NOBODY
    )
    assert found.refusal is not None
    assert found.refusal.code is ReasonCode.REQ_INVALID
    assert (found.passing, found.promise) == (0, None)


def test_the_best_promise_of_those_that_pass() -> None:
    policy = Policy(pools=(NodePool("gpu-*", honours_variable=True),))
    known = {x: KnownNode("u", managed=True) for x in ("a-1", "gpu-1", "z-1")}
    here = replace(
        scene(healthy("a-1"), healthy("gpu-1"), healthy("z-1"), policy=policy),
        nodes=DirectorySnapshot(known),
        protected=True,
    )
    assert explain_waiting(NEEDS, here, NOBODY).promise == Promise(Guarantee.EXACT)
    assert explain_bound(NEEDS, here, "a-1").promise == Promise(Guarantee.NODE, Limit.RUNTIME)
    assert explain_bound(NEEDS, here, "gpu-1").promise == Promise(Guarantee.EXACT)
    assert (
        explain_bound(parsed_requirements({"gpuwarden.dev/min-level": "L9"}), here, "a-1").promise
        is None
    )


def test_nodes_with_static_hashes_alone_are_known_too() -> None:
    static = InsecureStaticHashes({"old-1": "sha256:x"})
    found = explain_waiting(NEEDS, scene(static=static), NOBODY)
    assert [x.nodes for x in found.rejections] == [("old-1",)]
