from collections.abc import Iterable
from typing import Any

import pytest

from controller.admission.mutation import hint
from controller.admission.pod import AdmittedPod
from controller.fleet.directory import KnownNode
from controller.fleet.trust import ChangeKind, TrustChange
from controller.kube.node_hints import BURST, MOST_REQUIREMENTS, HintPlan, LabelChange, RequeueQueue
from controller.kube.node_hints import KEPT_NODE_NS as WAKEUP_KEPT_NS
from controller.kube.node_hints import KEPT_REQUIREMENT_NS as KEPT_NS
from controller.placement.keys import RequirementRules
from tests.builders.admitted_pods import admitted, new_pod

# --- Which hint labels nodes should have, and what is changed for that

NONE: frozenset[str] = frozenset()
RULES = RequirementRules()


def requiring(requirement: str, namespace: str = "team-a") -> Any:
    document = new_pod(annotations={"gpuwarden.dev/gpu-selector": f"model={requirement}"})
    document["metadata"]["namespace"] = namespace
    return document


def key(requirement: str) -> str:
    return hint(admitted(requiring(requirement)), RULES).key


def waiting(requirement: str, namespace: str = "team-a") -> AdmittedPod:
    expression: Any = {"key": key(requirement), "operator": "In", "values": ["fits"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    pod = requiring(requirement, namespace)
    pod["spec"]["affinity"] = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}
    }
    return admitted(pod)


def keys(*requirements: str) -> frozenset[str]:
    return frozenset(map(key, requirements))


def node(*requirements: str) -> KnownNode:
    return KnownNode("u", hints=keys(*requirements))


def plan(*requirements: str) -> HintPlan:
    made = HintPlan(RULES)
    made.follow(map(waiting, requirements), 0)
    return made


def everywhere(_pod: AdmittedPod) -> Iterable[str]:
    return ("a", "b")


def nowhere(_pod: AdmittedPod) -> Iterable[str]:
    return ()


def test_nodes_where_the_pod_would_pass_get_its_label() -> None:
    nodes = {"a": node(), "b": node("x"), "c": node()}
    assert plan("x").changes(nodes, everywhere) == [LabelChange("a", keys("x"), NONE)]


def test_what_fits_no_longer_is_taken_away_first() -> None:
    nodes = {"a": node(), "b": node("y"), "c": node("x", "y")}
    assert plan("x").changes(nodes, everywhere) == [
        LabelChange("b", keys("x"), keys("y")),
        LabelChange("c", NONE, keys("x", "y")),
        LabelChange("a", keys("x"), NONE),
    ]


def test_a_node_that_is_not_there_is_left_alone() -> None:
    assert plan("x").changes({}, everywhere) == []


def test_each_requirement_is_judged_by_a_pod_that_has_it() -> None:
    def where(pod: AdmittedPod) -> Iterable[str]:
        affinity = pod.spec.affinity
        assert affinity is not None
        return ("a",) if key("x") in str(affinity) else ("b",)

    nodes = {"a": node(), "b": node()}
    assert plan("x", "y").changes(nodes, where) == [
        LabelChange("a", keys("x"), NONE),
        LabelChange("b", keys("y"), NONE),
    ]


def test_a_requirement_is_followed_for_a_while_after_its_last_pod() -> None:
    made = plan("x")
    made.follow((), KEPT_NS - 1)
    assert made.changes({"a": node()}, everywhere) == [LabelChange("a", keys("x"), NONE)]
    made.follow((), KEPT_NS)
    assert made.changes({"a": node("x")}, everywhere) == [LabelChange("a", NONE, keys("x"))]


def test_pods_that_were_told_of_no_label_do_not_count() -> None:
    made = HintPlan(RULES)
    made.follow([admitted(new_pod())], 0)
    assert len(made) == 0


def test_there_is_room_for_so_many_and_those_that_are_followed_stay() -> None:
    made = plan(*(f"w{number}" for number in range(MOST_REQUIREMENTS)))
    made.follow([waiting("late"), waiting("w0")], KEPT_NS - 1)
    assert len(made) == MOST_REQUIREMENTS
    made.follow([waiting("late")], KEPT_NS)
    made.follow([waiting("late")], KEPT_NS)
    assert len(made) == 2


def test_a_namespace_with_very_many_requirements_leaves_room_for_others() -> None:
    made = plan(*(f"w{number}" for number in range(MOST_REQUIREMENTS)))
    few = [waiting(f"b{number}", "team-b") for number in range(3)]
    many = [waiting(f"w{number}") for number in range(MOST_REQUIREMENTS)]
    for now_ns in range(3):
        made.follow([*many, *few], now_ns)
        (change,) = made.changes({"a": node()}, everywhere)
        assert keys("b0", "b1", "b2") <= change.add
        assert len(change.add) == MOST_REQUIREMENTS


# --- Which nodes are touched, when, and how often

SECOND = 1_000_000_000
HELPS = {
    ChangeKind.FIRST_ACCEPTED,
    ChangeKind.RESTORED,
    ChangeKind.FACTS_CHANGED,
    ChangeKind.GPU_BACK,
}


def queue(*nodes: str, now_ns: int = 0) -> RequeueQueue:
    made = RequeueQueue()
    made.add([TrustChange(node, ChangeKind.RESTORED) for node in nodes], now_ns)
    return made


@pytest.mark.parametrize("kind", ChangeKind)
def test_only_what_may_let_a_pod_through_is_taken(kind: ChangeKind) -> None:
    made = RequeueQueue()
    made.add([TrustChange("n", kind)], 0)
    assert len(made) == (kind in HELPS)


def test_a_node_is_due_until_it_was_touched_and_then_no_more() -> None:
    made = queue("a", "b")
    assert made.due(0, pods_wait=True) == "a"
    assert made.due(0, pods_wait=True) == "a"
    made.done("a")
    assert made.due(0, pods_wait=True) == "b"
    made.done("b")
    assert made.due(0, pods_wait=True) is None


def test_who_comes_again_waits_again() -> None:
    made = queue("a", "b")
    made.add([TrustChange("a", ChangeKind.GPU_BACK)], 1)
    assert made.due(1, pods_wait=True) == "b"


def test_without_a_waiting_pod_a_node_is_remembered_for_a_while() -> None:
    made = queue("a", now_ns=SECOND)
    assert made.due(WAKEUP_KEPT_NS, pods_wait=False) is None
    assert made.due(WAKEUP_KEPT_NS, pods_wait=True) == "a"
    assert made.due(WAKEUP_KEPT_NS + SECOND, pods_wait=False) is None
    assert len(made) == 0


def test_with_a_waiting_pod_nothing_is_forgotten() -> None:
    made = queue("a")
    assert made.due(10 * WAKEUP_KEPT_NS, pods_wait=True) == "a"


def test_touches_are_few_in_a_second() -> None:
    made = queue(*map(str, range(1000)))
    for now_ns, most in ((0, BURST), (SECOND, 10), (1000 * SECOND, BURST)):
        touched = 0
        while (node := made.due(now_ns, pods_wait=True)) is not None:
            made.done(node)
            touched += 1
        assert touched == most


def test_nodes_with_room_are_due_like_those_with_better_evidence() -> None:
    queue = RequeueQueue()
    queue.add_nodes(("n1", "n2"), 0)
    queue.add_nodes(("n1",), 1)
    assert queue.due(2, pods_wait=True) == "n2"
    queue.done("n2")
    assert queue.due(2, pods_wait=True) == "n1"
