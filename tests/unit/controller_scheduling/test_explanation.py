"""Why a pod waits: the totals of /filter over every node that is known, with examples."""

from dataclasses import replace

from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.placement.node_verdict import Promise
from controller.placement.snapshot import InsecureStaticHashes
from controller.placement.texts import Guarantee, Limit
from controller.placement.verbs import (
    EXAMPLES,
    MAX_REASONS,
    explain_bound,
    explain_waiting,
    filter_nodes,
)
from controller.policy import NodePool, Policy
from gpuwarden.reasons import ReasonCode
from tests.builders.fleet_views import healthy, node
from tests.builders.pods import requirements, wishes
from tests.builders.scenes import scene

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
    assert first.detail == outcome.reasons["gpu-00"].detail


def test_texts_are_there_beyond_what_filter_answers_with() -> None:
    many = [node(f"a-{n:04}") for n in range(MAX_REASONS)]
    found = explain_waiting(BIG, scene(*many, healthy("z")), NOBODY)
    assert [x.code for x in found.rejections] == [
        ReasonCode.NODE_NO_EVIDENCE,
        ReasonCode.GPU_NO_MATCH,
    ]
    assert all(x.detail for x in found.rejections)


def test_what_the_gate_has_just_denied_counts_as_rejected() -> None:
    here = scene(healthy("gpu-1"), healthy("gpu-2"))
    found = explain_waiting(NEEDS, here, frozenset({"gpu-2"}))
    assert (found.passing, found.examples) == (1, ("gpu-1",))
    assert [(x.code, x.nodes) for x in found.rejections] == [
        (ReasonCode.GATE_DENIED_RECENTLY, ("gpu-2",))
    ]


def test_a_pod_that_no_node_can_help() -> None:
    found = explain_waiting(wishes({"gpuwarden.dev/min-level": "L9"}), scene(healthy("a")), NOBODY)
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
    assert explain_bound(wishes({"gpuwarden.dev/min-level": "L9"}), here, "a-1").promise is None


def test_nodes_with_static_hashes_alone_are_known_too() -> None:
    static = InsecureStaticHashes({"old-1": "sha256:x"})
    found = explain_waiting(NEEDS, scene(static=static), NOBODY)
    assert [x.nodes for x in found.rejections] == [("old-1",)]
