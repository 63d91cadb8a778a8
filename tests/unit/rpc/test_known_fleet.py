from dataclasses import dataclass

from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.fleet.view import NodeState
from controller.policy import DEFAULT_POLICY, NodeMode, NodePool, Policy
from controller.rpc.fleet import KnownFleet
from tests.builders.node_views import HASH_A, fleet_of, node_view
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


def test_it_is_made_anew_only_when_a_source_changed_and_keeps_what_says_the_same() -> None:
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
