from dataclasses import dataclass

from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.fleet.view import EMPTY_FLEET, NodeState
from controller.policy import DEFAULT_POLICY, NodeMode, NodePool, Policy
from controller.rpc.fleet import KnownFleet, NodeChange, NodeWatch
from gpuwarden.reasons import ReasonCode
from tests.builders.node_views import HASH_A, S, acceptance, fleet_of, node_view, past_refusal
from tests.fakes.fleet import FakeFleet


@dataclass
class Directory:
    current: DirectorySnapshot

    def snapshot(self) -> DirectorySnapshot:
        return self.current

    def warning(self) -> str | None:
        return None


def _names(*names: str) -> DirectorySnapshot:
    return DirectorySnapshot({name: KnownNode() for name in names})


def test_nodes_of_the_directory_that_nothing_was_heard_of_are_unknown_and_no_more() -> None:
    fleet, directory = FakeFleet(), Directory(_names("a", "b"))
    fleet.set(fleet_of(node_view("a"), node_view("left-the-directory")))
    known = KnownFleet(fleet, directory, lambda: DEFAULT_POLICY).snapshot()
    assert set(known.nodes) == {"a", "b", "left-the-directory"}
    assert known.nodes["b"].state(0) is NodeState.UNKNOWN
    assert known.nodes["a"] is fleet.current.nodes["a"]
    assert known.nodes_by_hash[HASH_A] == {"a", "left-the-directory"}


def test_it_is_made_again_only_when_a_source_changed_and_keeps_what_says_the_same() -> None:
    fleet, directory = FakeFleet(), Directory(_names("a", "b"))
    policies = [DEFAULT_POLICY]
    known = KnownFleet(fleet, directory, lambda: policies[0])
    first = known.snapshot()
    assert known.snapshot() is first
    fleet.set(fleet_of(node_view("a")))
    second = known.snapshot()
    assert second is not first
    assert second.nodes["b"] is first.nodes["b"]
    policies[0] = Policy(pools=(NodePool("b", NodeMode.PER_GPU),))
    third = known.snapshot()
    assert third.nodes["b"].mode is NodeMode.PER_GPU
    directory.current = _names("a")
    assert set(known.snapshot().nodes) == {"a"}


def test_changes_are_those_of_the_verified_fleet() -> None:
    fleet = FakeFleet()
    told: list[bool] = []
    known = KnownFleet(fleet, Directory(_names()), lambda: DEFAULT_POLICY)
    unsubscribe = known.subscribe(lambda: told.append(True))
    fleet.set(fleet_of())
    unsubscribe()
    fleet.set(fleet_of())
    assert told == [True]


def test_first_look_tells_every_node_sorted() -> None:
    b, a = node_view("b"), node_view("a")
    assert NodeWatch().take_changes(fleet_of(b, a), 0) == [NodeChange("a", a), NodeChange("b", b)]


def test_nothing_changed_tells_nothing() -> None:
    watch, fleet = NodeWatch(), fleet_of(node_view("a"))
    watch.take_changes(fleet, 0)
    assert watch.take_changes(fleet, 99 * S) == []


def test_many_changes_between_two_reads_are_one() -> None:
    watch = NodeWatch()
    watch.take_changes(fleet_of(node_view("a"), node_view("b")), 0)
    kept = watch.take_changes(EMPTY_FLEET, 0)
    assert [change.name for change in kept] == ["a", "b"]
    new = node_view("a", blocked=past_refusal(ReasonCode.SIG_INVALID))
    watch.take_changes(fleet_of(node_view("a")), 0)
    assert watch.take_changes(fleet_of(new), 0) == [NodeChange("a", new)]


def test_a_lease_that_runs_out_is_a_change_without_any_event() -> None:
    watch = NodeWatch()
    early = node_view("a", acceptance=acceptance(fresh_until_ns=60 * S))
    fleet = fleet_of(early, node_view("b"), node_view("c", acceptance=None))
    watch.take_changes(fleet, 0)
    assert watch.next_ns() == 60 * S
    assert watch.take_changes(fleet, 60 * S) == [NodeChange("a", early)]
    assert watch.next_ns() == 100 * S
    watch.take_changes(fleet, 100 * S)
    assert watch.next_ns() is None


def test_a_forgotten_node_is_reported_once() -> None:
    watch = NodeWatch()
    watch.take_changes(fleet_of(node_view("a")), 0)
    assert watch.take_changes(EMPTY_FLEET, 0) == [NodeChange("a", None)]
    assert watch.take_changes(EMPTY_FLEET, 0) == []
