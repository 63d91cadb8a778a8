"""The plan of a simulated fleet: what was asked for, in time order, the same every time."""

from collections import Counter
from itertools import pairwise

from sandbox.fleet.hardware import fleet_hardware
from sandbox.fleet.plan import Kind, Rates, plan
from sandbox.fleet.tally import Tally, percentile, total

RATES = Rates(drop=0.5, restart=0.25, rotate=1.0, upgrade=0.4)


def test_equal_seeds_give_equal_plans_and_fleets() -> None:
    assert plan(3, 100, 60, RATES) == plan(3, 100, 60, RATES)
    assert plan(3, 100, 60, RATES) != plan(4, 100, 60, RATES)
    assert fleet_hardware(3, 40) == fleet_hardware(3, 40)
    assert fleet_hardware(3, 40) != fleet_hardware(4, 40)


def test_each_kind_happens_as_often_as_its_rate_says() -> None:
    happenings = plan(1, 100, 120, RATES)
    assert Counter(one.kind for one in happenings) == {
        Kind.DROP: 100,
        Kind.RESTART: 50,
        Kind.ROTATE: 200,
        Kind.UPGRADE: 40,
    }
    assert all(0 <= one.at_s <= 120 and 0 <= one.node < 100 for one in happenings)
    assert list(happenings) == sorted(happenings, key=lambda one: one.at_s)


def test_an_upgrade_rolls_over_each_chosen_node_once() -> None:
    upgrades = [x for x in plan(1, 100, 60, Rates(upgrade=2.0)) if x.kind is Kind.UPGRADE]
    assert sorted(one.node for one in upgrades) == list(range(100))
    gaps = {round(b.at_s - a.at_s, 6) for a, b in pairwise(upgrades)}
    assert gaps == {0.6}


def test_no_rates_no_happenings() -> None:
    assert plan(1, 100, 60, Rates()) == ()


def test_nodes_differ_in_hardware_and_share_no_uuid() -> None:
    fleet = fleet_hardware(1, 60)
    uuids = [gpu.uuid for node in fleet for gpu in node.scenario.gpus]
    assert len(set(uuids)) == len(uuids)
    assert len({node.scenario.gpus[0].name for node in fleet}) == 3
    assert len({node.host.boot_id for node in fleet}) == 60


def test_tallies_add_up_and_latencies_move_once() -> None:
    one, two = Tally(streams=2), Tally(streams=3)
    one.judged("ACCEPTED", 1.0)
    two.judged("NODE_DENIED", 3.0)
    both = total([one.take(), two.take()])
    assert (both.streams, both.accepted, both.refused) == (5, 1, {"NODE_DENIED": 1})
    assert both.latencies_ms == [1.0, 3.0]
    assert one.take().latencies_ms == []


def test_percentiles() -> None:
    assert percentile([], 0.5) is None
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
