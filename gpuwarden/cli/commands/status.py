"""`gpuwarden status`: the controller, its fleet in numbers, and everything that it warns of."""

import sys
from collections.abc import Iterable

from gpuwarden import __version__
from gpuwarden.cli.connection.options import HERE, Connection, Output
from gpuwarden.cli.connection.question import ask
from gpuwarden.cli.exit_codes import ExitCode
from gpuwarden.cli.text.output import Format, printed
from gpuwarden.cli.text.terminal import facts, joined, paragraph
from gpuwarden.wire.v1 import fleet_pb2 as pb

_ELIGIBLE = "eligible"


def status(*, output: Output = Format.TABLE, connection: Connection = HERE) -> ExitCode:
    """Show the controller and its fleet in numbers; exits with 3 if something is wrong.

    Parameters
    ----------
    output
        How to print; `name` gives the name of the replica that answers.
    connection
        How to reach the controller.

    """
    found = ask(connection, lambda client: client.status())
    text = printed(found, output, names=(found.replica,), text=lambda: _text(found))
    sys.stdout.write(text)
    return ExitCode.FINDING if found.not_ready or found.alarms else ExitCode.OK


def _text(found: pb.GetStatusResponse) -> str:
    """Facts, then what needs somebody's eye, then the command that says more."""
    parts = [facts(_facts(found))]
    if found.warnings:
        parts.append("Warnings:\n" + _listed(found.warnings))
    if found.alarms:
        lines = (f"{x.node} reports {joined(x.codes)} against an audit log" for x in found.alarms)
        parts.append("Alarms:\n" + _listed(lines))
    out = [x.name for x in found.nodes if x.name != _ELIGIBLE]
    if out:
        states = " ".join(f"--state {name}" for name in out)
        parts.append(paragraph(f"Next: gpuwarden nodes {states}"))
    return "\n".join(parts)


def _facts(found: pb.GetStatusResponse) -> tuple[tuple[str, str], ...]:
    leads = ", the leader" if found.leads else ""
    differs = found.version != __version__
    return (
        ("Cluster", found.cluster),
        ("Replica", f"{found.replica}{leads}"),
        ("Replicas", ", ".join(found.replicas)),
        ("Version", f"{found.version}, protocol {found.protocol}"),
        ("This program", __version__ if differs else ""),
        ("Ready", f"no: {found.not_ready}" if found.not_ready else "yes"),
        ("Enforcement", found.enforcement),
        ("Protection", found.protection),
        ("Nodes", _counted(found.nodes)),
        ("GPUs", _counted(found.gpus)),
        ("Agents", ", ".join(f"{x.count} of version {x.name}" for x in found.agents)),
    )


def _counted(counts: Iterable[pb.Count]) -> str:
    found = list(counts)
    parts = ", ".join(f"{x.count} {x.name}" for x in found)
    return f"{sum(x.count for x in found)}: {parts}" if found else "none"


def _listed(lines: Iterable[str]) -> str:
    return "".join(paragraph(line, first="  ", indent=2) for line in lines)
