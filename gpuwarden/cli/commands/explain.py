"""`gpuwarden explain node|pod`: why a node or pod is in its state, and what to do."""

import sys
from collections.abc import Iterable
from typing import Final

from gpuwarden.cli.commands.classes import class_change_text
from gpuwarden.cli.commands.nodes import changes_text, who
from gpuwarden.cli.commands.reservations import RESERVATIONS
from gpuwarden.cli.connection.options import HERE, Connection, Namespace, Output
from gpuwarden.cli.connection.question import ask
from gpuwarden.cli.exit_codes import CliError, ExitCode
from gpuwarden.cli.text.output import Format, printed
from gpuwarden.cli.text.pod_texts import explanation, named, of_first, refused, remedy, would_pass
from gpuwarden.cli.text.screen import ago, on_screen
from gpuwarden.cli.text.tables import Column, Tone
from gpuwarden.cli.text.terminal import facts, joined, paragraph, short_hash, short_uuid, shown
from gpuwarden.counted import counted
from gpuwarden.reasons import ReasonCode
from gpuwarden.wire.v1 import fleet_pb2 as pb
from gpuwarden.wire.v1 import placement_pb2

_SHOWN: Final = 80
_REASON: Final = '--reason "…"'
_SILENT: Final = frozenset({"unknown", "stale"})
_REPORT_ONLY: Final = (
    "report-only: gpuwarden refuses and reserves nothing; what follows is what it would do"
)
_BOUND, _WAITING = "bound", "waiting"

REFUSALS: Final[tuple[Column[pb.PastRefusal], ...]] = (
    Column("AGO", lambda x: ago(x.at)),
    Column("CODE", lambda x: x.code),
    Column("COUNT", lambda x: str(x.count)),
    Column("AT", lambda x: x.at, wide=True),
    Column("STEP", lambda x: str(x.step) if x.step else "", wide=True),
    Column("DETAIL", lambda x: x.detail),
)
_TONES: Final = {"reached": Tone.GOOD, "missing": Tone.BAD, "mismatch": Tone.BAD}
STAGES: Final[tuple[Column[placement_pb2.Stage], ...]] = (
    Column("STAGE", lambda x: x.name),
    Column("STATE", lambda x: x.state, tone=lambda x: _TONES.get(x.state)),
    Column("AGO", lambda x: ago(x.at)),
    Column("SOURCE", lambda x: x.source),
    Column("AT", lambda x: x.at, wide=True),
    Column("EVIDENCE", lambda x: x.evidence_digest, wide=True),
    Column("FULL-UUIDS", lambda x: joined(x.gpus), wide=True),
    Column("GPUS", lambda x: ", ".join(map(short_uuid, x.gpus))),
)


