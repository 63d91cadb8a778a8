"""`gpuwarden nodes`: all nodes, once or as they change."""

import asyncio
import sys
from collections.abc import Callable
from typing import Annotated, Final

from cyclopts import Parameter

from gpuwarden.cli.client import Asker, ask
from gpuwarden.cli.fleet_columns import NODES
from gpuwarden.cli.options import HERE, Connection, Output
from gpuwarden.cli.output import STRUCTURED, Format, json_line, plain, structured
from gpuwarden.cli.terminal import cells, line, shown, table, visible, width
from gpuwarden.wire.v1 import fleet_pb2 as pb

_REMOVED: Final = "removed"


def nodes(
    *,
    watch: Annotated[bool, Parameter(name=["--watch", "-w"], negative="")] = False,
    output: Output = Format.TABLE,
    connection: Connection = HERE,
) -> None:
    """List the nodes of the fleet, with what their evidence proved.

    Parameters
    ----------
    watch
        Keep printing nodes as they change, until interrupted. JSON is one object per line.
    output
        How to print; `name` gives node names only.
    connection
        How to reach the controller.

    """
    if watch:
        ask(connection, lambda asker: _watch(asker, output))
        return
    fleet = ask(connection, lambda asker: asker.nodes())
    for warning in filter(None, (fleet.not_ready, *fleet.warnings)):
        sys.stderr.write(f"warning: {shown(warning)}\n")
    sys.stdout.write(_listed(fleet, output))


def _listed(fleet: pb.ListNodesResponse, output: Format) -> str:
    if output in STRUCTURED:
        return structured(plain(fleet), output)
    if output is Format.NAME:
        return "".join(f"{shown(node.name)}\n" for node in fleet.nodes)
    if not fleet.nodes:
        return "No nodes.\n"
    return table(visible(NODES, wide=output is Format.WIDE), fleet.nodes)


async def _watch(asker: Asker, output: Format) -> None:
    write = _writer(output)
    async for message in asker.watch():
        write(message)
        await asyncio.to_thread(sys.stdout.flush)


def _writer(output: Format) -> Callable[[pb.WatchNodesResponse], None]:
    if output is Format.NAME:
        return _write_name
    return _write_json if output in STRUCTURED else _Rows(wide=output is Format.WIDE)


def _write_name(message: pb.WatchNodesResponse) -> None:
    if not message.synced:
        sys.stdout.write(f"{shown(message.node.name)}\n")


def _write_json(message: pb.WatchNodesResponse) -> None:
    sys.stdout.write(json_line(plain(message)))


class _Rows:
    """Writes the initial nodes as a table, then one row per change under the same header."""

    def __init__(self, *, wide: bool) -> None:
        self._columns = visible(NODES, wide=wide)
        self._initial: list[tuple[str, ...]] = [tuple(column.title for column in self._columns)]
        self._widths: list[int] = []

    def __call__(self, message: pb.WatchNodesResponse) -> None:
        if message.synced:
            self._widths = [max(map(width, x)) for x in zip(*self._initial, strict=True)]
            for row in self._initial:
                self._write(row)
            return
        if message.removed:
            message.node.state = _REMOVED
        row = cells(self._columns, message.node)
        if self._widths:
            self._write(row)
        else:
            self._initial.append(row)

    def _write(self, row: tuple[str, ...]) -> None:
        sys.stdout.write(f"{line(row, self._widths)}\n")
