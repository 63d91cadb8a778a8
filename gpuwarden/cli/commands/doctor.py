"""`gpuwarden doctor`: checks of an installation, from a workstation or from inside."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Iterator
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

from cyclopts import Parameter

from gpuwarden import __version__
from gpuwarden.audit.reading import RecordFilter
from gpuwarden.cli.connection.exec_plugin import SECONDS, run_plugin
from gpuwarden.cli.connection.kubeconfig import (
    Credentials,
    access_by,
    has_kubeconfig,
    kubeconfig_files,
    read_login,
)
from gpuwarden.cli.connection.options import HERE, Connection, Namespace, Output
from gpuwarden.cli.exit_codes import CliError, ExitCode
from gpuwarden.cli.text.output import Format, printed
from gpuwarden.cli.text.screen import has_colours
from gpuwarden.cli.text.tables import Tone
from gpuwarden.cli.text.terminal import WIDTH, paragraph, shown
from gpuwarden.cluster.access import Access, AccessError, pod_access
from gpuwarden.counted import counted
from gpuwarden.doctor.catalog import INSTALLED, NOT_YET
from gpuwarden.doctor.check import Outcome, Report, Result, judge
from gpuwarden.doctor.facts import (
    CONTROLLER_SILENT,
    Fact,
    Facts,
    Logs,
    Metrics,
    Replica,
    Replicas,
    read_metrics,
)
from gpuwarden.doctor.log import ALL_KINDS, END_RECORDS, NAMES_KEY, joined, verdict_of_end
from gpuwarden.settings.values import Duration

if TYPE_CHECKING:
    from gpuwarden.cli.connection.audit_client import LogPart
    from gpuwarden.cli.connection.client import Client

T = TypeVar("T")

LOG_FOLDER: Final = Path("/var/lib/gpuwarden/audit")
_PAUSE_S: Final = 2.0
_METRICS: Final = "metrics.prom"
_TONES: Final = {
    Outcome.PASSED: Tone.GOOD,
    Outcome.WARNING: Tone.DOUBTFUL,
    Outcome.FAILED: Tone.BAD,
    Outcome.NOT_CHECKED: None,
}
_INDENT: Final = 2
_OUTCOME: Final = max(map(len, Outcome))
_LABEL: Final = len("expected")


def doctor(
    *,
    pre: Annotated[bool, Parameter(negative="")] = False,
    wait: str = "0s",
    namespace: Namespace = "",
    dry_run_namespace: str = "",
    audit_log: Path = LOG_FOLDER,
    output: Output = Format.TABLE,
    connection: Connection = HERE,
) -> ExitCode:
    """Check an installation of gpuwarden; exits with 3 if a check fails.

    Parameters
    ----------
    pre
        Check whether gpuwarden can be installed; no controller is asked.
    wait
        How long to repeat the checks until none fails, such as `5m`.
    namespace
        Namespace of gpuwarden, as --controller-namespace.
    dry_run_namespace
        Namespace in which pods are created with `dryRun=All`; by default an enforced one.
    audit_log
        Folder of an audit log on this machine, to verify it.
    output
        How to print; `name` gives the checks that failed.
    connection
        How to reach the controllers, and by --kubeconfig and --context the Kubernetes API; in a pod
        without a kubeconfig its service account does. Here, --server may be given beside them.

    """
    until = monotonic() + _seconds(wait)
    groups = NOT_YET if pre else INSTALLED
    where = namespace or connection.controller_namespace
    controller = replace(connection, controller_namespace=where)
    if connection.server:
        controller = replace(controller, kubeconfig=None, context=None)
    while True:
        begin = Facts(namespace=where, version_here=__version__)
        facts = _of_cluster(begin, connection, place=dry_run_namespace, pre=pre)
        if not pre:
            facts = _of_controllers(facts, controller)
            facts = replace(facts, logs=_logs(facts, controller, audit_log))
        report = judge(groups, facts)
        if report.is_success or monotonic() + _PAUSE_S > until:
            break
        sleep(_PAUSE_S)
    sys.stdout.write(
        printed(
            report.plain(),
            output,
            names=(one.check.id for one in _failed(report)),
            text=lambda: _text(report, colours=has_colours()),
        )
    )
    return ExitCode.OK if report.is_success else ExitCode.FINDING


def _seconds(text: str) -> float:
    try:
        return Duration.parse(text).seconds
    except ValueError as error:
        raise CliError(ExitCode.USAGE, f"--wait: expected {error}, got '{shown(text)}'") from None


# --- facts


def _of_cluster(before: Facts, connection: Connection, *, place: str, pre: bool) -> Facts:
    """What the Kubernetes API tells; without a way to it, why there is none."""
    # Imported here: help and completion need no HTTP client.
    from gpuwarden.cluster.api import ApiServer  # noqa: PLC0415 - see above
    from gpuwarden.doctor.gather import Cluster, unreachable  # noqa: PLC0415 - see above

    try:
        api = ApiServer(_access(connection), connection.timeout)
    except (AccessError, CliError) as error:
        return unreachable(before, str(error))

    async def ask_cluster() -> Facts:
        async with api:
            return await Cluster(api).facts(before, dry_run_namespace=place, pre=pre)

    return asyncio.run(ask_cluster())


def _access(connection: Connection) -> Access:
    """By kubeconfig as for every command, else as a pod; raises AccessError, CliError."""
    is_named = connection.kubeconfig is not None or connection.context is not None
    if not is_named and not has_kubeconfig(os.environ):
        return pod_access(os.environ)
    login = read_login(kubeconfig_files(connection.kubeconfig, os.environ), connection.context)
    credentials = login.credentials or Credentials()
    if login.plugin is not None:
        seconds = SECONDS if sys.stdin.isatty() else connection.timeout
        credentials = run_plugin(login.plugin, login, os.environ, seconds=seconds)
    return access_by(login, credentials)


def _of_controllers(before: Facts, connection: Connection) -> Facts:
    """What the replicas of the controller report."""
    try:
        return replace(before, replicas=Fact(asyncio.run(asked_replicas(connection))))
    except CliError as error:
        return replace(before, controller_error=str(error), replicas=Fact(why=CONTROLLER_SILENT))


async def asked_replicas(connection: Connection) -> Replicas:
    """All replicas that can be reached, and what is wrong with the others; raises CliError."""
    # Imported here: help and completion need no gRPC.
    from gpuwarden.cli.connection.every_replica import every_replica  # noqa: PLC0415 - see above

    async with every_replica(connection) as replicas:
        answers = await replicas.ask(_replica)
        # Two addresses may lead to one replica.
        found = {one.name: one for one in answers.values()}
        known = (name for one in found.values() for name in one.status.replicas)
        missing = replicas.missing(found, known)
    return Replicas(
        tuple(found[name] for name in sorted(found)),
        tuple((one.name, one.why) for one in missing if one.was_tried),
        tuple(one.name for one in missing if not one.was_tried),
    )


async def _replica(client: "Client") -> Replica:
    """Without its status it is silent; the rest may be missing."""
    status = await client.status()
    fleet = await _told(client.nodes())
    nodes = Fact(why=fleet.why) if fleet.value is None else Fact(tuple(fleet.value.nodes))
    return Replica(status, nodes, await _metrics(client))


async def _told(answer: Awaitable[T]) -> Fact[T]:
    try:
        return Fact(await answer)
    except CliError as error:
        return Fact(why=str(error))


async def _metrics(client: "Client") -> Fact[Metrics]:
    parts = await _told(client.support())
    if parts.value is None:
        return Fact(why=parts.why)
    for one in parts.value:
        if one.name == _METRICS and one.content is not None:
            return Fact(read_metrics(one.content.decode("utf-8", "replace")))
    return Fact(why="the controller does not give its metrics")


def _logs(facts: Facts, connection: Connection, folder: Path) -> Fact[Logs]:
    from gpuwarden.doctor.gather import local_log  # noqa: PLC0415 - as in `_of_cluster`

    there: Fact[Logs] = Fact(why=facts.replicas.why)
    if facts.replicas.value is not None:
        try:
            there = Fact(asyncio.run(logs_of_replicas(connection)))
        except CliError as error:
            there = Fact(why=str(error))
    return joined(local_log(folder), there, is_wanted=folder != LOG_FOLDER)


async def logs_of_replicas(connection: Connection) -> Logs:
    """What the ends of the logs show, of all replicas that can be reached; raises CliError."""
    # Imported here: help and completion need no gRPC.
    from gpuwarden.cli.connection.every_replica import every_replica  # noqa: PLC0415 - see above

    async with every_replica(connection) as replicas:
        answers = await replicas.ask(_end)
        # Two addresses may lead to one replica.
        ends = {end.log: (naming, end) for naming, end in answers.values()}
        missing = replicas.missing(ends, (log for _, end in ends.values() for log in end.logs))
    unread = [f"{one.name}: {one.why}" for one in missing if one.was_tried]
    verdicts = []
    for log, (naming, end) in ends.items():
        if end.unknown:
            records = counted(end.unknown, "record")
            unread.append(f"{log}: {records} that only a newer gpuwarden can read")
        else:
            verdicts.append(verdict_of_end(log, end.lines, naming.lines))
    elsewhere = tuple(one.name for one in missing if not one.was_tried)
    return Logs(tuple(verdicts), tuple(unread), elsewhere)


async def _end(client: "Client") -> "tuple[LogPart, LogPart]":
    """The record that names the log's key, and the last records."""
    naming = await client.log.last(RecordFilter(NAMES_KEY), 1)
    return naming, await client.log.last(RecordFilter(ALL_KINDS), END_RECORDS)


