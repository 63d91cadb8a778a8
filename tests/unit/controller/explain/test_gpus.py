"""Which GPUs are free, and who has the others."""

from collections.abc import Iterable

import pytest

from controller.explain.gpus import add_states, holders_in, nobody
from controller.ledger.record import PodRef
from controller.ledger.store import Entry, LedgerSnapshot
from gpuwarden.wire.v1 import fleet_pb2 as pb
from tests.builders.fleet_messages import gpu_message, node_message
from tests.builders.inventory import gpu_uuid, mig_uuid
from tests.builders.ledger import holder, record

A = gpu_uuid(1)
PROCESS = pb.GpuUse(processes=[pb.GpuProcess(gpu=A, pid=1)])
ALLOCATION = pb.GpuUse(allocations=[pb.Allocation(device=f"{A}::1")])


def held(uuid: str) -> Iterable[str]:
    return {"team-b/x", "team-a/y"} if uuid == A else ()


@pytest.mark.parametrize(
    ("health", "state", "use", "of", "expected"),
    [
        ("ok", "eligible", pb.GpuUse(), nobody, "free"),
        ("ok", "eligible", PROCESS, nobody, "used"),
        ("ok", "eligible", ALLOCATION, nobody, "used"),
        ("ok", "eligible", PROCESS, held, "reserved"),
        ("ok", "eligible", pb.GpuUse(), None, "unknown"),
        ("ok", "eligible", PROCESS, None, "used"),
        ("ok", "stale", PROCESS, held, "unavailable"),
        ("lost", "stale", PROCESS, held, "lost"),
        ("unhealthy", "eligible", PROCESS, held, "unhealthy"),
    ],
)
def test_state_of_a_gpu(health: str, state: str, use: pb.GpuUse, of: object, expected: str) -> None:
    first, second = gpu_message(0, health=health), gpu_message(1)
    add_states([first, second], node_message(state=state), use, of)  # type: ignore[arg-type]
    assert first.state == expected
    assert list(first.reserved_by) == (["team-a/y", "team-b/x"] if of is held else [])
    free = "unknown" if of is None else "free"
    assert second.state == (free if state == "eligible" else "unavailable")


@pytest.mark.parametrize(
    ("health", "state", "expected"),
    [("ok", "eligible", "split"), ("lost", "eligible", "lost"), ("ok", "stale", "unavailable")],
)
def test_a_split_gpu_is_not_free_its_devices_are(health: str, state: str, expected: str) -> None:
    migs = [pb.MigDevice(uuid=mig_uuid(1)), pb.MigDevice(uuid=mig_uuid(2))]
    gpu = gpu_message(0, mig_devices=migs, health=health)
    use = pb.GpuUse(processes=[pb.GpuProcess(gpu=mig_uuid(2), pid=1)])
    add_states([gpu], node_message(state=state), use, nobody)
    assert gpu.state == expected
    if expected == "split":
        assert [x.state for x in gpu.mig_devices] == ["free", "used"]


def test_a_split_gpu_of_which_reservations_are_not_known_is_not_called_split() -> None:
    gpu = gpu_message(0, mig_devices=[pb.MigDevice(uuid=mig_uuid(1))])
    add_states([gpu], node_message(), pb.GpuUse(), None)
    assert (gpu.state, gpu.mig_devices[0].state) == ("unknown", "unknown")


def test_holders_come_from_the_ledger_whatever_the_case_of_the_uuid() -> None:
    unborn = PodRef("team-a", None, None)
    ledger = LedgerSnapshot.of(
        [Entry(record(holder(pod=PodRef("team-a", "p", "u")), holder(pod=unborn)), "1")]
    )
    of = holders_in(ledger)
    assert of("gpu-A") == {"team-a/p", "team-a/-"}
    assert of("GPU-b") == set()
