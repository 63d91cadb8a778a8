"""Inventory rules: a real node has no findings, each broken rule gives exactly one."""

from typing import Any

import msgspec
import pytest

from gpuwarden.evidence.inventory_rules import (
    inventory_findings,
    is_gpu_uuid,
    is_mig_uuid,
    is_serial,
)
from gpuwarden.evidence.model import Fabric, Inventory, NvLink
from tests.builders.inventory import (
    gpu,
    gpu_uuid,
    host,
    inventory,
    lost_gpu,
    mig_device,
    mig_uuid,
)

LINK = NvLink(link=0, active=True, peer="00000000:19:00.0")
FABRIC = Fabric(kind="nvswitch", cluster_uuid="00000000-0000-4000-8000-00000000000a", clique=3)


def fabric(**changes: Any) -> Fabric:
    return msgspec.structs.replace(FABRIC, **changes)


def link(**changes: Any) -> NvLink:
    return msgspec.structs.replace(LINK, **changes)


def test_a_full_node_is_well_formed() -> None:
    full = inventory(
        *(gpu(i, nvlinks=(LINK,), fabric=FABRIC) for i in range(7)),
        gpu(7, mig=True, mig_devices=(mig_device(1), mig_device(2))),
        lost=(lost_gpu(8),),
    )
    assert inventory_findings(full) == ()


def test_facts_that_do_not_exist_are_well_formed() -> None:
    bare = gpu(
        serial=None, board_part_number=None, product=None, pci=None, subsystem=None,
        vbios=None, gsp=None, memory_bytes=None, ecc=None, mig=None, virt=None,
        compute_capability=None, architecture=None, compute_mode=None,
        persistence_mode=None, module_id=None,
        nvlinks=(link(peer=None),), fabric=fabric(cluster_uuid=None, clique=None),
        mig_devices=(mig_device(1, profile=None, memory_mib=None),),
    )  # fmt: skip
    nothing = host(driver=None, cuda=None, cc=None, system_uuid=None)
    assert inventory_findings(inventory(bare, host=nothing)) == ()


def test_an_empty_inventory_breaks_no_rule() -> None:
    assert inventory_findings(Inventory(host=host(), gpus=(), lost=())) == ()


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"arch": "x86 64"}, "host.arch: 'x86 64' is not a machine name"),
        ({"driver": "570 86"}, "host.driver: '570 86' is not 1 to 80 printable ASCII"),
        ({"driver": ""}, "host.driver: '' is not"),
        ({"driver": "570\n"}, "host.driver: '570\\n' is not"),
        ({"cuda": "\u0661\u0662"}, "host.cuda: '\\u0661\\u0662' is not"),
        ({"cc": "maybe"}, "host.cc: 'maybe' is not one of devtools, nvle, off, on, ppcie"),
        ({"system_uuid": "no"}, "host.systemUuid: 'no' is not a UUID"),
    ],
)
def test_host_rules(changes: dict[str, Any], finding: str) -> None:
    [found] = inventory_findings(inventory(host=host(**changes)))
    assert found.startswith(finding)


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"uuid": "GPU-1"}, "gpus[0].uuid: 'GPU-1' is not GPU- and a lower-case UUID"),
        ({"uuid": gpu_uuid(171).upper()}, "gpus[0].uuid: 'GPU-000000AB"),
        ({"uuid": mig_uuid(1)}, "gpus[0].uuid: 'MIG-"),
        ({"pci_bus_id": "18:00.0"}, "gpus[0].pciBusId: '18:00.0' is not domain:bus:device"),
        ({"index": -1}, "gpus[0].index: -1 is not between 0 and 127"),
        ({"index": 128}, "gpus[0].index: 128 is not"),
        ({"vbios": "a b"}, "gpus[0].vbios: 'a b' is not"),
        ({"gsp": "x" * 81}, f"gpus[0].gsp: '{'x' * 77}...' is not"),
        ({"pci": "10DE:2330"}, "gpus[0].pci: '10DE:2330' is not vendor:device, four lower"),
        ({"subsystem": "10de"}, "gpus[0].subsystem: '10de' is not"),
        ({"product": ""}, "gpus[0].product: '' is not 1 to 128 printable ASCII"),
        ({"board_part_number": "\x1b[2J"}, "gpus[0].boardPartNumber: '\\x1b[2J' is not"),
        ({"architecture": "\x7f"}, "gpus[0].architecture: '\\x7f' is not"),
        ({"compute_mode": "x" * 129}, "gpus[0].computeMode: 'xxx"),
        ({"chassis_serial": "\u00e9"}, "gpus[0].chassisSerial: '\\xe9' is not"),
        ({"serial": "x" * 65}, "gpus[0].serial: 'xxx"),
        ({"memory_bytes": "1e9"}, "gpus[0].memoryBytes: '1e9' is not a decimal number"),
        ({"memory_bytes": "-1"}, "gpus[0].memoryBytes: '-1' is not"),
        ({"memory_bytes": "01"}, "gpus[0].memoryBytes: '01' is not"),
        ({"memory_bytes": "1" * 20}, "gpus[0].memoryBytes: '1111"),
        ({"virt": "yes"}, "gpus[0].virt: 'yes' is not one of host-vgpu, host-vsga, none, pass"),
        ({"compute_capability": "9"}, "gpus[0].computeCapability: '9' is not major.minor"),
        ({"module_id": -1}, "gpus[0].moduleId: -1 is not between"),
        ({"fabric": fabric(kind="wire")}, "gpus[0].fabric.kind: 'wire' is not one of mnnvl, none"),
        ({"fabric": fabric(cluster_uuid="x")}, "gpus[0].fabric.clusterUuid: 'x' is not a UUID"),
        ({"fabric": fabric(clique=-1)}, "gpus[0].fabric.clique: -1 is not"),
        ({"nvlinks": (link(link=64),)}, "gpus[0].nvlinks[0].link: 64 is not between 0 and 63"),
        ({"nvlinks": (link(peer="x"),)}, "gpus[0].nvlinks[0].peer: 'x' is not domain:bus"),
        ({"nvlinks": (LINK, LINK)}, "gpus[0].nvlinks: link '0' appears 2 times, expected once"),
        (
            {"mig_devices": (mig_device(1, uuid=gpu_uuid(5)),)},
            "gpus[0].migDevices[0].uuid: 'GPU-00000005",
        ),
        (
            {"mig_devices": (mig_device(1, profile="1g 5gb"),)},
            "gpus[0].migDevices[0].profile: '1g 5gb' is not",
        ),
        (
            {"mig_devices": (mig_device(1, memory_mib=-5),)},
            "gpus[0].migDevices[0].memoryMiB: -5 is not",
        ),
    ],
)
def test_gpu_rules(changes: dict[str, Any], finding: str) -> None:
    [found] = inventory_findings(inventory(gpu(**changes)))
    assert found.startswith(finding)


