"""`gpuwarden gpus`: every GPU of the fleet with its serial and UUID."""

import sys
from typing import Final

from gpuwarden.cli.client import ask
from gpuwarden.cli.options import HERE, Connection, Output
from gpuwarden.cli.output import Format, printed
from gpuwarden.cli.terminal import Column, joined, memory, table, visible
from gpuwarden.wire.v1 import fleet_pb2 as pb


def nvlinks(gpu: pb.Gpu) -> str:
    """Links that are up, of all links."""
    return f"{gpu.nvlinks_active}/{gpu.nvlinks_total}" if gpu.nvlinks_total else ""


GPUS: Final[tuple[Column[pb.Gpu], ...]] = (
    Column("NODE", lambda x: x.node),
    Column("INDEX", lambda x: str(x.index)),
    Column("UUID", lambda x: x.uuid),
    Column("SERIAL", lambda x: x.serial),
    Column("PRODUCT", lambda x: x.product),
    Column("MEMORY", lambda x: memory(x.memory_mib)),
    Column("MIG", lambda x: x.mig),
    Column("HEALTH", lambda x: x.health),
    Column("BUS-ID", lambda x: x.pci_bus_id, wide=True),
    Column("PCI", lambda x: x.pci, wide=True),
    Column("SUBSYSTEM", lambda x: x.subsystem, wide=True),
    Column("VBIOS", lambda x: x.vbios, wide=True),
    Column("GSP", lambda x: x.gsp, wide=True),
    Column("ECC", lambda x: x.ecc, wide=True),
    Column("VIRT", lambda x: x.virt, wide=True),
    Column("COMPUTE", lambda x: x.compute_capability, wide=True),
    Column("FABRIC", lambda x: x.fabric, wide=True),
    Column("NVLINKS", nvlinks, wide=True),
    Column("PART", lambda x: x.board_part_number, wide=True),
    Column("LABELS", lambda x: joined(x.labels), wide=True),
)

MIG_DEVICES: Final[tuple[Column[tuple[pb.Gpu, pb.MigDevice]], ...]] = (
    Column("NODE", lambda x: x[0].node),
    Column("GPU", lambda x: str(x[0].index)),
    Column("MIG DEVICE", lambda x: x[1].uuid),
    Column("PROFILE", lambda x: x[1].profile),
    Column("MEMORY", lambda x: memory(x[1].memory_mib)),
)


def gpus(*, node: str = "", output: Output = Format.TABLE, connection: Connection = HERE) -> None:
    """List every GPU with its serial and UUID, and the MIG devices on them.

    Parameters
    ----------
    node
        Only the GPUs of this node.
    output
        How to print; `name` gives UUIDs only.
    connection
        How to reach the controller.

    """
    found = ask(connection, lambda client: client.gpus(node))
    text = printed(
        found,
        output,
        names=(gpu.uuid for gpu in found.gpus),
        text=lambda: _tables(found, wide=output is Format.WIDE),
    )
    sys.stdout.write(text)


def _tables(found: pb.ListGpusResponse, *, wide: bool) -> str:
    if not found.gpus:
        return "No GPUs.\n"
    devices = [(gpu, device) for gpu in found.gpus for device in gpu.mig_devices]
    cards = table(visible(GPUS, wide=wide), found.gpus)
    return f"{cards}\n{table(MIG_DEVICES, devices)}" if devices else cards
