"""Which nodes people see and pods are judged by: not those that were deleted from the cluster."""

from collections.abc import Iterable

from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.fleet.present import PresentFleet
from controller.fleet.view import FleetSnapshot
from tests.builders.node_views import HASH_A, HASH_B, S, acceptance, fleet_of, node_view
from tests.fakes.clock import FakeClock
from tests.fakes.fleet import FakeFleet


class Around:
    """Implements NodeDirectory."""

    def __init__(self, fleet: FleetSnapshot, *names: str) -> None:
        self.clock, self.fleet, self.connected = FakeClock(), FakeFleet(fleet), {"nobody"}
        self.fresh_ns = 60 * S
        self.list(names)
        self.present = PresentFleet(
            self.fleet, self, lambda x: x in self.connected, self.clock.boottime_ns
        )

    def list(self, names: Iterable[str]) -> None:
        self.nodes = {name: KnownNode() for name in names}

    def snapshot(self) -> DirectorySnapshot:
        return DirectorySnapshot(self.nodes, self.clock.boottime_ns() + self.fresh_ns)

    def warning(self) -> str | None:
        return None

    def names(self) -> set[str]:
        return set(self.present.snapshot().nodes)


def _two() -> FleetSnapshot:
    return fleet_of(node_view("a"), node_view("b", acceptance=acceptance(attestation_hash=HASH_B)))


def test_a_node_that_was_deleted_from_the_cluster_is_not_here() -> None:
    """Autoscalers delete nodes all day."""
    around = Around(_two(), "a", "new")
    found = around.present.snapshot()
    assert dict(found.nodes) == {"a": around.fleet.current.nodes["a"]}
    assert found.nodes_by_hash == {HASH_A: {"a"}}
    assert set(around.fleet.current.nodes) == {"a", "b"}
    around.fleet.set(fleet_of(node_view("a"), node_view("b"), node_view("c")))
    assert around.present.snapshot().nodes_by_hash == {HASH_A: {"a"}}


def test_a_node_with_a_stream_is_here_until_the_stream_ends() -> None:
    around = Around(_two(), "a")
    around.connected.add("b")
    assert around.present.snapshot() is around.fleet.current
    around.connected.remove("b")
    assert around.names() == {"a"}


def test_while_the_directory_is_not_read_or_too_old_nothing_is_left_out() -> None:
    around = Around(_two())
    around.fresh_ns = 0
    assert around.present.snapshot() is around.fleet.current
    around.fresh_ns = 1
    assert around.names() == set()
    around.fresh_ns = 0
    assert around.names() == {"a", "b"}


def test_a_node_is_here_again_once_it_is_listed_again() -> None:
    around = Around(_two(), "a")
    assert around.names() == {"a"}
    around.list(("a", "b"))
    assert around.present.snapshot() is around.fleet.current
    around.list(("b",))
    assert around.names() == {"b"}


def test_it_is_the_same_object_until_something_changes() -> None:
    around = Around(_two(), "a")
    first = around.present.snapshot()
    assert around.present.snapshot() is first
    around.list(("a", "new"))
    assert around.present.snapshot() is first
    around.fleet.set(fleet_of(node_view("a")))
    assert around.present.snapshot() is around.fleet.current


def test_changes_are_those_of_the_verified_fleet() -> None:
    around, told = Around(_two()), list[bool]()
    unsubscribe = around.present.subscribe(lambda: told.append(True))
    around.fleet.set(_two())
    unsubscribe()
    around.fleet.set(_two())
    assert told == [True]
