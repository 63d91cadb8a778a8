"""`gpuwarden gpus`: every GPU of the fleet with its serial and UUID."""

import sys

from gpuwarden.cli.client import ask
from gpuwarden.cli.fleet_columns import GPUS, MIG_DEVICES
from gpuwarden.cli.options import HERE, Connection, Output
from gpuwarden.cli.output import STRUCTURED, Format, plain, structured
from gpuwarden.cli.terminal import shown, table, visible
from gpuwarden.wire.v1 import fleet_pb2 as pb


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
    found = ask(connection, lambda asker: asker.gpus(node))
    if output in STRUCTURED:
        sys.stdout.write(structured(plain(found), output))
    elif output is Format.NAME:
        sys.stdout.write("".join(f"{shown(gpu.uuid)}\n" for gpu in found.gpus))
    else:
        sys.stdout.write(_tables(found, wide=output is Format.WIDE))


def _tables(found: pb.ListGpusResponse, *, wide: bool) -> str:
    if not found.gpus:
        return "No GPUs.\n"
    devices = [(gpu, device) for gpu in found.gpus for device in gpu.mig_devices]
    cards = table(visible(GPUS, wide=wide), found.gpus)
    return f"{cards}\n{table(MIG_DEVICES, devices)}" if devices else cards
