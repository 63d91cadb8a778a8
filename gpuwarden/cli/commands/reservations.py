"""`gpuwarden reservations`: who holds which GPU."""

import sys
from typing import Annotated

from cyclopts import Parameter

from gpuwarden.cli.client import ask
from gpuwarden.cli.options import HERE, Connection, Output
from gpuwarden.cli.output import STRUCTURED, Format, plain, structured
from gpuwarden.cli.reservation_columns import RESERVATIONS
from gpuwarden.cli.terminal import shown, table, visible
from gpuwarden.wire.v1 import placement_pb2 as pb


def reservations(
    *,
    node: str = "",
    namespace: Annotated[str, Parameter(name=["--namespace", "-n"])] = "",
    output: Output = Format.TABLE,
    connection: Connection = HERE,
) -> None:
    """List who holds which GPU: the reservations of the ledger, by namespace and pod.

    Parameters
    ----------
    node
        Only reservations on this node.
    namespace
        Only reservations of this namespace's pods.
    output
        How to print; `name` gives reservation ids only.
    connection
        How to reach the controller.

    """
    found = ask(connection, lambda asker: asker.reservations(node, namespace))
    sys.stdout.write(_text(sorted(found, key=_place), output))


def _place(one: pb.Reservation) -> tuple[str, str, str]:
    return one.namespace, one.pod, one.id


def _text(found: list[pb.Reservation], output: Format) -> str:
    if output in STRUCTURED:
        return structured({"reservations": [plain(x) for x in found]}, output)
    if output is Format.NAME:
        return "".join(f"{shown(x.id)}\n" for x in found)
    if not found:
        return "No reservations.\n"
    return table(visible(RESERVATIONS, wide=output is Format.WIDE), found)
