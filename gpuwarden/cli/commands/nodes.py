"""`gpuwarden nodes` and `gpuwarden node show`: the nodes, and what one of them is enrolled with."""

import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from gpuwarden.cli.commands.gpus import GPUS
from gpuwarden.cli.connection.options import (
    HERE,
    Connection,
    Output,
)
from gpuwarden.cli.connection.question import ask
from gpuwarden.cli.filters import STATE, ClassName, Labels, NodeState, choice
from gpuwarden.cli.text.output import STRUCTURED, Format, json_line, plain, printed
from gpuwarden.cli.text.screen import ago, has_colours, on_screen, room, time_of_day
from gpuwarden.cli.text.tables import Column, Layout, Tone, visible
from gpuwarden.cli.text.terminal import duration, facts, joined, short_hash, short_uuid, shown
from gpuwarden.counted import counted
from gpuwarden.reasons import ReasonCode
from gpuwarden.wire.v1 import fleet_pb2 as pb

if TYPE_CHECKING:
    from gpuwarden.cli.connection.client import Client

_KEPT: Final = "kept"
_WAITING: Final = "Waits for an operator:"
_LOST: Final = "Lost; to remove it from the enrollment, run `gpuwarden node accept`:"
_REMOVED: Final = "removed"
_SHORT: Final = 12


def gpu_count(node: pb.Node) -> str:
    """GPUs that answer, of all where some are lost."""
    if node.lost_gpu_count:
        return f"{node.gpu_count - node.lost_gpu_count}/{node.gpu_count}"
    return str(node.gpu_count)


def guarantee(node: pb.Node) -> str:
    """The strongest guarantee that the node can give, and why no stronger one."""
    if not node.guarantee_limit:
        return node.guarantee
    return f"{node.guarantee}, no more: {node.guarantee_limit}"


_TONES: Final = {"eligible": Tone.GOOD, "stale": Tone.DOUBTFUL, "unknown": Tone.DOUBTFUL}
_OF_LISTS: Final = frozenset({"LEVEL", "CLASS", "SEEN"})
"""Left out beside the time of a change, so that a line has room for the reason."""
NODES: Final[tuple[Column[pb.Node], ...]] = (
    Column("NAME", lambda x: x.name, is_name=True),
    Column("STATE", lambda x: x.state, tone=lambda x: _TONES.get(x.state, Tone.BAD)),
    Column("LEVEL", lambda x: x.level),
    Column("GPUS", gpu_count),
    Column("CLASS", lambda x: short_hash(x.attestation_hash)),
    Column("SEEN", lambda x: ago(x.accepted_at)),
    Column("REASON", lambda x: x.code),
    Column("PRODUCTS", lambda x: joined(x.products), wide=True),
    Column("FRESH", lambda x: duration(x.fresh_for_ms), wide=True),
    Column("DRIVER", lambda x: x.driver, wide=True),
    Column("CUDA", lambda x: x.cuda, wide=True),
    Column("CC", lambda x: x.cc, wide=True),
    Column("ARCH", lambda x: x.arch, wide=True),
    Column("MODE", lambda x: x.mode, wide=True),
    Column("GUARANTEE", guarantee, wide=True),
    Column("AGENT", lambda x: x.agent_version, wide=True),
    Column("EVIDENCE", lambda x: x.evidence_digest[:_SHORT], wide=True),
    Column("DETAIL", lambda x: x.detail, wide=True),
)
ALLOCATIONS: Final[tuple[Column[pb.Allocation], ...]] = (
    Column("NAMESPACE", lambda x: x.namespace, is_name=True),
    Column("POD", lambda x: x.pod, is_name=True),
    Column("CONTAINER", lambda x: x.container, is_name=True),
    Column("RESOURCE", lambda x: x.resource, is_name=True),
    Column("FULL-DEVICE", lambda x: x.device, wide=True),
    Column("DEVICE", lambda x: short_uuid(x.uuid) if x.uuid else x.device),
)
PROCESSES: Final[tuple[Column[pb.GpuProcess], ...]] = (
    Column("PROCESS", lambda x: str(x.pid)),
    Column("GPU", lambda x: short_uuid(x.gpu)),
    Column("POD-UID", lambda x: x.pod_uid),
    Column("FULL-GPU", lambda x: x.gpu, wide=True),
)
CHANGES: Final[tuple[Column[pb.EnrollmentChange], ...]] = (
    Column("CHANGE", lambda x: x.change),
    Column("SUBJECT", lambda x: x.subject),
    Column("ENROLLED", lambda x: x.enrolled),
    Column("OFFERED", lambda x: x.offered),
)


