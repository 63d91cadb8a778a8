"""Kubelet's allocations and GPU processes: their form, and what they contradict."""

from typing import Any

import msgspec
import pytest

from gpuwarden.evidence.model import Allocation, Evidence, FailedRead, GpuProcess
from gpuwarden.evidence.use_rules import (
    contradictions,
    device_uuid,
    is_allocation,
    is_process,
)
from tests.builders.evidence import Scene
from tests.builders.inventory import gpu, gpu_uuid, inventory, lost_gpu, mig_device, mig_uuid

POD_UID = "4f1f6b1c-6c6f-4d0e-9a34-5b7f0c2d9e11"
STATIC = "0123456789abcdef0123456789abcdef"
SUBDOMAIN = ".".join(["a" * 63] * 3 + ["b" * 61])


def allocation(number: int = 1, /, **changes: Any) -> Allocation:
    one = Allocation(
        namespace="team-a",
        pod=f"job-{number}",
        container="main",
        resource="nvidia.com/gpu",
        device=gpu_uuid(number),
    )
    return msgspec.structs.replace(one, **changes)


def process(**changes: Any) -> GpuProcess:
    return msgspec.structs.replace(GpuProcess(gpu_uuid(1), 4711, POD_UID), **changes)


def evidence(**fields: Any) -> Evidence:
    scene = Scene(evidence=fields)
    stream = scene.opened()
    document = scene.document(stream, scene.challenge(stream))
    assert isinstance(document, Evidence)
    return document


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"namespace": "a", "pod": "b", "container": "c", "resource": "d", "device": "e"},
        {"namespace": "a" * 63, "container": "c" * 63, "pod": SUBDOMAIN},
        {"pod": "a.b-c.d"},
        {"resource": "r" * 317, "device": "d" * 317},
        {"resource": "gpu.nvidia.com", "device": "node-1/gpu-0"},
    ],
)
def test_names_as_kubernetes_has_them(fields: dict[str, str]) -> None:
    assert is_allocation(allocation(**fields))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("namespace", ""),
        ("namespace", "a" * 64),
        ("namespace", "a-"),
        ("pod", "Job"),
        ("pod", f"{SUBDOMAIN}b"),
        ("pod", "x."),
        ("container", "a.b"),
        ("resource", "a b"),
        ("resource", "r" * 318),
        ("device", "\x1b[2J"),
        ("device", ""),
    ],
)
def test_a_name_of_another_form_is_none(field: str, value: str) -> None:
    assert not is_allocation(allocation(2, **{field: value}))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"gpu": mig_uuid(1)},
        {"pid": 1},
        {"pid": 2**22},
        {"pod_uid": None},
        {"pod_uid": STATIC},
    ],
)
def test_processes_as_they_are(fields: dict[str, Any]) -> None:
    assert is_process(process(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"gpu": "GPU-1"},
        {"pid": -1},
        {"pid": 0},
        {"pid": 2**22 + 1},
        {"pod_uid": ""},
        {"pod_uid": POD_UID.upper()},
        {"pod_uid": f"{STATIC}0"},
    ],
)
def test_a_process_of_another_form_is_none(fields: dict[str, Any]) -> None:
    assert not is_process(process(**fields))


@pytest.mark.parametrize(
    ("device", "uuid"),
    [
        (gpu_uuid(1), gpu_uuid(1)),
        (f"{gpu_uuid(1)}::0", gpu_uuid(1)),
        (f"{mig_uuid(7)}::123456", mig_uuid(7)),
        (mig_uuid(7), mig_uuid(7)),
        (f"{gpu_uuid(1)}::1234567", None),
        (f"{gpu_uuid(1)}::", None),
        (f"{gpu_uuid(1)}-3", None),
        (f"{gpu_uuid(1)}::1::2", None),
        (gpu_uuid(1).lower(), None),
        ("node-1/gpu-0", None),
        ("0", None),
    ],
)
def test_the_hardware_that_a_device_id_names(device: str, uuid: str | None) -> None:
    assert device_uuid(device) == uuid


def test_nothing_contradicts_what_is_there() -> None:
    card = gpu(0, mig_devices=(mig_device(1),))
    devices = (gpu_uuid(1), mig_uuid(1), gpu_uuid(2), f"{gpu_uuid(1)}::1", "other", gpu_uuid(9))
    allocations = tuple(allocation(n, device=x) for n, x in enumerate(devices))
    given = evidence(inventory=inventory(card, lost=(lost_gpu(1),)), allocations=allocations)
    assert contradictions(given, frozenset({gpu_uuid(9)})) == ()
    assert contradictions(evidence(allocations=None)) == ()


def test_devices_that_the_node_does_not_have_are_said() -> None:
    devices = (gpu_uuid(5), f"{gpu_uuid(6)}::2", mig_uuid(7))
    allocations = tuple(allocation(n, device=x) for n, x in enumerate(devices))
    assert contradictions(evidence(allocations=allocations)) == (
        (
            f"allocated but not here: {gpu_uuid(5)} of team-a/job-0, "
            f"{gpu_uuid(6)}::2 of team-a/job-1, {mig_uuid(7)} of team-a/job-2"
        ),
    )


def test_mig_devices_that_could_not_be_listed_may_well_be_here() -> None:
    devices = (mig_uuid(7), gpu_uuid(5))
    allocations = tuple(allocation(n, device=x) for n, x in enumerate(devices))
    read = FailedRead(fact="migDevices", gpu=gpu_uuid(1), call="c", error="UNKNOWN")
    assert contradictions(evidence(allocations=allocations, failed_reads=(read,))) == (
        f"allocated but not here: {gpu_uuid(5)} of team-a/job-1",
    )


def test_a_device_of_several_containers_is_said() -> None:
    again = allocation(2, device=gpu_uuid(1))
    other = allocation(3, device=gpu_uuid(1), resource="nvidia.com/gpu.shared")
    assert contradictions(evidence(allocations=(allocation(), again, other))) == (
        f"allocated to several containers: {gpu_uuid(1)}",
    )


@pytest.mark.parametrize(("count", "end"), [(4, "job-3"), (5, "job-3 and 1 more")])
def test_few_of_many_are_listed(count: int, end: str) -> None:
    allocations = tuple(allocation(n, device=gpu_uuid(50 + n)) for n in range(count))
    (line,) = contradictions(evidence(allocations=allocations))
    assert line.endswith(f"team-a/{end}")
    assert line.count(" of ") == 4