def test_lost_gpus_are_held_to_the_same_rules() -> None:
    lost = lost_gpu(1, uuid="x", error="")
    assert inventory_findings(inventory(gpu(0), lost=(lost,))) == (
        "lost[0].uuid: 'x' is not GPU- and a lower-case UUID",
        "lost[0].error: '' is not 1 to 128 printable ASCII characters",
    )


@pytest.mark.parametrize(
    ("one", "what"),
    [
        (inventory(gpu(0), gpu(1, uuid=gpu_uuid(1))), "UUID 'GPU-00000001-"),
        (inventory(gpu(0), lost=(lost_gpu(1, uuid=gpu_uuid(1)),)), "UUID 'GPU-00000001-"),
        (inventory(gpu(0), gpu(1, index=0)), "index '0'"),
        (inventory(gpu(0), lost=(lost_gpu(1, index=0),)), "index '0'"),
        (inventory(gpu(0), gpu(1, pci_bus_id="00000000:18:00.0")), "PCI bus id '00000000:18:00.0'"),
        (
            inventory(gpu(0, pci_bus_id="00000000:aa:00.0"), gpu(1, pci_bus_id="00000000:AA:00.0")),
            "PCI bus id '00000000:aa:00.0'",
        ),
        (inventory(gpu(0, mig_devices=(mig_device(1), mig_device(1)))), "UUID 'MIG-00000001-"),
        (
            inventory(gpu(0, mig_devices=(mig_device(1),)), gpu(1, mig_devices=(mig_device(1),))),
            "UUID 'MIG-00000001-",
        ),
    ],
)
def test_nothing_stands_there_twice(one: Inventory, what: str) -> None:
    [found] = inventory_findings(one)
    assert found.startswith(f"inventory: {what}")
    assert found.endswith("appears 2 times, expected once")


def test_the_same_serial_on_two_gpus_is_a_board() -> None:
    assert inventory_findings(inventory(gpu(0, serial="7"), gpu(1, serial="7"))) == ()


def test_counts_are_bounded_and_what_is_beyond_is_not_looked_at() -> None:
    many = tuple(gpu(i, vbios="a b" if i == 64 else "a") for i in range(65))
    assert inventory_findings(inventory(*many)) == ("gpus: 65 entries, at most 64 are allowed",)
    lost = tuple(lost_gpu(i, error="" if i == 65 else "X") for i in range(1, 66))
    assert inventory_findings(inventory(gpu(0), lost=lost)) == (
        "lost: 65 entries, at most 64 are allowed",
    )


def test_a_node_may_be_as_full_as_the_bounds_say() -> None:
    devices = tuple(mig_device(i) for i in range(1, 57))
    links = tuple(link(link=i) for i in range(64))
    cards = (gpu(0, mig_devices=devices, nvlinks=links), *(gpu(i) for i in range(1, 64)))
    lost = tuple(lost_gpu(i) for i in range(64, 128))
    assert inventory_findings(inventory(*cards, lost=lost)) == ()


def test_mig_devices_and_links_are_bounded() -> None:
    devices = tuple(mig_device(i, profile="a b" if i == 57 else "a") for i in range(1, 58))
    links = tuple(link(link=i) for i in range(65))
    assert inventory_findings(inventory(gpu(mig_devices=devices, nvlinks=links))) == (
        "gpus[0].nvlinks: 65 entries, at most 64 are allowed",
        "gpus[0].migDevices: 57 entries, at most 56 are allowed",
    )


def test_all_findings_are_reported() -> None:
    one = inventory(gpu(pci="x", vbios=" ", virt="?"), host=host(cc="?"))
    assert len(inventory_findings(one)) == 4


@pytest.mark.parametrize("text", [gpu_uuid(1), mig_uuid(1), "", "GPU-", f"{gpu_uuid(1)}\n"])
def test_uuid_kinds(text: str) -> None:
    assert is_gpu_uuid(text) == (text == gpu_uuid(1))
    assert is_mig_uuid(text) == (text == mig_uuid(1))


@pytest.mark.parametrize(
    ("text", "may_be"), [("", True), ("1" * 64, True), ("1" * 65, False), ("1\n", False)]
)
def test_a_serial_is_short_and_printable(text: str, may_be: bool) -> None:
    assert is_serial(text) is may_be
