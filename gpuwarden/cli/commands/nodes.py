"""`gpuwarden nodes` and `gpuwarden node show|accept|quarantine|release`.

Accept and release send the version of the enrollment that was shown. The controller refuses
them when anything has changed since.
"""

import asyncio
import sys
from collections.abc import Callable
from typing import Annotated, Final

from cyclopts import Parameter

from gpuwarden.cli.client import Client, ask
from gpuwarden.cli.commands.gpus import GPUS
from gpuwarden.cli.exit_codes import CliError, ExitCode
from gpuwarden.cli.options import (
    HERE,
    AsRecordedBy,
    Connection,
    Output,
    Yes,
    check_person,
    demand_yes,
    note_who_acted,
)
from gpuwarden.cli.output import STRUCTURED, Format, json_line, plain, printed
from gpuwarden.cli.terminal import (
    Column,
    cells,
    duration,
    facts,
    joined,
    line,
    short_hash,
    shown,
    table,
    visible,
    width,
)
from gpuwarden.reasons import ReasonCode
from gpuwarden.wire.v1 import fleet_pb2 as pb
from gpuwarden.wire.v1 import operator_pb2 as ops

Answer = ops.AcceptNodeResponse | ops.QuarantineNodeResponse | ops.ReleaseNodeResponse

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


NODES: Final[tuple[Column[pb.Node], ...]] = (
    Column("NAME", lambda x: x.name),
    Column("STATE", lambda x: x.state),
    Column("LEVEL", lambda x: x.level),
    Column("GPUS", gpu_count),
    Column("PRODUCTS", lambda x: joined(x.products)),
    Column("CLASS", lambda x: short_hash(x.attestation_hash)),
    Column("FRESH", lambda x: duration(x.fresh_for_ms)),
    Column("REASON", lambda x: x.code),
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
    Column("NAMESPACE", lambda x: x.namespace),
    Column("POD", lambda x: x.pod),
    Column("CONTAINER", lambda x: x.container),
    Column("RESOURCE", lambda x: x.resource),
    Column("DEVICE", lambda x: x.device),
)
PROCESSES: Final[tuple[Column[pb.GpuProcess], ...]] = (
    Column("PROCESS", lambda x: str(x.pid)),
    Column("GPU", lambda x: x.gpu),
    Column("POD UID", lambda x: x.pod_uid),
)
CHANGES: Final[tuple[Column[pb.PinChange], ...]] = (
    Column("CHANGE", lambda x: x.change),
    Column("SUBJECT", lambda x: x.subject),
    Column("ENROLLED", lambda x: x.pinned),
    Column("OFFERED", lambda x: x.offered),
)


# --- list


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
        ask(connection, lambda client: _watch(client, output))
        return
    fleet = ask(connection, lambda client: client.nodes())
    for warning in filter(None, (fleet.not_ready, *fleet.warnings)):
        sys.stderr.write(f"warning: {shown(warning)}\n")
    columns = visible(NODES, wide=output is Format.WIDE)
    text = printed(
        fleet,
        output,
        names=(node.name for node in fleet.nodes),
        text=lambda: table(columns, fleet.nodes) if fleet.nodes else "No nodes.\n",
    )
    sys.stdout.write(text)


async def _watch(client: Client, output: Format) -> None:
    write = _writer(output)
    async for message in client.watch():
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
        text=lambda: _node_text(answer, wide=output is Format.WIDE),
    )
    sys.stdout.write(text)


def _node_text(answer: pb.GetNodeResponse, *, wide: bool) -> str:
    """A node for people: its facts, its GPUs, who uses them, its enrollment."""
    node = answer.node
    gpus = f"\n{table(visible(GPUS[1:], wide=wide), node.gpus)}" if node.gpus else ""
    enrollment = enrollment_text(answer.enrollment)
    return f"{facts(node_facts(node))}{gpus}{_use_text(answer)}\n{enrollment}"


def _use_text(answer: pb.GetNodeResponse) -> str:
    """Allocations of kubelet and processes that the driver knows, if the agent reported them."""
    if not answer.HasField("use"):
        return ""
    use = answer.use
    allocations = table(ALLOCATIONS, use.allocations) if use.allocations else "None.\n"
    processes = table(PROCESSES, use.processes) if use.processes else "None.\n"
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
        ("Accepted at", node.accepted_at),
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


def enrollment_text(enrollment: pb.Enrollment) -> str:
    """What is enrolled, whether and why the node is quarantined, and what it shows instead."""
    parts = [facts(_facts(enrollment))]
    if enrollment.HasField("candidate"):
        parts.append(changes_text(enrollment.candidate))
    return "\n".join(parts)


def changes_text(candidate: pb.Candidate) -> str:
    """What accepting would change, under a heading; what stays is counted."""
    heading = _LOST if candidate.code == ReasonCode.GPU_LOST else _WAITING
    changing = [x for x in candidate.changes if x.change != _KEPT]
    kept = len(candidate.changes) - len(changing)
    lines = table(CHANGES, changing) if changing else ""
    evidence = shown(candidate.evidence_digest[:16])
    return f"{heading}\n{lines}{kept} kept, shown by evidence {evidence}\n"