REJECTIONS: Final[tuple[Column[placement_pb2.Rejection], ...]] = (
    Column("NODES", lambda x: str(x.count)),
    Column("REASON", lambda x: x.code),
    Column("SOME", lambda x: joined(x.nodes), wide=True),
    Column("FOR-EXAMPLE", of_first),
)
RECORDS: Final[tuple[Column[placement_pb2.PodRecord], ...]] = (
    Column("AGO", lambda x: ago(x.at)),
    Column("RECORD", lambda x: str(x.seq)),
    Column("KIND", lambda x: x.kind),
    Column("DECISION", lambda x: x.decision),
    Column("NODE", lambda x: x.node, is_name=True),
    Column("AT", lambda x: x.at, wide=True),
    Column("GPUS", lambda x: joined(x.gpus), wide=True),
    Column("POD-UID", lambda x: x.uid, wide=True),
    Column("REASONS", lambda x: joined(x.codes)),
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
    sys.stdout.write(printed(found, output, names=codes, text=lambda: _node_text(found, output)))


def _node_text(found: pb.ExplainNodeResponse, output: Format) -> str:
    """How it stands and why, what to do and to type, and what has changed."""
    parts = [paragraph(_verdict(found)) + _node_lines(found)]
    parts.append(facts(_advice_of(found)) + _next_text(next_commands(found)))
    parts += [class_change_text("Its", one, output) for one in found.class_changes]
    if found.enrollment.HasField("candidate"):
        parts.append(changes_text(found.enrollment.candidate, output))
    if found.refusals:
        table = on_screen(REFUSALS, found.refusals, output)
        parts.append(f"Refusals, newest first:\n{table}")
    return "\n".join(filter(None, parts))


def _verdict(found: pb.ExplainNodeResponse) -> str:
    """Name, state, why and since when, in a line."""
    node, denial = found.node, found.enrollment.denial
    at = denial.at or next((x.at for x in found.refusals if x.code == node.code), "")
    by = f" by {who(denial.actor)}" if denial.actor else ""
    why = f": {node.code}" if node.code else ""
    since = f", {ago(at)} ago{by}" if node.code and at else ""
    return f"{node.name} is {node.state}{why}{since}"


def _node_lines(found: pb.ExplainNodeResponse) -> str:
    node, denial = found.node, found.enrollment.denial
    seen = f"accepted {ago(node.accepted_at)} ago" if node.accepted_at else ""
    proven = (
        node.level,
        f"class {short_hash(node.attestation_hash)}" if node.attestation_hash else "",
        counted(node.gpu_count, "GPU") if node.accepted_at else "",
        f"mode {node.mode}",
        seen,
    )
    lines = (node.detail, denial.reason, ", ".join(filter(None, proven)))
    every = dict.fromkeys(filter(None, (*lines, *found.findings, *node.warnings)))
    return "".join(paragraph(one, first="  ", indent=2) for one in every)


def _advice_of(found: pb.ExplainNodeResponse) -> tuple[tuple[str, str], ...]:
    reason, name = explanation(found.node.code), found.node.name
    return (("Cause", reason.cause), ("What to do", named(reason.remedy, name))) if reason else ()


def _next_text(commands: Iterable[tuple[str, str]]) -> str:
    """Each command on a line of its own, so that it can be copied."""
    lines = "".join(
        paragraph(when, first="  ", indent=2) + f"    {shown(text)}\n" for text, when in commands
    )
    return f"Next:\n{lines}" if lines else ""


def next_commands(found: pb.ExplainNodeResponse) -> tuple[tuple[str, str], ...]:
    """What an operator may want to type now, and when it is right."""
    name, enrollment = found.node.name, found.enrollment
    accept = f"gpuwarden node accept {name} {_REASON}"
    release = f"gpuwarden node release {name} {_REASON}"
    is_lost = enrollment.candidate.code == ReasonCode.GPU_LOST
    if is_lost:
        return ((accept, "where the GPU is gone for good:"),)
    if enrollment.HasField("denial") and enrollment.HasField("candidate"):
        return (
            (accept, "where the new hardware is meant to be there:"),
            (release, "where the enrolled hardware is back:"),
        )
    if enrollment.HasField("denial"):
        return ((release, "once its cause is gone:"),)
    if enrollment.faults:
        return ((release, "once the GPU was reset:"),)
    if found.node.state in _SILENT:
        text = f"kubectl get pods -A -o wide --field-selector spec.nodeName={name}"
        return ((text, "to see whether its agent runs:"),)
    return ()


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
    where, what = parted(name, namespace)
    found = ask(connection, lambda client: client.account(where, what))
    codes = (*filter(None, (found.code,)), *(x.code for x in found.rejections))
    text = printed(
        found,
        output,
        names=dict.fromkeys(codes),
        text=lambda: _pod_text(found, output),
    )
    sys.stdout.write(text)
    return ExitCode.FINDING if is_finding(found) else ExitCode.OK


def is_finding(found: placement_pb2.ExplainPodResponse) -> bool:
    """Whether the pod is wrong, or waits and no node would pass now."""
    refused = found.code or not found.passing
    stuck = waits(found) and found.managed and refused and not found.report_only
    return bool(found.wrong or stuck)


def parted(name: str, namespace: str) -> tuple[str, str]:
    """Namespace and name of a pod that is given as an argument; raises CliError."""
    before, slash, after = name.partition("/")
    where, what = (before, after) if slash else (namespace, before)
    if not where or not what or "/" in what:
        text = f"expected NAMESPACE/NAME or NAME, got '{shown(name[:_SHOWN])}'"
        raise CliError(ExitCode.USAGE, text)
    return where, what


def waits(found: placement_pb2.ExplainPodResponse) -> bool:
    """Whether the pod is there and bound to no node yet."""
    return any(x.name == _BOUND and x.state == _WAITING for x in found.stages)


def _pod_text(found: placement_pb2.ExplainPodResponse, output: Format) -> str:
    """Facts, stages and findings of the pod, why it waits, and its audit records."""
    parts = [facts(_head(found)), on_screen(STAGES, found.stages, output)]
    lines = [f"{x.name}: {line}" for x in found.stages for line in x.findings]
    if lines:
        text = "".join(paragraph(line, first="  ", indent=2) for line in lines)
        parts.append(f"Findings:\n{text}")
    if waits(found) and found.managed:
        parts.append(_waiting(found, output))
    if found.earlier:
        held = on_screen(RESERVATIONS, found.earlier, output)
        parts.append(f"Earlier pods of this name still hold:\n{held}")
    parts.append(_records(found, output))
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
        ("Guarantee possible now" if waits(found) else "Guarantee now", promise),
    )


def _waiting(found: placement_pb2.ExplainPodResponse, output: Format) -> str:
    if found.code:
        text = refused(found.code, found.detail, report_only=found.report_only)
        return paragraph(f"The pod {text}") + _advice(found.code)
    head = paragraph(would_pass(found))
    if not found.rejections:
        return head
    first = found.rejections[0]
    advice = "" if found.passing else _advice(first.code, "".join(first.nodes[:1]))
    below = f"\n{advice}" if advice else ""
    return f"{head}Rejected:\n{on_screen(REJECTIONS, found.rejections, output)}{below}"


def _advice(code: str, node: str = "") -> str:
    text = remedy(code, node)
    return paragraph(f"What to do: {text}") if text else ""


def _records(found: placement_pb2.ExplainPodResponse, output: Format) -> str:
    if not found.records_since:
        return "This replica's audit log cannot be read.\n"
    since = f"{ago(found.records_since)} ago, {found.records_since}"
    if not found.records:
        return paragraph(f"Nothing about it in this replica's audit log since {since}.")
    title = paragraph(f"In this replica's audit log since {since}:")
    return title + on_screen(RECORDS, found.records, output)
