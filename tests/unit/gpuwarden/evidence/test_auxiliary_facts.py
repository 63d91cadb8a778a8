"""Garbage in a fact that trust does not need costs that fact."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gpuwarden.evidence.auxiliary_facts import (
    Dropped,
    without_malformed_facts,
    without_malformed_use,
)
from gpuwarden.evidence.inventory_rules import inventory_findings
from gpuwarden.evidence.model import Allocation, Evidence, Fabric, GpuProcess, NvLink
from gpuwarden.evidence.strict_json import MAX_INT, quote
from tests.builders.evidence import Scene
from tests.builders.inventory import gpu, gpu_uuid, host, inventory, mig_device, mig_uuid

POD_UID = "4f1f6b1c-6c6f-4d0e-9a34-5b7f0c2d9e11"
HELD = Allocation("team-a", "job", "main", "nvidia.com/gpu", gpu_uuid(1))
UNNAMED = Allocation("team-a", "Job!", "main", "nvidia.com/gpu", gpu_uuid(1))
USED = GpuProcess(gpu_uuid(1), 4711, POD_UID)


def evidence(**fields: Any) -> Evidence:
    scene = Scene(evidence=fields)
    stream = scene.opened()
    document = scene.document(stream, scene.challenge(stream))
    assert isinstance(document, Evidence)
    return document


def test_a_well_formed_inventory_is_left_as_it_is() -> None:
    one = inventory(gpu(mig_devices=(mig_device(1),)))
    left, dropped = without_malformed_facts(one)
    assert left is one
    assert dropped == ()


@pytest.mark.parametrize(
    ("attribute", "wire", "garbage"),
    [
        ("board_part_number", "boardPartNumber", "699\x00"),
        ("product", "product", "NVIDIA H100\u2122"),
        ("product", "product", "x" * 129),
        ("compute_capability", "computeCapability", "-5.0"),
        ("architecture", "architecture", ""),
        ("compute_mode", "computeMode", "\x1b[2J"),
        ("fabric", "fabric", Fabric(kind="loom", cluster_uuid=None, clique=None)),
        ("fabric", "fabric", Fabric(kind="mnnvl", cluster_uuid="x", clique=None)),
        ("chassis_serial", "chassisSerial", "\u00ff"),
        ("module_id", "moduleId", -1),
    ],
)
def test_garbage_costs_its_fact(attribute: str, wire: str, garbage: object) -> None:
    one = inventory(gpu(0, **{attribute: garbage}), gpu(1))
    left, [dropped] = without_malformed_facts(one)
    assert getattr(left.gpus[0], attribute) is None
    assert left.gpus[1] is one.gpus[1]
    assert (dropped.fact, dropped.gpu) == (wire, gpu_uuid(1))
    assert str(dropped).startswith(f"ignored: {wire} of {gpu_uuid(1)} is malformed: ")
    assert str(dropped).isprintable()
    assert inventory_findings(left) == ()


def test_garbage_of_the_host_costs_its_fact() -> None:
    left, [dropped] = without_malformed_facts(inventory(gpu(0), host=host(cuda="12 8")))
    assert left.host.cuda is None
    assert str(dropped) == "ignored: cuda is malformed: 12 8"


@pytest.mark.parametrize("fact", ["vbios", "gsp", "memory_bytes", "virt", "serial", "uuid", "pci"])
def test_what_trust_needs_is_not_touched(fact: str) -> None:
    one = inventory(gpu(0, **{fact: "no such value \x01"}))
    left, dropped = without_malformed_facts(one)
    assert left is one
    assert dropped == ()
    assert inventory_findings(left)


def test_links_are_dropped_one_by_one_and_all_where_numbers_repeat() -> None:
    good, odd = NvLink(0, True, None), NvLink(255, True, None)
    no_place = NvLink(1, True, "over there")
    left, [dropped] = without_malformed_facts(inventory(gpu(nvlinks=(good, odd, no_place))))
    assert left.gpus[0].nvlinks == (good,)
    assert dropped.fact == "nvlinks"
    assert "2 of 3 entries" in str(dropped)
    left, _ = without_malformed_facts(inventory(gpu(nvlinks=(good, good))))
    assert left.gpus[0].nvlinks == ()


@pytest.mark.parametrize(("number", "is_kept"), [(-1, False), (0, True), (63, True), (64, False)])
def test_links_are_numbered_0_to_63(number: int, is_kept: bool) -> None:
    link, other = NvLink(number, True, None), NvLink(255, True, None)
    left, _ = without_malformed_facts(inventory(gpu(nvlinks=(link, other))))
    assert left.gpus[0].nvlinks == ((link,) if is_kept else ())


def test_mig_devices_without_a_name_of_their_own_cannot_be_given_to_anybody() -> None:
    devices = (mig_device(1), mig_device(2), mig_device(3, uuid="MIG-GPU-old/1/0"))
    one = inventory(gpu(0, mig_devices=devices), gpu(1, mig_devices=(mig_device(1),)))
    left, dropped = without_malformed_facts(one)
    assert [x.uuid for x in left.gpus[0].mig_devices] == [mig_uuid(2)]
    assert left.gpus[1].mig_devices == ()
    assert [(x.fact, x.gpu) for x in dropped] == [
        ("migDevices", gpu_uuid(1)),
        ("migDevices", gpu_uuid(2)),
    ]


@pytest.mark.parametrize(("count", "left"), [(56, 56), (57, 0)])
def test_of_more_than_56_mig_devices_none_is_known(count: int, left: int) -> None:
    devices = tuple(mig_device(n) for n in range(count))
    one = inventory(gpu(product="\n", mig_devices=devices))
    assert len(without_malformed_facts(one)[0].gpus[0].mig_devices) == left


@pytest.mark.parametrize(
    ("profile", "memory_mib", "left"),
    [
        ("1g 10gb", -1, (None, None)),
        ("1g 10gb", 9856, (None, 9856)),
        ("1g.10gb", -1, ("1g.10gb", None)),
        ("1g 10gb", None, (None, None)),
        (None, -1, (None, None)),
        ("1g.10gb", 0, ("1g.10gb", 0)),
        ("1g.10gb", MAX_INT, ("1g.10gb", MAX_INT)),
        ("1g.10gb", MAX_INT + 1, ("1g.10gb", None)),
        (None, None, (None, None)),
    ],
)
def test_a_mig_device_keeps_its_name_without_what_is_odd_of_it(
    profile: str | None, memory_mib: int | None, left: tuple[str | None, int | None]
) -> None:
    odd = mig_device(1, profile=profile, memory_mib=memory_mib)
    one = inventory(gpu(product="\n", mig_devices=(odd,)))
    [device] = without_malformed_facts(one)[0].gpus[0].mig_devices
    assert (device.uuid, device.profile, device.memory_mib) == (mig_uuid(1), *left)


def test_a_fabric_that_is_well_formed_stays_beside_garbage() -> None:
    fabric = Fabric(kind="nvswitch", cluster_uuid=None, clique=0)
    left, _ = without_malformed_facts(inventory(gpu(product="\n", fabric=fabric)))
    assert left.gpus[0].fabric == fabric


# --- use


def test_well_formed_use_is_left_as_it_is() -> None:
    one = evidence(allocations=(HELD,), processes=(USED,))
    left, dropped = without_malformed_use(one)
    assert left is one
    assert dropped == ()
    nothing = evidence(allocations=None, processes=None)
    assert without_malformed_use(nothing)[0] is nothing


@pytest.mark.parametrize("pid", [0, -1, 2**22 + 1, 4294967295])
def test_a_process_that_is_none_and_names_no_pod_is_left_out(pid: int) -> None:
    odd = GpuProcess(gpu_uuid(1), pid, None)
    left, [dropped] = without_malformed_use(evidence(processes=(USED, *[odd] * 16)))
    assert left.processes == (USED,)
    example = f"GpuProcess(gpu='{gpu_uuid(1)}', pid={pid}, pod_uid=None)"
    assert dropped == Dropped("processes", None, f"16 of 17 entries, such as {quote(example)}")


def test_the_same_process_sixteen_times_is_one() -> None:
    left, dropped = without_malformed_use(evidence(processes=(USED,) * 16))
    assert left.processes == (USED,)
    assert dropped == ()


def entries(name: str, count: int) -> tuple[object, ...]:
    make: dict[str, Callable[[int], object]] = {
        "processes": lambda n: GpuProcess(gpu_uuid(1), n + 1, None),
        "allocations": lambda n: Allocation("team-a", f"job-{n}", "main", "x/gpu", "0"),
        "pods": lambda n: f"{n:032x}",
    }
    return tuple(make[name](n) for n in range(count))


@pytest.mark.parametrize(
    ("name", "most"), [("processes", 1000), ("allocations", 1000), ("pods", 1024)]
)
def test_so_many_entries_are_read(name: str, most: int) -> None:
    one = evidence(**{name: entries(name, most)})
    assert without_malformed_use(one)[0] is one
    twice = evidence(**{name: (*entries(name, most), entries(name, 1)[0])})
    left, dropped = without_malformed_use(twice)
    assert (getattr(left, name), dropped) == (entries(name, most), ())


@pytest.mark.parametrize(
    ("name", "most"), [("processes", 1000), ("allocations", 1000), ("pods", 1024)]
)
def test_of_more_entries_none_counts_and_the_warning_tells_the_bound(name: str, most: int) -> None:
    left, [dropped] = without_malformed_use(evidence(**{name: entries(name, most + 1)}))
    assert getattr(left, name) is None
    assert dropped.value == f"0 of {most + 1} entries, at most {most} are read"


@pytest.mark.parametrize(
    "fields",
    [
        {"processes": (msgspec.structs.replace(USED, pid=0), USED)},
        {"processes": (msgspec.structs.replace(USED, pod_uid="x"), USED)},
        {"allocations": (HELD, UNNAMED)},
        {"pods": (POD_UID, "no-uid")},
    ],
)
def test_where_a_pod_may_be_missed_nothing_counts_as_read(fields: dict[str, Any]) -> None:
    left, [dropped] = without_malformed_use(evidence(**fields))
    [name] = fields
    assert getattr(left, name) is None
    assert dropped.fact == name


def test_an_allocation_that_is_listed_twice_is_one() -> None:
    left, _ = without_malformed_use(evidence(allocations=(HELD, HELD)))
    assert left.allocations == (HELD,)
