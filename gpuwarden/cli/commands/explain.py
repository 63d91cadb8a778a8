"""`gpuwarden explain node|pod`: why a node or pod is in its state, and what to do."""

import sys
from typing import Final

from gpuwarden.cli.client import ask
from gpuwarden.cli.commands.nodes import changes_text, node_facts
from gpuwarden.cli.commands.reservations import RESERVATIONS
from gpuwarden.cli.exit_codes import CliError, ExitCode
from gpuwarden.cli.options import HERE, Connection, Namespace, Output
from gpuwarden.cli.output import Format, printed
from gpuwarden.cli.terminal import Column, facts, joined, shown, table, visible
from gpuwarden.reason_texts import EXPLANATIONS, Explanation
from gpuwarden.reasons import ReasonCode
from gpuwarden.wire.v1 import fleet_pb2 as pb
from gpuwarden.wire.v1 import placement_pb2

_SHOWN: Final = 80
_SHORT: Final = 16
_REPORT_ONLY: Final = (
    "report-only: gpuwarden refuses and reserves nothing; what follows is what it would do"
)
_BOUND, _WAITING = "bound", "waiting"

REFUSALS: Final[tuple[Column[pb.PastRefusal], ...]] = (
    Column("AT", lambda x: x.at),
    Column("STEP", lambda x: str(x.step) if x.step else ""),
    Column("CODE", lambda x: x.code),
    Column("COUNT", lambda x: str(x.count)),
    Column("DETAIL", lambda x: x.detail),
)
STAGES: Final[tuple[Column[placement_pb2.Station], ...]] = (
    Column("STAGE", lambda x: x.name),
    Column("STATE", lambda x: x.state),
    Column("AT", lambda x: x.at),
    Column("GPUS", lambda x: joined(x.gpus)),
    Column("SOURCE", lambda x: x.source),
    Column("EVIDENCE", lambda x: x.evidence_digest[:_SHORT]),
    Column("DIGEST", lambda x: x.evidence_digest, wide=True),
)
REJECTIONS: Final[tuple[Column[placement_pb2.Rejection], ...]] = (
    Column("NODES", lambda x: str(x.count)),
    Column("REASON", lambda x: x.code),
    Column("DETAIL", lambda x: x.detail),
    Column("FOR EXAMPLE", lambda x: joined(x.nodes)),
)
RECORDS: Final[tuple[Column[placement_pb2.PodRecord], ...]] = (
    Column("AT", lambda x: x.at),
    Column("RECORD", lambda x: str(x.seq)),
    Column("KIND", lambda x: x.kind),
    Column("DECISION", lambda x: x.decision),
    Column("REASONS", lambda x: joined(x.codes)),
    Column("NODE", lambda x: x.node),
    Column("GPUS", lambda x: joined(x.gpus)),
    Column("POD-UID", lambda x: x.uid, wide=True),
)


# --- node


def node(name: str, /, *, output: Output = Format.TABLE, connection: Connection = HERE) -> None:
    """Explain why a node is or is not eligible, and what to do.

    Parameters
    ----------
    name
        Name of the node.
    output
        How to print; `name` gives the reason codes of its last refusals.
    connection
        How to reach the controller.

    """
    found = ask(connection, lambda client: client.explanation(name))
    codes = (refusal.code for refusal in found.refusals)
    sys.stdout.write(printed(found, output, names=codes, text=lambda: _node_text(found)))


def _node_text(found: pb.ExplainNodeResponse) -> str:
    reason = _explanation(found.node.code)
    advice = (("Cause", reason.cause), ("What to do", reason.remedy)) if reason else ()
    parts = [facts((*node_facts(found.node), *advice))]
    if found.findings:
        parts.append("Findings:\n" + "".join(f"  {shown(one)}\n" for one in found.findings))
    if found.refusals:
        parts.append("Refusals, newest first:\n" + table(REFUSALS, found.refusals))
    if found.enrollment.HasField("candidate"):
        parts.append(changes_text(found.enrollment.candidate))
    if found.pin_document and found.pin_document != found.identity_document:
        parts.append(f"Enrolled identity:\n  {shown(found.pin_document)}\n")
    if found.identity_document:
        parts.append(f"Identity of the last acceptance:\n  {shown(found.identity_document)}\n")
    return "\n".join(parts)


