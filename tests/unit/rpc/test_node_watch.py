from controller.fleet.view import EMPTY_FLEET
from controller.rpc.fleet import NodeChange, NodeWatch
from gpuwarden.reasons import ReasonCode
from tests.builders.node_views import S, acceptance, fleet_of, node_view, past_refusal


def test_first_look_tells_every_node_sorted() -> None:
    b, a = node_view("b"), node_view("a")
    assert NodeWatch().take_changes(fleet_of(b, a), 0) == [NodeChange("a", a), NodeChange("b", b)]


def test_nothing_changed_tells_nothing() -> None:
    watch, fleet = NodeWatch(), fleet_of(node_view("a"))
    watch.take_changes(fleet, 0)
    assert watch.take_changes(fleet, 99 * S) == []


def test_many_changes_between_two_looks_are_one() -> None:
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


def test_a_forgotten_node_is_told_once() -> None:
    watch = NodeWatch()
    watch.take_changes(fleet_of(node_view("a")), 0)
    assert watch.take_changes(EMPTY_FLEET, 0) == [NodeChange("a", None)]
    assert watch.take_changes(EMPTY_FLEET, 0) == []