def _facts(enrollment: pb.Enrollment) -> tuple[tuple[str, str], ...]:
    denial = enrollment.denial
    quarantined = f"{denial.code} by {_who(denial.actor)} at {denial.at}: {denial.reason}"
    return (
        ("Enrolled", _enrolled(enrollment)),
        ("Enrolled node UID", enrollment.node_uid),
        ("Enrolled SPIRE agent", enrollment.spire_agent),
        ("Quarantined", quarantined if enrollment.HasField("denial") else ""),
        ("Faults", ", ".join(f"{x.gpu} xid {x.xid}" for x in enrollment.faults)),
    )


def _enrolled(enrollment: pb.Enrollment) -> str:
    if not enrollment.gpus:
        return "nothing yet"
    enrolled = sum(x.enrolled for x in enrollment.gpus)
    return f"{len(enrollment.gpus)} GPUs, {enrolled} of them by an operator"


def _who(actor: str) -> str:
    return "the controller" if actor == "controller" else actor


# --- accept, quarantine, release


def accept(
    node: str,
    /,
    *,
    reason: str,
    as_recorded_by: AsRecordedBy = "",
    yes: Yes = False,
    if_version: str = "",
    output: Output = Format.TABLE,
    connection: Connection = HERE,
) -> None:
    """Accept the hardware that a node shows, and end its quarantine.

    Parameters
    ----------
    node
        Name of the node.
    reason
        Why, for the audit log: 1 to 500 printable characters.
    as_recorded_by
        Who you are, for the audit log; recorded as a claim beside what is proven.
    yes
        Do not ask; programs should give --if-version too.
    if_version
        Act only if the enrollment still has this version, as `node show -o json` gives it.
    output
        How to print what was done; `name` gives the node's name.
    connection
        How to reach the controller.

    """
    check_person(as_recorded_by)
    found = _look(node, if_version, connection)
    if not found.HasField("candidate"):
        text = f"{shown(node)} shows no hardware that waits; to end a quarantine, release it"
        raise CliError(ExitCode.ERROR, text)
    demand_yes(f"Accept this hardware for {shown(node)}?", enrollment_text(found), yes=yes)
    done = ask(
        connection, lambda client: client.accept(node, reason, found.version, as_recorded_by)
    )
    note_who_acted(as_recorded_by, connection)
    count = len(done.enrollment.gpus)
    _print(node, done, output, f"{count} GPUs are enrolled; its next evidence makes it eligible")


def release(
    node: str,
    /,
    *,
    reason: str,
    as_recorded_by: AsRecordedBy = "",
    yes: Yes = False,
    if_version: str = "",
    output: Output = Format.TABLE,
    connection: Connection = HERE,
) -> None:
    """Release a node from quarantine, or its GPUs from faults; its enrollment stays.

    Parameters
    ----------
    node
        Name of the node.
    reason
        Why, for the audit log: 1 to 500 printable characters.
    as_recorded_by
        Who you are, for the audit log; recorded as a claim beside what is proven.
    yes
        Do not ask; programs should give --if-version too.
    if_version
        Act only if the enrollment still has this version, as `node show -o json` gives it.
    output
        How to print what was done; `name` gives the node's name.
    connection
        How to reach the controller.

    """
    check_person(as_recorded_by)
    found = _look(node, if_version, connection)
    if not found.HasField("denial") and not found.faults:
        text = f"{shown(node)} is not quarantined; see `gpuwarden explain node`"
        raise CliError(ExitCode.ERROR, text)
    what = "quarantine" if found.HasField("denial") else "the faults of its GPUs"
    demand_yes(f"Release {shown(node)} from {what}?", enrollment_text(found), yes=yes)
    done = ask(
        connection, lambda client: client.release(node, reason, found.version, as_recorded_by)
    )
    note_who_acted(as_recorded_by, connection)
    _print(node, done, output, f"released from {what}; its next evidence decides")


def quarantine(
    node: str,
    /,
    *,
    reason: str,
    as_recorded_by: AsRecordedBy = "",
    yes: Yes = False,
    output: Output = Format.TABLE,
    connection: Connection = HERE,
) -> None:
    """Quarantine a node until an operator releases it; running pods stay.

    Parameters
    ----------
    node
        Name of the node.
    reason
        Why, for the audit log and for whoever finds the node in quarantine.
    as_recorded_by
        Who you are, for the audit log; recorded as a claim beside what is proven.
    yes
        Do not ask.
    output
        How to print what was done; `name` gives the node's name.
    connection
        How to reach the controller.

    """
    check_person(as_recorded_by)
    demand_yes(f"Quarantine {shown(node)}?", "", yes=yes)
    done = ask(connection, lambda client: client.quarantine(node, reason, as_recorded_by))
    note_who_acted(as_recorded_by, connection)
    for warning in done.warnings:
        sys.stderr.write(f"warning: {shown(warning)}\n")
    _print(node, done, output, "no managed pod is placed there until an operator releases it")


def _look(node: str, if_version: str, connection: Connection) -> pb.Enrollment:
    found = ask(connection, lambda client: client.node(node)).enrollment
    if if_version and if_version != found.version:
        text = f"{shown(node)} has changed: its enrollment has version {shown(found.version)}"
        raise CliError(ExitCode.ERROR, text)
    return found


def _print(node: str, done: Answer, output: Format, text: str) -> None:
    said = f"{shown(node)}: {text}\n"
    sys.stdout.write(printed(done, output, names=(node,), text=lambda: said))
