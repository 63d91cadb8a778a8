"""`gpuwarden protection check`: which pods the taint of managed nodes evicts."""

import sys
from typing import Final

from gpuwarden.cli.connection.options import HERE, Connection, Output
from gpuwarden.cli.connection.question import ask
from gpuwarden.cli.exit_codes import ExitCode
from gpuwarden.cli.text.output import Format, plain, printed
from gpuwarden.cli.text.screen import on_screen
from gpuwarden.cli.text.tables import Column
from gpuwarden.counted import counted
from gpuwarden.wire.v1 import placement_pb2 as pb

EVICTED: Final[tuple[Column[pb.EvictedPod], ...]] = (
    Column("NODE", lambda x: x.node, is_name=True),
    Column("NAMESPACE", lambda x: x.namespace, is_name=True),
    Column("POD", lambda x: x.name, is_name=True),
    Column("EVICTED", lambda x: f"after {x.after_s}s" if x.after_s else "at once"),
)


def check(
    node: str = "", /, *, output: Output = Format.TABLE, connection: Connection = HERE
) -> ExitCode:
    """List the pods that the taint of managed nodes evicts; exits with 3 if there are any.

    Parameters
    ----------
    node
        Only pods on this node, also one without an agent; on all nodes of the fleet without it.
    output
        How to print; `name` gives NAMESPACE/NAME of the pods.
    connection
        How to reach the controller.

    """
    nodes, found = ask(connection, lambda client: client.evicted(node))
    none = f"No pod of {counted(nodes, 'node')} would be evicted.\n"
    text = printed(
        {"nodes": nodes, "pods": [plain(x) for x in found]},
        output,
        names=(f"{x.namespace}/{x.name}" for x in found),
        text=lambda: on_screen(EVICTED, found, output) or none,
    )
    sys.stdout.write(text)
    return ExitCode.FINDING if found else ExitCode.OK
