from collections.abc import Iterable
from typing import Any

from controller.admission.mutation import hint
from controller.admission.pod import AdmittedPod
from controller.fleet.directory import KnownNode
from controller.kube.nodes.node_hints import KEPT_REQUIREMENT_NS as KEPT_NS
from controller.kube.nodes.node_hints import MOST_REQUIREMENTS, HintPlan, LabelChange
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
