"""Where there is room again, whom that wakes, and how often."""

import pytest

from controller.binding.waking import Chosen, Room
from controller.fleet.trust import ChangeKind, TrustChange
from controller.kube.pods.pod_waker import BURST, KEPT_NS, WAVE_NS, WakeQueue
from controller.kube.pods.pods import is_awake
from controller.ledger.record import PodRef
from tests.builders.admitted_pods import admitted, new_pod

S = 1_000_000_000
HELPS = {
    ChangeKind.FIRST_ACCEPTED,
    ChangeKind.RESTORED,
    ChangeKind.FACTS_CHANGED,
    ChangeKind.GPU_BACK,
}
A, B = PodRef("ns", "a", "uid-a"), PodRef("ns", "b", "uid-b")
NOBODY: frozenset[str] = frozenset()


def room(*nodes: str) -> Room:
    return Room(nodes=frozenset(nodes))


def queue(*nodes: str, now_ns: int = 0) -> WakeQueue:
    made = WakeQueue()
    made.add_nodes(nodes, now_ns)
    return made


@pytest.mark.parametrize("kind", ChangeKind)
def test_only_what_may_let_a_pod_through_is_taken(kind: ChangeKind) -> None:
    made = WakeQueue()
    made.add([TrustChange("n", kind)], 0)
    assert len(made) == (kind in HELPS)


def test_a_node_is_due_until_nobody_else_can_be_placed_there() -> None:
    made = queue("a", "b")
    assert made.due(0, pods_wait=True) == (room("a", "b"), NOBODY)
    made.chose(Chosen(((A, "a"),)), 0)
    assert made.due(S - 1, pods_wait=True) is None
    assert made.due(S, pods_wait=True) == (room("b"), NOBODY)
    made.chose(Chosen(), 2 * S)
    assert len(made) == 1


def test_who_was_woken_and_is_not_placed_gives_way_to_others() -> None:
    made = queue("a")
    made.due(0, pods_wait=True)
    made.chose(Chosen(((A, "a"),)), 0)
    assert made.due(WAVE_NS - 1, pods_wait=True) is None
    assert made.due(WAVE_NS, pods_wait=True) == (room("a"), frozenset({"uid-a"}))
    made.chose(Chosen(((B, "a"),)), WAVE_NS)
    assert made.due(2 * WAVE_NS, pods_wait=True) == (room("a"), frozenset({"uid-a", "uid-b"}))
    made.chose(Chosen(), 2 * WAVE_NS)
    assert len(made) == 0
    made.add_nodes(("a",), 2 * WAVE_NS)
    assert made.due(2 * WAVE_NS, pods_wait=True) == (room("a"), NOBODY)


def test_the_caches_may_be_behind_for_a_moment() -> None:
    made = queue("a")
    made.due(0, pods_wait=True)
    made.chose(Chosen(), 2 * S - 1)
    assert made.due(3 * S - 2, pods_wait=True) is None
    assert made.due(3 * S - 1, pods_wait=True) is not None
    made.chose(Chosen(), 2 * S)
    assert len(made) == 0


def test_what_could_not_be_decided_is_asked_again() -> None:
    made = queue("a")
    made.due(0, pods_wait=True)
    made.chose(Chosen(is_unsure=True), 60 * S)
    assert made.due(61 * S, pods_wait=True) == (room("a"), NOBODY)


def test_namespaces_and_everything_are_asked_about_together() -> None:
    made = queue("a")
    made.add_namespaces(("ns",), 0)
    assert made.due(0, pods_wait=True) == (Room(frozenset({"a"}), frozenset({"ns"})), NOBODY)
    made.add_everything(0)
    found = made.due(0, pods_wait=True)
    assert found == (Room(frozenset({"a"}), frozenset({"ns"}), everywhere=True), NOBODY)
    made.chose(Chosen(((A, "z"),)), 2 * S)
    assert len(made) == 2


def test_without_a_waiting_pod_a_node_is_remembered_for_a_while() -> None:
    made = queue("a", now_ns=S)
    assert made.due(KEPT_NS, pods_wait=False) is None
    assert made.due(KEPT_NS, pods_wait=True) == (room("a"), NOBODY)
    assert made.due(KEPT_NS + S, pods_wait=False) is None
    assert len(made) == 0


def test_so_many_nodes_are_looked_at_together() -> None:
    made = queue(*(f"n{x:03}" for x in range(65)))
    found = made.due(0, pods_wait=True)
    assert found is not None
    assert found[0] == room(*(f"n{x:03}" for x in range(64)))


def test_wakes_are_few_in_a_second() -> None:
    made = queue("a")
    made.due(0, pods_wait=True)
    assert made.take(1_000) == BURST
    assert made.take(1) == 0
    made.due(S, pods_wait=True)
    assert made.take(1_000) == 50
    made.due(1_000 * S, pods_wait=True)
    assert made.take(7) == 7
    assert made.take(1_000) == BURST - 7


AT = "2026-11-28T10:00:00.500000Z"
AT_NS = 1_795_860_000_500_000_000


@pytest.mark.parametrize(
    ("said", "wall_ns", "awake"),
    [
        (f"{AT} other", AT_NS, True),
        (f"{AT} other", AT_NS + 1_499_000_000, True),
        (f"{AT} other", AT_NS + 1_500_000_000, False),
        (f"{AT} other", AT_NS - 1_500_000_000, False),
        (f"{AT} me", AT_NS, False),
        (AT, AT_NS, False),
        ("yesterday other", AT_NS, False),
        ("", AT_NS, False),
    ],
)
def test_whom_another_replica_has_just_woken_is_awake(
    said: str, wall_ns: int, *, awake: bool
) -> None:
    pod = admitted(new_pod(annotations={"requeued.gpuwarden.dev/at": said}))
    assert is_awake(pod, "me", wall_ns) is awake


BORN = "2026-11-28T10:00:00Z"
BORN_NS = 1_795_860_000_000_000_000


@pytest.mark.parametrize(
    ("created", "wall_ns", "awake"),
    [
        (BORN, BORN_NS, True),
        (BORN, BORN_NS + 2_499_000_000, True),
        (BORN, BORN_NS + 2_500_000_000, False),
        (BORN, BORN_NS - 2_500_000_000, False),
        ("yesterday", BORN_NS, False),
        (None, BORN_NS, False),
    ],
)
def test_the_scheduler_still_tries_a_pod_that_was_just_created(
    created: str | None, wall_ns: int, *, awake: bool
) -> None:
    document = new_pod()
    document["metadata"]["creationTimestamp"] = created
    assert is_awake(admitted(document), "me", wall_ns) is awake
