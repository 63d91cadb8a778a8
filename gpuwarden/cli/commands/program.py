"""`gpuwarden version` and `gpuwarden completion`: about the program itself."""

import sys

from gpuwarden import __version__
from gpuwarden.cli.app import build
from gpuwarden.cli.completion import Shell, names_script
from gpuwarden.cli.connection.options import Output
from gpuwarden.cli.text.output import Format, printed
from gpuwarden.cli.version import version_line
from gpuwarden.evidence.model import PROTOCOL


def version(*, output: Output = Format.TABLE) -> None:
    """Print the version of this program and of the protocol.

    Parameters
    ----------
    output
        How to print; `name` gives the version alone.

    """
    found = {"version": __version__, "protocol": PROTOCOL}
    text = printed(found, output, names=(__version__,), text=lambda: f"{version_line()}\n")
    sys.stdout.write(text)


def completion(shell: Shell, /) -> None:
    """Print the completion script of a shell, to be sourced from its start file.

    Parameters
    ----------
    shell
        The shell to complete in.

    """
    sys.stdout.write(build().generate_completion(shell=shell) + names_script(shell))
