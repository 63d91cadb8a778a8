"""Which nodes are touched, when, and how often."""

import pytest

from controller.fleet.trust import ChangeKind, TrustChange
from controller.kube.node_hints import BURST, WakeupQueue
from controller.kube.node_hints import KEPT_NODE_NS as KEPT_NS

SECOND = 1_000_000_000
HELPS = {
    ChangeKind.FIRST_ACCEPTED,
    ChangeKind.RESTORED,
    ChangeKind.FACTS_CHANGED,
    ChangeKind.GPU_BACK,
}


def queue(*nodes: str, now_ns: int = 0) -> WakeupQueue:
    made = WakeupQueue()
    made.add([TrustChange(node, ChangeKind.RESTORED) for node in nodes], now_ns)
    return made


@pytest.mark.parametrize("kind", ChangeKind)
def test_only_what_may_let_a_pod_through_is_taken(kind: ChangeKind) -> None:
    made = WakeupQueue()
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


def test_who_comes_again_waits_anew() -> None:
    made = queue("a", "b")
    made.add([TrustChange("a", ChangeKind.GPU_BACK)], 1)
    assert made.due(1, pods_wait=True) == "b"


def test_without_a_waiting_pod_a_node_is_remembered_for_a_while() -> None:
    made = queue("a", now_ns=SECOND)
    assert made.due(KEPT_NS, pods_wait=False) is None
    assert made.due(KEPT_NS, pods_wait=True) == "a"
    assert made.due(KEPT_NS + SECOND, pods_wait=False) is None
    assert len(made) == 0


def test_with_a_waiting_pod_nothing_is_forgotten() -> None:
    made = queue("a")
    assert made.due(10 * KEPT_NS, pods_wait=True) == "a"


def test_touches_are_few_in_a_second() -> None:
    made = queue(*map(str, range(1000)))
    for now_ns, most in ((0, BURST), (SECOND, 10), (1000 * SECOND, BURST)):
        touched = 0
        while (node := made.due(now_ns, pods_wait=True)) is not None:
            made.done(node)
            touched += 1
        assert touched == most


def test_nodes_with_room_are_due_like_those_with_better_evidence() -> None:
    queue = WakeupQueue()
    queue.add_nodes(("n1", "n2"), 0)
    queue.add_nodes(("n1",), 1)
    assert queue.due(2, pods_wait=True) == "n2"
    queue.done("n2")
    assert queue.due(2, pods_wait=True) == "n1"
