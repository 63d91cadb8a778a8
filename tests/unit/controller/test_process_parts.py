"""Small parts of the process: clock guard, supervisor, gauges."""

import asyncio
from dataclasses import dataclass

import pytest

from controller.app import Supervisor
from controller.operations.conditions import ClockAnchor
from controller.recorders.gauges import FleetGauges, count_fleet
from gpuwarden.evidence.model import LostGpu
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

ANCHOR = ClockAnchor(boottime_ns=100 * S, wall_ns=5000 * S, tolerance_ns=30 * S)


@pytest.mark.parametrize(
    ("elapsed", "step", "suspect"),
    [
        (0, 0, False),
        (10, 30, False),
        (10, 31, True),
        (10, -31, True),
        (100_000, 120, False),
        (100_000, 131, True),
        (100_000, -131, True),
    ],
)
def test_a_step_is_suspect_and_drift_is_not(elapsed: int, step: int, suspect: bool) -> None:
    now, wall = (100 + elapsed) * S, (5000 + elapsed + step) * S
    assert ANCHOR.suspect(now, wall) is suspect
    assert ANCHOR.offset_ns(now, wall) == step * S


async def test_a_task_that_fails_or_returns_is_a_fault() -> None:
    faults: list[tuple[str, BaseException | None]] = []
    done = asyncio.Event()

    def fault(name: str, error: BaseException | None) -> None:
        faults.append((name, error))
        if len(faults) == 2:
            done.set()

    async def fails() -> None:
        raise RuntimeError("bug")

    async def returns() -> None:
        return

    supervisor = Supervisor(fault)
    supervisor.watch("fails", fails())
    supervisor.watch("returns", returns())
    await asyncio.wait_for(done.wait(), 5)
    by_name = dict(faults)
    assert isinstance(by_name["fails"], RuntimeError)
    assert by_name["returns"] is None
    await supervisor.stop()


async def test_stopping_is_no_fault_and_waits_for_the_tasks() -> None:
    faults: list[str] = []
    cleaned = asyncio.Event()

    async def serves() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    supervisor = Supervisor(lambda name, _error: faults.append(name))
    supervisor.watch("serves", serves())
    await asyncio.sleep(0)
    await supervisor.stop()
    assert cleaned.is_set()
    assert faults == []


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


@dataclass
class Facts:
    svid_expires_seconds: float
    generation: int
    rebuilds: int
    failures: int


def test_gauges_show_the_present_and_counters_only_what_is_new() -> None:
    instruments = Instruments(Process.CONTROLLER, "0")
    gauges = FleetGauges(instruments)
    for facts in (
        Facts(0.0, 0, 0, 0),
        Facts(60.0, 1, 1, 2),
        Facts(90.0, 3, 2, 2),
        Facts(80.0, 3, 2, 3),
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
