"""`gpuwarden score …`: hands over to `gpuwarden-score`, the scorer's own program."""

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated, Final, NoReturn

from cyclopts import Parameter

from gpuwarden.cli.exit_codes import CliError, ExitCode

_PROGRAM: Final = "gpuwarden-score"


def score(*arguments: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> NoReturn:
    """Run `gpuwarden-score` with the same arguments; its exit code is this command's.

    Parameters
    ----------
    arguments
        Arguments of `gpuwarden-score`; `gpuwarden-score --help` lists them.

    """
    beside = Path(sys.argv[0]).absolute().parent
    found = shutil.which(_PROGRAM, path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise CliError(
            ExitCode.USAGE,
            f"{_PROGRAM}: not installed, expected it beside gpuwarden or on PATH;"
            " pip install 'gpuwarden[controller]' brings it",
        )
    sys.stdout.flush()
    os.execv(found, [_PROGRAM, *arguments])  # noqa: S606 -- no shell: arguments stay what they are
