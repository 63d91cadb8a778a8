"""`gpuwarden explain node`: why a node is or is not eligible, and what to do about it."""

import sys

from gpuwarden.cli.client import ask
from gpuwarden.cli.commands.node import node_facts
from gpuwarden.cli.enrollment_text import changes_text
from gpuwarden.cli.fleet_columns import REFUSALS
from gpuwarden.cli.options import HERE, Connection, Output
from gpuwarden.cli.output import STRUCTURED, Format, plain, structured
from gpuwarden.cli.terminal import facts, shown, table
from gpuwarden.reason_texts import EXPLANATIONS
from gpuwarden.reasons import ReasonCode
from gpuwarden.wire.v1 import fleet_pb2 as pb


def node(name: str, /, *, output: Output = Format.TABLE, connection: Connection = HERE) -> None:
    """Explain why a node is or is not eligible: its findings, refusals and pins.

    Parameters
    ----------
    name
        Name of the node.
    output
        How to print; `name` gives the reason codes of its last refusals.
    connection
        How to reach the controller.

    """
    found = ask(connection, lambda asker: asker.explanation(name))
    if output in STRUCTURED:
        sys.stdout.write(structured(plain(found), output))
    elif output is Format.NAME:
        sys.stdout.write("".join(f"{shown(refusal.code)}\n" for refusal in found.refusals))
    else:
        sys.stdout.write(_text(found))


def _text(found: pb.ExplainNodeResponse) -> str:
    parts = [facts((*node_facts(found.node), *_advice(found.node.code)))]
    if found.findings:
        parts.append("Findings:\n" + "".join(f"  {shown(one)}\n" for one in found.findings))
    if found.refusals:
        parts.append("Refusals, newest first:\n" + table(REFUSALS, found.refusals))
    if found.enrollment.HasField("candidate"):
        parts.append(changes_text(found.enrollment.candidate))
    if found.pin_document and found.pin_document != found.identity_document:
        parts.append(f"Pinned identity:\n  {shown(found.pin_document)}\n")
    if found.identity_document:
        parts.append(f"Identity of the last acceptance:\n  {shown(found.identity_document)}\n")
    return "\n".join(parts)


def _advice(code: str) -> tuple[tuple[str, str], ...]:
    if code not in set(ReasonCode):
        return ()
    text = EXPLANATIONS[ReasonCode(code)]
    return (("Cause", text.cause), ("What to do", text.remedy))
