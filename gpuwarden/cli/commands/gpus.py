"""`gpuwarden gpus`: every GPU of the fleet, whether it is free, and who has it."""

import sys
from typing import TYPE_CHECKING, Annotated, Final

from gpuwarden.cli.connection.options import HERE, Connection, Output
from gpuwarden.cli.connection.question import ask
from gpuwarden.cli.filters import STATE, ClassName, GpuState, Labels, choice
from gpuwarden.cli.text.output import Format, printed
from gpuwarden.cli.text.screen import on_screen
from gpuwarden.cli.text.tables import Column, Tone
from gpuwarden.cli.text.terminal import joined, memory, short_uuid
from gpuwarden.wire.v1 import fleet_pb2 as pb

if TYPE_CHECKING:
    from gpuwarden.cli.connection.client import Client

_VENDOR: Final = "NVIDIA "
_TONES: Final = {
    "free": Tone.GOOD,
    "lost": Tone.BAD,
    "unhealthy": Tone.BAD,
    "unavailable": Tone.DOUBTFUL,
    "unknown": Tone.DOUBTFUL,
}


def nvlinks(gpu: pb.Gpu) -> str:
    """Links that are up, of all links."""
    return f"{gpu.nvlinks_active}/{gpu.nvlinks_total}" if gpu.nvlinks_total else ""


def users(gpu: pb.Gpu) -> str:
    """Pods that reservations give the GPU to; else those that kubelet does, or what uses it.

    Whether it should have a reservation nobody can tell here: on a `plugin` node the record comes
    after the pod's start, and in report mode there is none.
    """
    others = [f"{x} (by kubelet)" for x in gpu.allocated_to]
    if gpu.process_count and not others:
        count = gpu.process_count
        others = [f"{count} process{'es' * (count > 1)}"]
    return ", ".join(gpu.reserved_by or (others if gpu.state == "used" else ()))


GPUS: Final[tuple[Column[pb.Gpu], ...]] = (
    Column("NODE", lambda x: x.node, is_name=True),
    Column("GPU", lambda x: str(x.index)),
    Column("UUID", lambda x: short_uuid(x.uuid)),
    Column("PRODUCT", lambda x: x.product.removeprefix(_VENDOR), is_name=True),
    Column("STATE", lambda x: x.state, tone=lambda x: _TONES.get(x.state)),
    Column("SERIAL", lambda x: x.serial, wide=True),
    Column("FULL-UUID", lambda x: x.uuid, wide=True),
    Column("MEMORY", lambda x: memory(x.memory_mib), wide=True),
    Column("MIG", lambda x: x.mig, wide=True),
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
    Column("USED-BY", users),
)

MIG_DEVICES: Final[tuple[Column[tuple[pb.Gpu, pb.MigDevice]], ...]] = (
    Column("NODE", lambda x: x[0].node, is_name=True),
    Column("GPU", lambda x: str(x[0].index)),
    Column("MIG-DEVICE", lambda x: short_uuid(x[1].uuid)),
    Column("PROFILE", lambda x: x[1].profile),
    Column("STATE", lambda x: x[1].state, tone=lambda x: _TONES.get(x[1].state)),
    Column("FULL-UUID", lambda x: x[1].uuid, wide=True),
    Column("MEMORY", lambda x: memory(x[1].memory_mib), wide=True),
    Column("USED-BY", lambda x: ", ".join(x[1].reserved_by)),
)


def gpus(
    *,
    node: str = "",
    state: Annotated[list[GpuState] | None, STATE] = None,
    class_: ClassName = "",
    label: Labels = None,
    output: Output = Format.TABLE,
    connection: Connection = HERE,
) -> None:
    """List every GPU and MIG device: free, or who has it.

    Parameters
    ----------
    node
        Only the GPUs of this node.
    state
        Only GPUs in this state, or with such a MIG device; may be repeated.
    class_
        Only GPUs of nodes of this class: a hash, at least 8 of its hex digits, or a name from
        policy.
    label
        Only GPUs with this label from policy; may be repeated.
    output
        How to print; `name` gives UUIDs only, `wide` whole UUIDs and serials too.
    connection
        How to reach the controller.

    """

    async def find(client: "Client") -> pb.ListGpusResponse:
        wanted = await choice(client, state, class_, label)
        listed = await client.gpus(node)
        return pb.ListGpusResponse(gpus=[x for x in listed.gpus if wanted.admits_gpu(x)])

    found = ask(connection, find)
    text = printed(
        found,
        output,
        names=(gpu.uuid for gpu in found.gpus),
        text=lambda: _tables(found, output),
    )
    sys.stdout.write(text)


def _tables(found: pb.ListGpusResponse, output: Format) -> str:
    if not found.gpus:
        return "No GPUs.\n"
    devices = [(gpu, device) for gpu in found.gpus for device in gpu.mig_devices]
    cards = on_screen(GPUS, found.gpus, output)
    return f"{cards}\n{on_screen(MIG_DEVICES, devices, output)}" if devices else cards
