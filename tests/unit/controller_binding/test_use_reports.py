"""What evidence says of use, and what kubelet's silence is worth."""

from dataclasses import replace
from typing import Any

from controller.binding.use import SETTLES_NS, UseReports
from controller.fleet.view import FleetSnapshot
from controller.ledger.release import GivenDevice, UseReport
from controller.policy import NodeMode
from gpuwarden.evidence.model import Allocation, GpuProcess
from tests.builders.fleet_views import NOW_NS, acceptance, fleet, gpu, hash_of, node

GIVEN = Allocation("team-a", "train-0", "main", "nvidia.com/gpu", "GPU-0")


class Told:
    """A node whose evidence a test replaces."""

    def __init__(self, mode: NodeMode) -> None:
        self.mode = mode
        self.fleet: FleetSnapshot = fleet()
        self.reports = UseReports(lambda: self.fleet)

    def say(self, at_ns: int = NOW_NS, **facts: Any) -> UseReport:
        made = replace(acceptance(hash_of("a"), [gpu(0)], issued_ns=at_ns), **facts)
        self.fleet = fleet(node("n", made, mode=self.mode))
        found = self.reports.of("n")
        assert found is not None
        return found


def test_processes_and_devices() -> None:
    found = Told(NodeMode.ENV).say(
        processes=(GpuProcess("GPU-0", 1, "uid-1"), GpuProcess("GPU-0", 2, None)),
        allocations=(GIVEN,),
    )
    assert found == UseReport(
        "boot",
        NOW_NS,
        {"GPU-0": frozenset({"uid-1", None})},
        frozenset({GivenDevice("team-a", "train-0", "GPU-0")}),
    )


def test_what_could_not_be_read() -> None:
    assert Told(NodeMode.ENV).say().users is None
    assert Told(NodeMode.PLUGIN).say().given is None
    assert Told(NodeMode.ENV).say().given == frozenset()


def test_nothing_of_a_node_without_evidence() -> None:
    told = Told(NodeMode.ENV)
    assert told.reports.of("n") is None
    told.fleet = fleet(node("n"))
    assert told.reports.of("n") is None


def test_one_report_per_evidence() -> None:
    told = Told(NodeMode.ENV)
    first = told.say()
    assert told.reports.of("n") is first
    assert told.say(NOW_NS + 1) is not first


def test_a_kubelet_that_names_nothing_may_have_just_started() -> None:
    told = Told(NodeMode.PLUGIN)
    assert told.say(NOW_NS, allocations=(GIVEN,)).given != frozenset()
    assert told.say(NOW_NS + 1, allocations=()).given is None
    assert told.say(NOW_NS + SETTLES_NS, allocations=()).given is None
    assert told.say(NOW_NS + 1 + SETTLES_NS, allocations=()).given == frozenset()
    told.say(NOW_NS + 2 + SETTLES_NS, allocations=(GIVEN,))
    assert told.say(NOW_NS + 3 + SETTLES_NS, allocations=()).given is None


def test_on_an_env_node_kubelet_has_nothing_to_give() -> None:
    assert Told(NodeMode.ENV).say(allocations=()).given == frozenset()


def test_pods() -> None:
    told = Told(NodeMode.ENV)
    assert told.say().pods == frozenset()
    assert told.say(pods=("uid-1",)).pods == frozenset({"uid-1"})
    assert told.say(pods=None, pods_unread=True).pods is None
