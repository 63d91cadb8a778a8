"""`gpuwarden node show`: what the last accepted evidence of a node proved, and what is pinned."""

import sys

from gpuwarden.cli.client import ask
from gpuwarden.cli.enrollment_text import enrollment_text
from gpuwarden.cli.fleet_columns import (
    ALLOCATIONS,
    GPUS,
    PROCESSES,
    duration,
    gpu_count,
    guarantee,
)
from gpuwarden.cli.options import HERE, Connection, Output
from gpuwarden.cli.output import STRUCTURED, Format, plain, structured
from gpuwarden.cli.terminal import facts, shown, table, visible
from gpuwarden.wire.v1 import fleet_pb2 as pb


def show(node: str, /, *, output: Output = Format.TABLE, connection: Connection = HERE) -> None:
    """Show one node, its GPUs, who uses them, what is pinned, and what waits for an operator.

    Parameters
    ----------
    node
        Name of the node.
    output
        How to print.
    connection
        How to reach the controller.

    """
    answer = ask(connection, lambda asker: asker.node(node))
    found = answer.node
    if output in STRUCTURED:
        parts = {"enrollment": plain(answer.enrollment), "use": plain(answer.use)}
        sys.stdout.write(structured({**plain(found), **parts}, output))
    elif output is Format.NAME:
        sys.stdout.write(f"{shown(found.name)}\n")
    else:
        sys.stdout.write(node_text(found, wide=output is Format.WIDE))
        sys.stdout.write(use_text(answer))
        sys.stdout.write(f"\n{enrollment_text(answer.enrollment)}")


def node_text(node: pb.Node, *, wide: bool) -> str:
    """A node for people: its facts, then its GPUs."""
    gpus = table(visible(GPUS[1:], wide=wide), node.gpus) if node.gpus else ""
    return facts(node_facts(node)) + (f"\n{gpus}" if gpus else "")


def use_text(answer: pb.GetNodeResponse) -> str:
    """What kubelet has given away and which processes the driver knows, where it was read."""
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
    """What is said about a node, by name."""
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
