"""`gpuwarden completion`: the script that teaches a shell our commands and options."""

import sys
from typing import Literal


def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print the completion script of a shell, to be sourced from its start file.

    Parameters
    ----------
    shell
        The shell to complete in.

    """
    # Imported here: the tree names this module, and only this command needs the tree.
    from gpuwarden.cli.app import build  # noqa: PLC0415 - see above

    sys.stdout.write(build().generate_completion(shell=shell))
