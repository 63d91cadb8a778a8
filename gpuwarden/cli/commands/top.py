"""`gpuwarden top`: the fleet at one look, again and again on a terminal."""

import asyncio
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from gpuwarden.cli.commands.use import owner
from gpuwarden.cli.connection.options import HERE, Connection, Output
from gpuwarden.cli.connection.question import ask
from gpuwarden.cli.exit_codes import CliError, ExitCode
from gpuwarden.cli.text.output import STRUCTURED, Format, json_line, plain, printed
from gpuwarden.cli.text.screen import ago, on_screen, time_of_day
from gpuwarden.cli.text.tables import Column, Tone
from gpuwarden.cli.text.terminal import paragraph, short_uuid
from gpuwarden.reasons import ReasonCode
from gpuwarden.wire.v1 import fleet_pb2, placement_pb2

if TYPE_CHECKING:
    from gpuwarden.cli.connection.client import Client

_CLEAR: Final = "\x1b[H\x1b[2J"
_LEAST_S: Final = 0.5
_FEW: Final = 5
"""Lines of each list that asks for attention."""
_OUT: Final = ("lost", "unhealthy", "unavailable", "unknown")
_TONES: Final = {"eligible": Tone.GOOD, "stale": Tone.DOUBTFUL, "unknown": Tone.DOUBTFUL}


@dataclass(frozen=True, slots=True)
class Row:
    """One node with its GPUs by state."""

    node: fleet_pb2.Node
    gpus: Mapping[str, int]
    idle: int

    def count(self, *states: str) -> str:
        """GPUs in any of the states."""
        return str(sum(self.gpus.get(x, 0) for x in states))


NODES: Final[tuple[Column[Row], ...]] = (
    Column("NODE", lambda x: x.node.name, is_name=True),
    Column("STATE", lambda x: x.node.state, tone=lambda x: _TONES.get(x.node.state, Tone.BAD)),
    Column("GPUS", lambda x: str(sum(x.gpus.values()))),
    Column("FREE", lambda x: x.count("free")),
    Column("RESERVED", lambda x: x.count("reserved", "split")),
    Column("IDLE", lambda x: str(x.idle)),
    Column("USED", lambda x: x.count("used")),
    Column("OUT", lambda x: x.count(*_OUT)),
    Column("SEEN", lambda x: ago(x.node.accepted_at), wide=True),
    Column("REASON", lambda x: x.node.code),
)


@dataclass(frozen=True, slots=True)
class Look:
    """What one round of questions gave."""

    nodes: fleet_pb2.ListNodesResponse
    gpus: fleet_pb2.ListGpusResponse
    use: placement_pb2.ListUseResponse

    @property
    def plain(self) -> dict[str, Any]:
        """For programs."""
        return {
            "nodes": [plain(x) for x in self.nodes.nodes],
            "gpus": [plain(x) for x in self.gpus.gpus],
            "use": plain(self.use),
        }


def top(
    *,
    interval: float = 2.0,
    once: Annotated[bool, Parameter(negative="")] = False,
    output: Output = Format.TABLE,
    connection: Connection = HERE,
) -> None:
    """Show nodes, GPUs and what needs attention, again and again until Ctrl-C.

    Parameters
    ----------
    interval
        Seconds between two looks; 0.5 or more.
    once
        Look once. Without a terminal that is the default.
    output
        How to print; JSON is one object per line, `name` gives the nodes that are not eligible.
    connection
        How to reach the controller.

    """
    if not interval >= _LEAST_S:
        raise CliError(ExitCode.USAGE, f"--interval: expected {_LEAST_S} or more, got {interval}")
    goes_on = sys.stdout.isatty() and not once
    ask(connection, lambda client: _look_on(client, interval if goes_on else None, output))


async def _look_on(client: "Client", interval: float | None, output: Format) -> None:
    while True:
        look = await _look(client)
        before = _CLEAR if interval is not None and output not in STRUCTURED else ""
        sys.stdout.write(before + _printed(look, output))
        sys.stdout.flush()
        if interval is None:
            return
        await asyncio.sleep(interval)


async def _look(client: "Client") -> Look:
    nodes, gpus = await client.nodes(), await client.gpus("")
    try:
        use = await client.use("")
    except CliError as error:
        if ReasonCode.LEDGER_UNAVAILABLE.value not in str(error):
            raise
        use = placement_pb2.ListUseResponse()
    return Look(nodes, gpus, use)


def _printed(look: Look, output: Format) -> str:
    if output is Format.JSON:
        return json_line(look.plain)
    out = (x.name for x in look.nodes.nodes if x.state != "eligible")
    return printed(look.plain, output, names=out, text=lambda: text_of(look, output))


def rows(look: Look) -> list[Row]:
    """Nodes, those that need somebody first."""
    gpus: dict[str, Counter[str]] = {}
    for gpu in look.gpus.gpus:
        gpus.setdefault(gpu.node, Counter())[gpu.state] += 1
    idle = Counter(node for node, _ in {(x.node, x.gpu) for x in look.use.idle})
    found = [Row(x, gpus.get(x.name, Counter()), idle[x.name]) for x in look.nodes.nodes]
    return sorted(found, key=lambda x: (x.node.state == "eligible", x.node.name))


def text_of(look: Look, output: Format) -> str:
    """Totals, then what needs attention, then the nodes."""
    nodes = Counter(x.state for x in look.nodes.nodes)
    gpus = Counter(x.state for x in look.gpus.gpus)
    parts = [
        f"gpuwarden {time_of_day()}\n",
        paragraph(f"Nodes: {_counted(nodes)}"),
        paragraph(f"GPUs: {_counted(gpus)}"),
    ]
    if look.nodes.not_ready:
        parts.append(paragraph(f"Not ready: {look.nodes.not_ready}"))
    parts += [
        _few("Used otherwise than reserved", look.use.fault_count, map(_fault, look.use.faults)),
        _few("Reserved and idle", look.use.idle_count, map(_idle, look.use.idle)),
    ]
    table = on_screen(NODES, rows(look), output)
    return "".join(filter(None, parts)) + (f"\n{table}" if table else "")


def _counted(counts: Counter[str]) -> str:
    parts = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    return f"{counts.total()}: {parts}" if parts else "none"


def _few(title: str, count: int, lines: Iterable[str]) -> str:
    if not count:
        return ""
    some = list(lines)[:_FEW]
    more = f"  and {count - len(some)} more: gpuwarden use\n" if count > len(some) else ""
    listed = "".join(paragraph(x, first="  ", indent=4) for x in some)
    return f"{title}: {count}\n{listed}{more}"


def _fault(one: placement_pb2.UseFault) -> str:
    gpu = f" {short_uuid(one.gpu)}" if one.gpu else ""
    return f"{one.kind} on {one.node}{gpu} for {ago(one.since)}: {owner(one)}"


def _idle(one: placement_pb2.IdleGpu) -> str:
    return f"{one.namespace}/{one.pod} on {one.node} {short_uuid(one.gpu)} for {ago(one.since)}"
