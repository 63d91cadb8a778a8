"""Which devices a pod gets on a node that it passes."""

from collections.abc import Iterable

import pytest

from controller.fleet.view import GpuView
from controller.placement.node_verdict import Judge
from controller.placement.pod import Place
from controller.placement.requirements import Requirements
from controller.placement.selector import parse_selector
from controller.policy import NodeMode
from tests.builders.fleet_views import acceptance, gpu, mig_slice, node
from tests.builders.scenes import scene


def assigned(
    gpus: Iterable[GpuView],
    count: int = 1,
    *,
    busy: tuple[str, ...] = (),
    preferred: tuple[str, ...] = (),
    **wish: object,
) -> list[str]:
    needs = Requirements(guarded=True, count=count, **wish)  # type: ignore[arg-type] # fields by name
    view = node("n", acceptance(gpus=gpus), mode=NodeMode.ENV)
    judge = Judge(needs, scene(view, busy=busy))
    return [device.uuid for device in judge.assigned("n", preferred)]


def island(*indices: int) -> list[GpuView]:
    """GPUs behind one switch."""
    return [gpu(index, peers=[f"switch-{indices[0]}"]) for index in indices]


def test_the_first_free_ones() -> None:
    gpus = [gpu(index) for index in range(4)]
    assert assigned(gpus) == ["GPU-0"]
    assert assigned(gpus, busy=("GPU-0", "GPU-2")) == ["GPU-1"]
    assert assigned(gpus, 2, busy=("GPU-0",)) == ["GPU-1", "GPU-2"]
    assert assigned(gpus, 3, busy=("GPU-0", "GPU-1")) == []


@pytest.mark.parametrize(
    ("count", "busy", "expected"),
    [
        (1, (), ["GPU-8"]),
        (2, (), ["GPU-0", "GPU-1"]),
        (2, ("GPU-1", "GPU-4", "GPU-5"), ["GPU-6", "GPU-7"]),
        (4, (), ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]),
        (5, ("GPU-0",), ["GPU-1", "GPU-4", "GPU-5", "GPU-6", "GPU-7"]),
        (9, (), [f"GPU-{index}" for index in range(9)]),
    ],
)
def test_islands_are_kept_whole(count: int, busy: tuple[str, ...], expected: list[str]) -> None:
    gpus = [*island(0, 1, 2, 3), *island(4, 5, 6, 7), gpu(8)]
    assert assigned(gpus, count, busy=busy) == expected


def test_named_devices_in_the_pod_s_order() -> None:
    gpus = [gpu(index) for index in range(4)]
    assert assigned(gpus, 2, uuids=("GPU-3", "GPU-1")) == ["GPU-3", "GPU-1"]
    assert assigned(gpus, 2, mapped=True, place=Place("n", (2, "GPU-0"))) == ["GPU-2", "GPU-0"]
    assert assigned(gpus, 1, mapped=True, place=Place("n", (7,))) == []


def test_a_slice_before_a_whole_gpu() -> None:
    split = gpu(1, mig=True, mig_devices=[mig_slice("MIG-b", "2g.20gb", 19968), mig_slice("MIG-a")])
    assert assigned([gpu(0), split]) == ["MIG-a"]
    assert assigned([gpu(0), split], selector=parse_selector("mig=false")) == ["GPU-0"]


def test_what_was_asked_for_before() -> None:
    gpus = [gpu(index) for index in range(4)]
    assert assigned(gpus, preferred=("GPU-2",)) == ["GPU-2"]
    assert assigned(gpus, busy=("GPU-2",), preferred=("GPU-2",)) == ["GPU-0"]
    assert assigned(gpus, 2, preferred=("GPU-2",)) == ["GPU-0", "GPU-1"]
    assert assigned(gpus, 2, preferred=("GPU-2", "GPU-3")) == ["GPU-2", "GPU-3"]
    assert assigned(gpus, 1, preferred=("GPU-2", "GPU-3")) == ["GPU-0"]


def test_nothing_on_a_node_without_evidence() -> None:
    needs = Requirements(guarded=True, count=1)
    assert Judge(needs, scene(node("n"))).assigned("n") == ()
    assert Judge(needs, scene()).assigned("n") == ()
