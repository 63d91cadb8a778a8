"""`gpuwarden audit verify`: whether an audit log is whole. Needs no controller."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from gpuwarden.audit.chain import Head, Verified
from gpuwarden.audit.files import Report, log_files, verify_collected_files, verify_files
from gpuwarden.cli.options import Output
from gpuwarden.cli.outcome import CliError, ExitCode
from gpuwarden.cli.output import STRUCTURED, Format, structured
from gpuwarden.cli.terminal import facts, shown


def verify(
    *paths: Path,
    expect: str = "",
    collected: Annotated[bool, Parameter(negative="")] = False,
    output: Output = Format.TABLE,
) -> ExitCode:
    """Verify the hash chain of an audit log; exits with 3 if it is broken.

    A chain cannot show that its tail was cut off: compare with a head noted elsewhere (--expect).

    Parameters
    ----------
    paths
        Files of one log in order, or folders that hold `audit-*.jsonl`.
    expect
        Head that the log must contain, `SEQ:DIGEST`.
    collected
        The files are a log collector's output: find the records among other lines.
    output
        How to print; `name` gives the head of the log.

    """
    if not paths:
        raise CliError(ExitCode.USAGE, "audit verify needs a file or folder")
    try:
        reports = _reports(paths, _head(expect), collected=collected)
    except OSError as error:
        raise CliError(ExitCode.ERROR, shown(str(error))) from None
    sys.stdout.write(_text(reports, output))
    if not reports:
        raise CliError(ExitCode.FINDING, "no audit records found")
    whole = all(isinstance(report.result, Verified) for report in reports.values())
    return ExitCode.OK if whole else ExitCode.FINDING


def _reports(
    paths: tuple[Path, ...], expect: Head | None, *, collected: bool
) -> Mapping[str, Report]:
    files = [file for path in paths for file in log_files(path)]
    if collected:
        return verify_collected_files(files, expect=expect)
    report = verify_files(files, expect=expect)
    return {getattr(report.result, "origin", ""): report}


def _head(text: str) -> Head | None:
    try:
        return Head.parse(text) if text else None
    except ValueError as error:
        raise CliError(ExitCode.USAGE, f"--expect: {error}") from None


def _text(reports: Mapping[str, Report], output: Format) -> str:
    if output in STRUCTURED:
        return structured([_plain(origin, report) for origin, report in reports.items()], output)
    if output is Format.NAME:
        return "".join(f"{_outcome(report)['head']}\n" for report in reports.values())
    return "\n".join(_for_people(origin, report) for origin, report in reports.items())


def _for_people(origin: str, report: Report) -> str:
    plain = _plain(origin, report)
    pairs = ((name.capitalize(), str(value)) for name, value in plain.items() if value is not None)
    return facts(pairs)


def _plain(origin: str, report: Report) -> dict[str, Any]:
    return {"log": origin or None, **_outcome(report)}


def _outcome(report: Report) -> dict[str, Any]:
    result = report.result
    if isinstance(result, Verified):
        return {
            "result": "verified",
            "records": result.records,
            "first": result.first_seq,
            "head": str(result.head),
            "torn": f"{result.torn_bytes} bytes of an unfinished line at the end"
            if result.torn_bytes
            else None,
        }
    where = f"{report.at.path}:{report.at.line}" if report.at else f"line {result.line}"
    return {
        "result": "broken",
        "record": result.seq,
        "where": where,
        "what": result.what,
        "head": str(result.intact),
    }
