"""When nothing can be read, and for how long that may go on."""

from dataclasses import replace

import msgspec
import pytest

from agent.gpu.reading import InventoryReading, NvmlState
from agent.gpu.unreadable import LONGEST_NS, UnreadableWatch, why_unreadable
from gpuwarden.evidence.model import FailedRead, Inventory, LostGpu
from gpuwarden.moment import NS_PER_S
from tests.builders.attesting import reading
from tests.builders.inventory import HOST, gpu, gpu_uuid, lost_gpu


def no_gpus(*failed: FailedRead, lost: tuple[LostGpu, ...] = ()) -> InventoryReading:
    return replace(reading(1, failed), inventory=Inventory(HOST, (), lost))


GONE = replace(
    no_gpus(), state=NvmlState.UNAVAILABLE, detail="nvmlInitWithFlags: LIBRARY_NOT_FOUND"
)


def lost(*errors: str) -> InventoryReading:
    """No GPU answers, each with its own error."""
    cards = (msgspec.structs.replace(lost_gpu(n), error=error) for n, error in enumerate(errors))
    return no_gpus(lost=tuple(cards))


def unread(*facts: str, gpus: int = 1) -> InventoryReading:
    """Facts of the first GPU that were not read."""
    return reading(gpus, tuple(FailedRead(x, gpu_uuid(1), "nvmlCall", "UNKNOWN") for x in facts))


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (GONE, "nvmlInitWithFlags: LIBRARY_NOT_FOUND"),
        (lost("UNKNOWN", "UNKNOWN"), f"{gpu_uuid(1)}: UNKNOWN"),
        (lost("GPU_IS_LOST", "NO_PERMISSION"), f"{gpu_uuid(2)}: NO_PERMISSION"),
        (unread("serial", "vbios"), "nvmlCall: UNKNOWN"),
        (
            no_gpus(FailedRead("gpus", None, "nvmlDeviceGetCount", "UNKNOWN")),
            "nvmlDeviceGetCount: UNKNOWN",
        ),
        (
            no_gpus(FailedRead("uuid", gpu(0).pci_bus_id, "nvmlDeviceGetUUID", "UNKNOWN")),
            "nvmlDeviceGetUUID: UNKNOWN",
        ),
    ],
)
def test_nothing_can_be_read(found: InventoryReading, why: str) -> None:
    assert why_unreadable(found) == why


@pytest.mark.parametrize(
    "found",
    [
        reading(2),
        no_gpus(),
        lost("GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND"),
        no_gpus(FailedRead("pciBusId", None, "nvmlDeviceGetHandleByIndex", "GPU_IS_LOST")),
        unread("serial", gpus=2),
        unread("product"),
        reading(1, (FailedRead("driver", None, "nvmlSystemGetDriverVersion", "UNKNOWN"),)),
    ],
    ids=[
        "all",
        "no GPUs",
        "lost cards",
        "lost card without a name",
        "one bad card",
        "auxiliary",
        "host",
    ],
)
def test_something_was_read_or_no_container_would_read_more(found: InventoryReading) -> None:
    assert why_unreadable(found) == ""


def test_it_is_overdue_only_while_no_reading_succeeds() -> None:
    watch = UnreadableWatch(180.0, 0)
    assert watch.overdue(10**18) == ""
    watch.saw(GONE, 0)
    watch.saw(GONE, 100 * NS_PER_S)
    assert watch.overdue(180 * NS_PER_S - 1) == ""
    assert watch.overdue(180 * NS_PER_S) == (
        "NVML has read nothing for 180 s: nvmlInitWithFlags: LIBRARY_NOT_FOUND"
    )
    watch.saw(reading(1), 181 * NS_PER_S)
    assert watch.overdue(10**18) == ""
    watch.saw(GONE, 200 * NS_PER_S)
    assert watch.overdue(379 * NS_PER_S) == ""


@pytest.mark.parametrize(
    ("after_s", "ends", "limit_s"),
    [(180, 0, 180), (180, 1, 360), (180, 4, 2880), (180, 5, 3600), (180, 10**9, 3600)],
)
def test_each_end_in_vain_puts_the_next_one_off(after_s: int, ends: int, limit_s: int) -> None:
    watch = UnreadableWatch(after_s, ends)
    assert watch.limit_ns == limit_s * NS_PER_S
    watch.saw(GONE, 0)
    assert watch.ends == ends
    watch.saw(reading(1), 1)
    assert (watch.ends, watch.limit_ns) == (0, after_s * NS_PER_S)


def test_a_configured_time_is_never_cut() -> None:
    assert UnreadableWatch(7200.0, 3).limit_ns == 2 * LONGEST_NS
