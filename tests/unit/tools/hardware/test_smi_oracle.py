"""The second opinion on real hardware can disagree: nvidia-smi's XML against an inventory."""

from typing import Any

import msgspec
import pytest

from gpuwarden.evidence.model import Inventory
from tests.builders.inventory import gpu, gpu_uuid, host, inventory
from tests.hardware.smi import differences, parse

SMI = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <driver_version>580.10.01</driver_version>
  <cuda_version>13.0</cuda_version>
  <gpu id="00000000:18:00.0">
    <product_name>NVIDIA H100 80GB HBM3</product_name>
    <product_architecture>Hopper</product_architecture>
    <persistence_mode>Enabled</persistence_mode>
    <mig_mode><current_mig>Disabled</current_mig><pending_mig>Enabled</pending_mig></mig_mode>
    <serial>1654223000000</serial>
    <uuid>GPU-00000001-0000-4000-8000-000000000001</uuid>
    <vbios_version>96.00.74.00.11</vbios_version>
    <board_part_number>N/A</board_part_number>
    <gpu_module_id>4</gpu_module_id>
    <gsp_firmware_version>580.10.01</gsp_firmware_version>
    <gpu_virtualization_mode><virtualization_mode>Pass-Through</virtualization_mode>
    </gpu_virtualization_mode>
    <pci>
      <pci_device_id>233010DE</pci_device_id>
      <pci_bus_id>00000000:18:00.0</pci_bus_id>
      <pci_sub_system_id>16C110DE</pci_sub_system_id>
    </pci>
    <fb_memory_usage><total>81559 MiB</total></fb_memory_usage>
    <compute_mode>Default</compute_mode>
    <ecc_mode><current_ecc>Enabled</current_ecc></ecc_mode>
    <processes>
      <process_info><pid>4711</pid></process_info>
      <process_info><pid>4712</pid></process_info>
    </processes>
  </gpu>
</nvidia_smi_log>
"""
REPORT = parse(SMI.encode())
AGREEING = {
    "gsp": "580.10.01",
    "board_part_number": "692-2G520-0200-000",
    "virt": "passthrough",
    "architecture": "hopper",
    "module_id": 4,
}


def machine(**changes: Any) -> Inventory:
    return inventory(
        gpu(**{**AGREEING, **changes}),
        host=host(driver="580.10.01", cuda="13.0"),
    )


def test_what_both_say_alike_and_what_is_not_shown_is_no_difference() -> None:
    assert differences(machine(), REPORT) == ()


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("serial", None),
        ("product", "NVIDIA H100 PCIe"),
        ("vbios", "96.00.74.00.12"),
        ("gsp", None),
        ("pci_bus_id", "00000000:19:00.0"),
        ("pci", "2330:10de"),
        ("subsystem", "10de:16c2"),
        ("ecc", False),
        ("mig", True),
        ("virt", "none"),
        ("architecture", "ampere"),
        ("compute_mode", "prohibited"),
        ("persistence_mode", False),
        ("module_id", 5),
    ],
)
def test_each_fact_that_is_misread_is_reported(fact: str, value: str | bool | int | None) -> None:
    (difference,) = differences(machine(**{fact: value}), REPORT)
    assert difference.startswith(f"{gpu_uuid(1)} {fact}: our agent says {value!r}, nvidia-smi says")


def test_memory_is_compared_in_mebibytes() -> None:
    (difference,) = differences(machine(memory_bytes=str(81558 << 20)), REPORT)
    assert difference.endswith("memory_mib: our agent says 81558, nvidia-smi says 81559")


def test_versions_of_the_host_are_compared() -> None:
    found = msgspec.structs.replace(machine(), host=host(driver="580.10.02", cuda="12.8"))
    assert differences(found, REPORT) == (
        "driver: our agent says '580.10.02', nvidia-smi says '580.10.01'",
        "cuda: our agent says '12.8', nvidia-smi says '13.0'",
    )


def test_a_gpu_that_one_side_misses_is_reported() -> None:
    other = gpu_uuid(9)
    found = differences(machine(uuid=other), REPORT)
    assert found == (
        f"{gpu_uuid(1)}: only nvidia-smi shows it",
        f"{other}: only our agent shows it",
    )


def test_processes_are_read() -> None:
    (card,) = REPORT.gpus
    assert card.pids == {4711, 4712}
