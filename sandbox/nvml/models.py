"""Hardware to put into scenarios: the parts that the agent must read rightly.

Values as such parts report them; identities are made from a seed, never real ones.
"""

import uuid
from dataclasses import dataclass
from typing import Final

from sandbox.nvml.scenario import FakeGpu, FakeLink, FakeMig

_NAMES: Final = uuid.UUID("5f0b1a3e-5d0f-4a44-9c55-0f2b7f1f4b11")
MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class MigProfile:
    """How one MIG device of a profile presents itself."""

    profile: str
    slices: int
    memory_mib: int


A100_1G: Final = MigProfile("1g.5gb", 1, 4864)
A100_3G: Final = MigProfile("3g.20gb", 3, 19968)


def made_uuid(prefix: str, seed: str, ordinal: int) -> str:
    """`GPU-…` or `MIG-…`, the same for the same seed and ordinal."""
    return f"{prefix}-{uuid.uuid5(_NAMES, f'{prefix} {seed} {ordinal}')}"


def bus_id(ordinal: int, domain: int = 0) -> str:
    """A PCI bus id that grows with the ordinal, 0 to 30."""
    return f"{domain:08X}:{0x11 + 7 * ordinal:02X}:00.0"


def h100_sxm(ordinal: int, seed: str = "h100", *, gsp: str = "570.86.10") -> FakeGpu:
    """An H100 SXM5 80 GB behind NVSwitches, as an 8-GPU board has them.

    `gsp`: the firmware comes with the driver and has its version.
    """
    switches = (FakeLink(peer=f"00000000:{0xC0 + n % 4:02X}:00.0", peer_type=2) for n in range(18))
    return FakeGpu(
        uuid=made_uuid("GPU", seed, ordinal),
        pci_bus_id=bus_id(ordinal),
        name="NVIDIA H100 80GB HBM3",
        serial=_serial(seed, ordinal),
        board_part_number="692-2G520-0200-000",
        pci_device_id=0x233010DE,
        pci_subsystem_id=0x16C110DE,
        vbios="96.00.74.00.11",
        gsp=gsp,
        gsp_enabled=True,
        memory_bytes=81559 * MIB,
        ecc=True,
        mig_mode=False,
        max_mig=7,
        compute_capability=90,
        architecture=9,
        links=tuple(switches),
        fabric_state=3,
        module_id=ordinal + 1,
    )


def h200_passthrough(ordinal: int, seed: str = "h200") -> FakeGpu:
    """An H200 SXM5 given to a virtual machine alone, as NVML shows one there.

    No NVLink, a fabric that is "not supported" by a state instead of a return, a platform
    without a chassis. Pair it with driver 580.159.04.
    """
    return FakeGpu(
        uuid=made_uuid("GPU", seed, ordinal),
        pci_bus_id=f"00000000:00:{6 + ordinal:02X}.0",
        name="NVIDIA H200",
        serial=_serial(seed, ordinal),
        board_part_number="692-2G520-0282-000",
        pci_device_id=0x233510DE,
        pci_subsystem_id=0x18BF10DE,
        vbios="96.00.A5.00.1A",
        gsp="580.159.04",
        gsp_enabled=True,
        memory_bytes=150754820096,
        ecc=True,
        mig_mode=False,
        max_mig=7,
        virtualization=1,
        compute_capability=90,
        architecture=9,
        fabric_state=0,
        chassis_serial="",
        platform_module=6,
        module_id=6,
        event_types=0xFF9F,
    )


def a100_mig(ordinal: int, seed: str = "a100", *profiles: MigProfile) -> FakeGpu:
    """An A100 SXM4 40 GB in MIG mode, with one device per profile."""
    name = "NVIDIA A100-SXM4-40GB"
    devices = (
        FakeMig(
            uuid=made_uuid("MIG", f"{seed} {ordinal}", index),
            name=f"{name} MIG {profile.profile}",
            memory_bytes=profile.memory_mib * MIB,
            gpu_slices=profile.slices,
            compute_slices=profile.slices,
            memory_mb=profile.memory_mib,
        )
        for index, profile in enumerate(profiles)
    )
    return FakeGpu(
        uuid=made_uuid("GPU", seed, ordinal),
        pci_bus_id=bus_id(ordinal),
        name=name,
        serial=_serial(seed, ordinal),
        board_part_number="692-2G506-0200-002",
        pci_device_id=0x20B010DE,
        pci_subsystem_id=0x144E10DE,
        vbios="92.00.45.00.03",
        gsp="570.86.10",
        gsp_enabled=True,
        memory_bytes=40960 * MIB,
        ecc=True,
        mig_mode=True,
        max_mig=7,
        mig=tuple(devices),
        compute_capability=80,
        architecture=7,
        links=tuple(FakeLink(active=False) for _ in range(12)),
    )


def gb200(ordinal: int, seed: str = "gb200") -> FakeGpu:
    """One GPU of a GB200 tray: two share a board and its serial; the NVLink domain is shared."""
    return FakeGpu(
        uuid=made_uuid("GPU", seed, ordinal),
        pci_bus_id=f"{8 + ordinal // 2 * 8 + ordinal % 2:08X}:01:00.0",
        name="NVIDIA GB200",
        serial=_serial(seed, ordinal // 2),
        board_part_number="699-2G548-0201-800",
        pci_device_id=0x294110DE,
        pci_subsystem_id=0x20CF10DE,
        vbios="97.00.82.00.18",
        gsp="570.86.10",
        gsp_enabled=True,
        memory_bytes=189471 * MIB,
        ecc=True,
        mig_mode=False,
        compute_capability=100,
        architecture=10,
        links=tuple(FakeLink(peer_type=2) for _ in range(18)),
        fabric_state=3,
        fabric_cluster=uuid.uuid5(_NAMES, f"fabric {seed}").hex,
        fabric_clique=32766,
        chassis_serial="1821000000001",
        platform_module=ordinal + 1,
        module_id=ordinal + 1,
    )


def geforce(ordinal: int, seed: str = "geforce", serial: str | None = None) -> FakeGpu:
    """A consumer card: no serial, no ECC, no MIG, no links, no CC."""
    return FakeGpu(
        uuid=made_uuid("GPU", seed, ordinal),
        pci_bus_id=bus_id(ordinal),
        name="NVIDIA GeForce RTX 4090",
        serial=serial,
        pci_device_id=0x268410DE,
        pci_subsystem_id=0x88E81043,
        vbios="95.02.3C.40.B2",
        gsp_enabled=False,
        memory_bytes=24564 * MIB,
        compute_capability=89,
        architecture=8,
        persistence=False,
    )


def gb10(seed: str = "gb10") -> FakeGpu:
    """A part whose memory is the host's: NVML has no total for it."""
    return FakeGpu(
        uuid=made_uuid("GPU", seed, 0),
        pci_bus_id="0000000F:01:00.0",
        name="NVIDIA GB10",
        pci_device_id=0x2E1210DE,
        vbios="9A.0B.16.00.00",
        gsp="580.95.05",
        gsp_enabled=True,
        compute_capability=121,
        architecture=10,
    )


def _serial(seed: str, ordinal: int) -> str:
    return str(1650000000000 + uuid.uuid5(_NAMES, f"serial {seed} {ordinal}").int % 10**9)
