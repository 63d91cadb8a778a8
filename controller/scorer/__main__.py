"""The program `gpuwarden-score`: serves scores, moves what was learned, or replays a trace."""

import asyncio
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import gpuwarden.telemetry.grpc_core  # noqa: F401 -- before anything imports grpc

# isort: split
from controller.scorer.app import SERVICE, run
from gpuwarden.finding import Finding
from gpuwarden.settings.loader import SCORE
from gpuwarden.settings.start import settings_or_exit
from gpuwarden.settings.unknown_names import unknown_alias
from gpuwarden.telemetry import logs
from gpuwarden.telemetry.names import Event

PROGRAM: Final = "gpuwarden-score"
_OLD: Final = "SCHEDULER_"
_OTHERS: Final = {"SCHEDULER_HOST", "SCHEDULER_PORT", "SCHEDULER_REDIS_URL"}
_OF_SERVICES: Final = re.compile(r".*_(SERVICE_(HOST|PORT(_.+)?)|PORT(_\d+_.+)?)")
COMMANDS: Final = ("export", "import", "replay")
_COMMANDS_HELP: Final = (
    "`gpuwarden-score export` and `import` write out and read in what was learned, `replay` tries"
    " the score on a recorded trace; each has --help."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns the exit status."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments[:1] and arguments[0] in COMMANDS:
        from controller.scorer import replay, transfer  # noqa: PLC0415 -- a service needs neither

        run_command = replay.main if arguments[0] == "replay" else transfer.main
        return run_command(arguments)
    loaded = settings_or_exit(
        PROGRAM, SCORE, arguments, with_listen(os.environ), commands=_COMMANDS_HELP
    )
    loaded = replace(loaded, warnings=(*loaded.warnings, *misspelled(os.environ)))
    settings = loaded.settings
    logs.configure(settings.log.level, settings.log.format, service=SERVICE)
    with logs.unhandled_logged():
        return asyncio.run(
            run(loaded, announce=lambda x: logs.announce(Event.SCORE_LISTENING, address=x))
        )


def with_listen(environment: Mapping[str, str]) -> dict[str, str]:
    """`SCHEDULER_HOST` and `SCHEDULER_PORT` as one address.

    A port that is a URL is not set by a person: Kubernetes sets it for a Service `scheduler`.
    """
    found = dict(environment)
    host, port = found.get("SCHEDULER_HOST"), found.get("SCHEDULER_PORT")
    if port is not None and "://" in port:
        port = None
    if host is not None or port is not None:
        usual = next(key.default for key in SCORE.keys if key.name == "listen")
        shown = usual.host if host is None else host
        shown = f"[{shown}]" if ":" in shown else shown
        found["SCHEDULER_LISTEN"] = f"{shown}:{port or usual.port}"
    return found


def misspelled(environment: Mapping[str, str]) -> tuple[Finding, ...]:
    """Variables `SCHEDULER_…` that mean nothing here.

    Without those that Kubernetes sets for Services whose names begin so.
    """
    known = {alias for key in SCORE.keys for alias in key.spec.aliases} | _OTHERS
    names = (x for x in environment if x.startswith(_OLD) and not _OF_SERVICES.fullmatch(x))
    return tuple(unknown_alias(name, known) for name in sorted(names) if name not in known)


if __name__ == "__main__":
    sys.exit(main())
