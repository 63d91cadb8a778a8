"""What an act asks before it is done: a person on the terminal, or `--yes` of a program."""

import sys
from typing import Annotated, Final

from cyclopts import Parameter

from gpuwarden.cli.outcome import CliError, ExitCode

Yes = Annotated[bool, Parameter(name=["--yes", "-y"], negative="")]

_AFFIRMATIVE: Final = frozenset({"y", "yes"})


def demand_yes(question: str, text: str, *, yes: bool) -> None:
    """Ask on the terminal; a program must have said so."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CliError(ExitCode.USAGE, "standard input is no terminal: give --yes")
    sys.stderr.write(f"{text}\n{question} [y/N] " if text else f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in _AFFIRMATIVE:
        raise CliError(ExitCode.ERROR, "not confirmed, nothing was done")
