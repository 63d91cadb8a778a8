"""Gauges of the fleet and of our SVID."""

from controller.recorders.gauges import FleetGauges, count_fleet
from gpuwarden.evidence.model import LostGpu
from gpuwarden.identity.svid_watcher import SvidFacts
from gpuwarden.reasons import ReasonCode
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.node_views import (
    HASH_B,
    S,
    acceptance,
    fleet_of,
    gpu_view,
    node_view,
    past_refusal,
)


def test_the_fleet_is_counted_by_state() -> None:
    lost = LostGpu(uuid="x", index=1, pci_bus_id="0", error="GPU_IS_LOST")
    gpus = (gpu_view(0), gpu_view(1, lost=lost), gpu_view(2, unhealthy="xid 79"))
    fleet = fleet_of(
        node_view("a", acceptance=acceptance(gpus=gpus)),
        node_view("b", blocked=past_refusal(ReasonCode.SIG_INVALID)),
        node_view("c", acceptance=acceptance(fresh_until_ns=1, attestation_hash=HASH_B)),
        node_view("d", acceptance=None),
    )
    counts = count_fleet(fleet, 50 * S)
    assert dict(counts.nodes) == {
        "unknown": 1,
        "refused": 0,
        "eligible": 1,
        "stale": 1,
        "revoked": 1,
        "quarantined": 0,
    }
    assert dict(counts.gpus) == {"usable": 5, "lost": 1, "unhealthy": 1}
    assert counts.classes == 2


def test_gauges_show_the_present_and_counters_only_what_is_new() -> None:
    instruments = Instruments(Process.CONTROLLER, "0")
    gauges = FleetGauges(instruments)
    for facts in (
        SvidFacts(0.0, 0, 0, 0, watching=True),
        SvidFacts(60.0, 1, 1, 2, watching=True),
        SvidFacts(90.0, 3, 2, 2, watching=True),
        SvidFacts(80.0, 3, 2, 3, watching=True),
    ):
        gauges.set_svid(facts)
    value = instruments.registry.get_sample_value
    assert value("gpuwarden_svid_expires_seconds") == 80
    assert value("gpuwarden_svid_updates_total", {"result": "taken"}) == 3
    assert value("gpuwarden_svid_updates_total", {"result": "failed"}) == 3
    assert value("gpuwarden_svid_source_restarts_total") == 1
    gauges.set_fleet(count_fleet(fleet_of(node_view("a")), 50 * S))
    gauges.set_fleet(count_fleet(fleet_of(), 50 * S))
    assert value("gpuwarden_nodes", {"state": "eligible"}) == 0
    assert value("gpuwarden_classes") == 0