# --- list


def nodes(
    *,
    state: Annotated[list[NodeState] | None, STATE] = None,
    class_: ClassName = "",
    label: Labels = None,
    watch: Annotated[bool, Parameter(name=["--watch", "-w"], negative="")] = False,
    output: Output = Format.TABLE,
    connection: Connection = HERE,
) -> None:
    """List the nodes of the fleet, with what their evidence proved.

    Parameters
    ----------
    state
        Only nodes in this state; may be repeated.
    class_
        Only nodes of this class: a hash, at least 8 of its hex digits, or a name from policy.
    label
        Only nodes that have a GPU with this label from policy; with several, one GPU has all.
    watch
        Keep printing nodes as they change, until interrupted. JSON is one object per line.
    output
        How to print; `name` gives node names only.
    connection
        How to reach the controller.

    """
    if watch:
        ask(connection, lambda client: _watch(client, output, (state, class_, label)))
        return

    async def find(client: "Client") -> pb.ListNodesResponse:
        wanted = await choice(client, state, class_, label)
        found = await client.nodes()
        chosen = [node for node in found.nodes if wanted.admits_node(node)]
        return pb.ListNodesResponse(
            nodes=chosen, not_ready=found.not_ready, warnings=found.warnings
        )

    fleet = ask(connection, find)
    if fleet.not_ready:
        sys.stderr.write(f"warning: nothing is decided yet: {shown(fleet.not_ready)}\n")
    text = printed(
        fleet,
        output,
        names=(node.name for node in fleet.nodes),
        text=lambda: on_screen(NODES, fleet.nodes, output) or "No nodes.\n",
    )
    sys.stdout.write(text)


_Asked = tuple[list[NodeState] | None, str, list[str] | None]


async def _watch(client: "Client", output: Format, asked: _Asked) -> None:
    write, wanted = _writer(output), await choice(client, *asked)
    shown_names: set[str] = set()
    async for message in client.watch():
        # A node that leaves the choice is shown once more: that is a change, too.
        name, admitted = message.node.name, wanted.admits_node(message.node)
        if message.synced or admitted or name in shown_names:
            write(message)
            await asyncio.to_thread(sys.stdout.flush)
        if admitted:
            shown_names.add(name)
        else:
            shown_names.discard(name)


def _writer(output: Format) -> Callable[[pb.WatchNodesResponse], None]:
    if output is Format.NAME:
        return _write_name
    return _write_json if output in STRUCTURED else _Rows(output)


def _write_name(message: pb.WatchNodesResponse) -> None:
    if not message.synced:
        sys.stdout.write(f"{shown(message.node.name)}\n")


def _write_json(message: pb.WatchNodesResponse) -> None:
    sys.stdout.write(json_line(plain(message)))


class _Rows:
    """Writes the initial nodes as a table, then one row per change under the same header.

    Each row begins with the time at which it was printed.
    """

    def __init__(self, output: Format) -> None:
        at: Column[pb.Node] = Column("TIME", lambda _: time_of_day())
        wide = output is Format.WIDE
        columns = visible(NODES, wide=wide)
        self._columns = [at, *(x for x in columns if wide or x.title not in _OF_LISTS)]
        self._output = output
        self._initial: list[pb.Node] = []
        self._layout: Layout[pb.Node] | None = None

    def __call__(self, message: pb.WatchNodesResponse) -> None:
        if message.synced:
            self._layout = Layout(
                self._columns, self._initial, colours=has_colours(), most=room(self._output)
            )
            lines = map(self._layout.line, self._initial)
            sys.stdout.write(self._layout.heading() + "".join(lines))
            return
        if message.removed:
            message.node.state = _REMOVED
        if self._layout is None:
            self._initial.append(message.node)
        else:
            sys.stdout.write(self._layout.line(message.node))


# --- show


def show(node: str, /, *, output: Output = Format.TABLE, connection: Connection = HERE) -> None:
    """Show one node, its GPUs, their use and its enrollment.

    Parameters
    ----------
    node
        Name of the node.
    output
        How to print.
    connection
        How to reach the controller.

    """
    answer = ask(connection, lambda client: client.node(node))
    parts = {"enrollment": plain(answer.enrollment), "use": plain(answer.use)}
    text = printed(
        {**plain(answer.node), **parts},
        output,
        names=(answer.node.name,),
        text=lambda: _node_text(answer, output),
    )
    sys.stdout.write(text)