# --- text


def _failed(report: Report) -> Iterator[Result]:
    for _, found in report.groups:
        yield from (one for one in found if one.verdict.outcome is Outcome.FAILED)


def _text(report: Report, *, colours: bool) -> str:
    parts = []
    for group, found in report.groups:
        lines = "".join(_lines(one, colours=colours) for one in found)
        parts.append(f"{group.title}\n{lines}")
    counts = ", ".join(f"{report.count(one)} {_plural(one, report.count(one))}" for one in Outcome)
    return "\n".join(parts) + f"\n{counts}\n"


def _plural(outcome: Outcome, count: int) -> str:
    return "warnings" if outcome is Outcome.WARNING and count != 1 else outcome.value


def _lines(result: Result, *, colours: bool) -> str:
    """The check and its outcome; where something is wrong, what to do about it."""
    verdict, indent = result.verdict, _INDENT + _OUTCOME + _INDENT
    said = verdict.outcome in {Outcome.PASSED, Outcome.NOT_CHECKED}
    title = f"{result.check.title}: {verdict.seen}" if said else result.check.title
    first = f"{'':{_INDENT}}{verdict.outcome:<{_OUTCOME}}{'':{_INDENT}}"
    text = paragraph(title, first=first, indent=indent)
    tone = _TONES[verdict.outcome]
    if colours and tone is not None:
        text = text.replace(verdict.outcome, f"\x1b[{tone:d}m{verdict.outcome}\x1b[0m", 1)
    if said:
        return text
    pairs = (("seen", verdict.seen), ("expected", verdict.expected))
    explained = "".join(
        paragraph(what, first=f"{'':{_INDENT * 2}}{name:<{_LABEL}}", indent=_INDENT * 3 + _LABEL)
        for name, what in pairs
    )
    return text + explained + _command(verdict.command) + _page(result.check.page)


def _command(text: str) -> str:
    """Over several lines as a shell takes it."""
    room = WIDTH - _INDENT * 3 - _LABEL - len(" \\")
    lines = [""]
    for word in shown(text).split(" "):
        if lines[-1] and len(lines[-1]) + len(word) >= room:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    head = f"{'':{_INDENT * 2}}{'repair':<{_LABEL + _INDENT}}"
    return head + f" \\\n{'':{len(head)}}".join(lines) + "\n"


def _page(page: str) -> str:
    return f"{'':{_INDENT * 2}}{'page':<{_LABEL + _INDENT}}{page}\n"
