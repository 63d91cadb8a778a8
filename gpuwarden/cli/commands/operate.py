"""`gpuwarden node accept|quarantine|release`: what only an operator may do, shown and asked first.

What is sent is a decision about exactly what was shown: the controller refuses it when
anything has changed since.
"""

import sys

from gpuwarden.cli.client import ask
from gpuwarden.cli.confirmation import Yes, demand_yes
from gpuwarden.cli.enrollment_text import enrollment_text
from gpuwarden.cli.options import HERE, Connection, Output
from gpuwarden.cli.outcome import CliError, ExitCode
from gpuwarden.cli.output import STRUCTURED, Format, plain, structured
from gpuwarden.cli.terminal import shown
from gpuwarden.wire.v1 import fleet_pb2 as pb
from gpuwarden.wire.v1 import operator_pb2 as ops

Answer = ops.AcceptNodeResponse | ops.QuarantineNodeResponse | ops.ReleaseNodeResponse


def accept(
    node: str,
    /,
    *,
    reason: str,
    yes: Yes = False,
    if_version: str = "",
    output: Output = Format.TABLE,
    connection: Connection = HERE,
) -> None:
    """Make the hardware that a node shows its pins, and end its denial.

    Shows what would change and asks first. The node is eligible again with its next evidence.

    Parameters
    ----------
    node
        Name of the node.
    reason
        Why, for the audit log: 1 to 500 printable characters.
    yes
        Do not ask; for programs, which had better give --if-version too.
    if_version
        Only if the enrolment still has this version, as `node show -o json` gives it.
    output
        How to print what was done; `name` gives the node's name.
    connection
        How to reach the controller.

    """
    found = _look(node, if_version, connection)
    if not found.HasField("candidate"):
        text = f"{shown(node)} shows no hardware that waits to be accepted; see `node release`"
        raise CliError(ExitCode.ERROR, text)
    demand_yes(f"Make this the hardware of {shown(node)}?", enrollment_text(found), yes=yes)
    done = ask(connection, lambda asker: asker.accept(node, reason, found.version))
    count = len(done.enrollment.gpus)
    _print(node, done, output, f"{count} GPUs are pinned, its next evidence lets it back in")


def release(
    node: str,
    /,
    *,
    reason: str,
    yes: Yes = False,
    if_version: str = "",
    output: Output = Format.TABLE,
    connection: Connection = HERE,
) -> None:
    """End the denial of a node; its pins stay.

    For a denial that was wrong or whose cause is gone. A node whose hardware is still not
    the pinned one is denied again by its next evidence.

    Parameters
    ----------
    node
        Name of the node.
    reason
        Why, for the audit log: 1 to 500 printable characters.
    yes
        Do not ask; for programs, which had better give --if-version too.
    if_version
        Only if the enrolment still has this version, as `node show -o json` gives it.
    output
        How to print what was done; `name` gives the node's name.
    connection
        How to reach the controller.

    """
    found = _look(node, if_version, connection)
    if not found.HasField("denial"):
        raise CliError(ExitCode.ERROR, f"{shown(node)} is not denied; see `explain node`")
    demand_yes(f"Let {shown(node)} try again?", enrollment_text(found), yes=yes)
    done = ask(connection, lambda asker: asker.release(node, reason, found.version))
    _print(node, done, output, "the denial has ended, its next evidence decides")


def quarantine(
    node: str,
    /,
    *,
    reason: str,
    yes: Yes = False,
    output: Output = Format.TABLE,
    connection: Connection = HERE,
) -> None:
    """Take a node out until an operator lets it back in; running pods stay.

    Parameters
    ----------
    node
        Name of the node.
    reason
        Why, for the audit log and for whoever finds the node shut out.
    yes
        Do not ask.
    output
        How to print what was done; `name` gives the node's name.
    connection
        How to reach the controller.

    """
    demand_yes(f"Take {shown(node)} out?", "", yes=yes)
    done = ask(connection, lambda asker: asker.quarantine(node, reason))
    for warning in done.warnings:
        sys.stderr.write(f"warning: {shown(warning)}\n")
    _print(node, done, output, "no guarded pod is placed there until an operator lets it back in")


def _look(node: str, if_version: str, connection: Connection) -> pb.Enrollment:
    found = ask(connection, lambda asker: asker.node(node)).enrollment
    if if_version and if_version != found.version:
        text = f"{shown(node)} has changed: its enrolment has version {shown(found.version)}"
        raise CliError(ExitCode.ERROR, text)
    return found


def _print(node: str, done: Answer, output: Format, text: str) -> None:
    if output in STRUCTURED:
        sys.stdout.write(structured(plain(done), output))
    elif output is Format.NAME:
        sys.stdout.write(f"{shown(node)}\n")
    else:
        sys.stdout.write(f"{shown(node)}: {text}\n")
