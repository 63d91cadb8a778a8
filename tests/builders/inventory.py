"""Inventories for tests: an H100 node by default, and everything can be replaced by name."""

from typing import Any

import msgspec

from gpuwarden.evidence.model import Gpu, Host, Inventory, LostGpu, MigDevice

HOST = Host(
    driver="570.86.10",
    cuda="12.8",
    cc="off",
    arch="x86_64",
    system_uuid="4c4c4544-0042-3510-8052-b4c04f303233",
)


def gpu_uuid(number: int) -> str:
    return f"GPU-{number:08x}-0000-4000-8000-{number:012x}"


def mig_uuid(number: int) -> str:
    return f"MIG-{number:08x}-0000-4000-8000-{number:012x}"


def gpu(number: int = 0, /, **changes: Any) -> Gpu:
    """An H100 SXM as its driver describes it; `number` gives index, UUID, serial and bus id."""
    card = Gpu(
        index=number,
        uuid=gpu_uuid(number + 1),
        serial=f"16542230{number:05d}",
        board_part_number="692-2G520-0200-000",
        product="NVIDIA H100 80GB HBM3",
        pci_bus_id=f"00000000:{0x18 + number:02X}:00.0",
        pci="10de:2330",
        subsystem="10de:16c1",
        vbios="96.00.74.00.11",
        gsp="570.86.10",
        memory_bytes="85520809984",
        ecc=True,
        mig=False,
        mig_devices=(),
        virt="none",
        compute_capability="9.0",
        architecture="Hopper",
        compute_mode="default",
        persistence_mode=True,
        nvlinks=(),
        fabric=None,
        chassis_serial=None,
        module_id=number + 1,
    )
    return msgspec.structs.replace(card, **changes)


def host(**changes: Any) -> Host:
    return msgspec.structs.replace(HOST, **changes)


def mig_device(number: int, **changes: Any) -> MigDevice:
    device = MigDevice(uuid=mig_uuid(number), profile="1g.10gb", memory_mib=9856)
    return msgspec.structs.replace(device, **changes)


def lost_gpu(number: int, /, **changes: Any) -> LostGpu:
    card = LostGpu(
        uuid=gpu_uuid(number + 1),
        index=number,
        pci_bus_id=f"00000000:{0x18 + number:02X}:00.0",
        error="GPU_IS_LOST",
    )
    return msgspec.structs.replace(card, **changes)


def inventory(*gpus: Gpu, host: Host = HOST, lost: tuple[LostGpu, ...] = ()) -> Inventory:
    """One H100 unless told otherwise."""
    return Inventory(host=host, gpus=gpus or (gpu(),), lost=lost)