def _node_text(answer: pb.GetNodeResponse, output: Format) -> str:
    """A node for people: its facts, its GPUs, who uses them, its enrollment."""
    node = answer.node
    gpus = f"\n{on_screen(GPUS[1:], node.gpus, output)}" if node.gpus else ""
    enrollment = enrollment_text(answer.enrollment, output)
    return f"{facts(node_facts(node))}{gpus}{_use_text(answer, output)}\n{enrollment}"


def _use_text(answer: pb.GetNodeResponse, output: Format) -> str:
    """Allocations of kubelet and processes that the driver knows, if the agent reported them."""
    if not answer.HasField("use"):
        return ""
    use = answer.use
    allocations = on_screen(ALLOCATIONS, use.allocations, output) or "None.\n"
    processes = on_screen(PROCESSES, use.processes, output) or "None.\n"
    parts = (
        ("Allocated by kubelet", allocations if use.allocations_read else "Not read.\n"),
        ("Processes on GPUs", processes if use.processes_read else "Not read.\n"),
    )
    return "".join(f"\n{title}:\n{text}" for title, text in parts)


def node_facts(node: pb.Node) -> tuple[tuple[str, str], ...]:
    """The facts of a node, by name."""
    return (
        ("Name", node.name),
        ("State", node.state),
        ("Reason", f"{node.code} {node.detail}".strip()),
        *(("Warning", warning) for warning in node.warnings),
        ("Level", node.level),
        ("Class", node.attestation_hash),
        ("Fresh for", duration(node.fresh_for_ms)),
        (
            "Accepted",
            f"{ago(node.accepted_at)} ago, {node.accepted_at}" if node.accepted_at else "",
        ),
        ("Mode", node.mode),
        ("Guarantee", guarantee(node)),
        ("GPUs", gpu_count(node) if node.accepted_at else ""),
        ("Driver", node.driver),
        ("CUDA", node.cuda),
        ("Confidential computing", node.cc),
        ("Architecture", node.arch),
        ("System UUID", node.system_uuid),
        ("Boot id", node.boot_id),
        ("Agent", f"{node.agent_version} instance {node.instance_id}" if node.instance_id else ""),
        ("Node identity", node.node_identity),
        ("Evidence", node.evidence_digest),
    )


def enrollment_text(enrollment: pb.Enrollment, output: Format = Format.WIDE) -> str:
    """What is enrolled, whether and why the node is quarantined, and what it shows instead.

    Whole, unless `output` says otherwise: what an operator approves is never cut.
    """
    parts = [facts(_facts(enrollment))]
    if enrollment.HasField("candidate"):
        parts.append(changes_text(enrollment.candidate, output))
    return "\n".join(parts)


def changes_text(candidate: pb.Candidate, output: Format) -> str:
    """What accepting would change, under a heading; what stays is counted."""
    heading = _LOST if candidate.code == ReasonCode.GPU_LOST else _WAITING
    changing = [x for x in candidate.changes if x.change != _KEPT]
    kept = len(candidate.changes) - len(changing)
    lines = on_screen(CHANGES, changing, output)
    evidence = shown(candidate.evidence_digest[:16])
    return f"{heading}\n{lines}{kept} kept, shown by evidence {evidence}\n"


def _facts(enrollment: pb.Enrollment) -> tuple[tuple[str, str], ...]:
    denial = enrollment.denial
    when = f"{ago(denial.at)} ago, {denial.at}"
    quarantined = f"{denial.code} by {who(denial.actor)} {when}: {denial.reason}"
    by, at = enrollment.previous_quarantine_ended_by, enrollment.previous_quarantine_at
    previous = f"{ago(at)} ago, {at}, ended by {by}"
    return (
        ("Enrolled", _enrolled(enrollment)),
        ("Enrolled node UID", enrollment.node_uid),
        ("Enrolled SPIRE agent", enrollment.spire_agent),
        ("Quarantined", quarantined if enrollment.HasField("denial") else ""),
        ("Previous quarantine", previous if by else ""),
        ("Faults", ", ".join(f"{x.gpu} xid {x.xid}" for x in enrollment.faults)),
    )


def _enrolled(enrollment: pb.Enrollment) -> str:
    if not enrollment.gpus:
        return "nothing yet"
    enrolled = sum(x.enrolled for x in enrollment.gpus)
    count = len(enrollment.gpus)
    return f"{counted(count, 'GPU')}, {enrolled} of them by an operator"


def who(actor: str) -> str:
    """Who has quarantined a node."""
    return "the controller" if actor == "controller" else actor