def _explanation(code: str) -> Explanation | None:
    """None for no code, and for one that only a newer controller knows."""
    return EXPLANATIONS[ReasonCode(code)] if code in set(ReasonCode) else None


# --- pod


def pod(
    name: str,
    /,
    *,
    namespace: Namespace = "default",
    output: Output = Format.TABLE,
    connection: Connection = HERE,
) -> ExitCode:
    """Explain which GPUs a pod required and got, or why it waits; exits with 3 if it is wrong.

    Parameters
    ----------
    name
        The pod, as `NAMESPACE/NAME` or `NAME`.
    namespace
        Namespace of a pod that is given by its name alone.
    output
        How to print; `name` gives the reason codes for which nodes reject it now.
    connection
        How to reach the controller.

    """
    where, what = _parted(name, namespace)
    found = ask(connection, lambda client: client.account(where, what))
    codes = (*filter(None, (found.code,)), *(x.code for x in found.rejections))
    text = printed(
        found,
        output,
        names=dict.fromkeys(codes),
        text=lambda: _pod_text(found, wide=output is Format.WIDE),
    )
    sys.stdout.write(text)
    refused = found.code or not found.passing
    stuck = _waits(found) and found.guarded and refused and not found.report_only
    return ExitCode.FINDING if found.wrong or stuck else ExitCode.OK


def _parted(name: str, namespace: str) -> tuple[str, str]:
    before, slash, after = name.partition("/")
    where, what = (before, after) if slash else (namespace, before)
    if not where or not what or "/" in what:
        text = f"expected NAMESPACE/NAME or NAME, got '{shown(name[:_SHOWN])}'"
        raise CliError(ExitCode.USAGE, text)
    return where, what


def _waits(found: placement_pb2.ExplainPodResponse) -> bool:
    """Whether the pod is there and bound to no node yet."""
    return any(x.name == _BOUND and x.state == _WAITING for x in found.stations)


def _pod_text(found: placement_pb2.ExplainPodResponse, *, wide: bool) -> str:
    """Facts, stages and findings of the pod, why it waits, and its audit records."""
    parts = [facts(_head(found)), table(visible(STAGES, wide=wide), found.stations)]
    lines = [f"  {shown(x.name)}: {shown(line)}\n" for x in found.stations for line in x.findings]
    if lines:
        parts.append("Findings:\n" + "".join(lines))
    if _waits(found) and found.guarded:
        parts.append(_waiting(found))
    if found.earlier:
        held = table(visible(RESERVATIONS, wide=wide), found.earlier)
        parts.append(f"Earlier pods of this name still hold:\n{held}")
    parts.append(_records(found, wide=wide))
    return "\n".join(parts)


def _head(found: placement_pb2.ExplainPodResponse) -> tuple[tuple[str, str], ...]:
    limit = f": {found.guarantee_limit}" if found.guarantee_limit else ""
    promise = f"{found.guarantee}{limit}" if found.guarantee else ""
    return (
        ("Pod", f"{found.namespace}/{found.name}"),
        ("UID", found.uid),
        ("Phase", found.phase or "gone"),
        ("Mode", _REPORT_ONLY if found.report_only else ""),
        ("Guarantee given", found.guarantee_given),
        ("Guarantee possible now" if _waits(found) else "Guarantee now", promise),
    )


def _waiting(found: placement_pb2.ExplainPodResponse) -> str:
    if found.code:
        would = "would be" if found.report_only else "is"
        refused = f"The pod {would} refused: {shown(found.code)} {shown(found.detail)}\n"
        return refused + _advice(found.code)
    some = f": {shown(joined(found.passing_nodes))}" if found.passing_nodes else ""
    head = f"Nodes that would pass now: {found.passing}{some}\n"
    if not found.rejections:
        return head
    advice = "" if found.passing else _advice(found.rejections[0].code)
    return f"{head}Rejected:\n{table(REJECTIONS, found.rejections)}{advice}"


def _advice(code: str) -> str:
    reason = _explanation(code)
    return f"What to do: {reason.remedy}\n" if reason else ""


def _records(found: placement_pb2.ExplainPodResponse, *, wide: bool) -> str:
    if not found.records_since:
        return "This replica's audit log cannot be read.\n"
    since = shown(found.records_since)
    if not found.records:
        return f"Nothing about it in this replica's audit log since {since}.\n"
    title = f"In this replica's audit log since {since}:\n"
    return title + table(visible(RECORDS, wide=wide), found.records)
