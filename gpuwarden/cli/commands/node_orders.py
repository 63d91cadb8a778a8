"""`gpuwarden node accept|quarantine|release`: what an operator orders about a node.

Accept and release send the version of the enrollment that was shown. The controller refuses
them when anything has changed since.
"""

import sys

from gpuwarden.cli.commands.nodes import enrollment_text
from gpuwarden.cli.connection.options import (
    HERE,
    AsRecordedBy,
    Connection,
    Output,
    Yes,
    check_person,
    demand_yes,
    note_who_acted,
)
from gpuwarden.cli.connection.question import ask
from gpuwarden.cli.exit_codes import CliError, ExitCode
from gpuwarden.cli.text.output import Format, printed
from gpuwarden.cli.text.terminal import paragraph, shown
from gpuwarden.counted import counted
from gpuwarden.wire.v1 import fleet_pb2 as pb
from gpuwarden.wire.v1 import operator_pb2 as ops

Answer = ops.AcceptNodeResponse | ops.QuarantineNodeResponse | ops.ReleaseNodeResponse


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
    _print(
        node,
        done,
        output,
        f"{counted(count, 'GPU')} {'is' if count == 1 else 'are'} enrolled;"
        " its next evidence makes it eligible",
    )


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
        text = f"{shown(node)} is not quarantined; `gpuwarden explain node {shown(node)}` says more"
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
        sys.stderr.write(paragraph(warning, first="warning: "))
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
