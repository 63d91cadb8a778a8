"""`gpuwarden version`: this program's version and the protocol that it speaks."""

import sys

from gpuwarden import __version__
from gpuwarden.cli.options import Output
from gpuwarden.cli.output import STRUCTURED, Format, structured
from gpuwarden.evidence.model import PROTOCOL


def version(*, output: Output = Format.TABLE) -> None:
    """Print the version of this program and of the protocol.

    Parameters
    ----------
    output
        How to print; `name` gives the version alone.

    """
    if output in STRUCTURED:
        found = {"version": __version__, "protocol": PROTOCOL}
        sys.stdout.write(structured(found, output))
    elif output is Format.NAME:
        sys.stdout.write(f"{__version__}\n")
    else:
        sys.stdout.write(f"gpuwarden {__version__}, protocol {PROTOCOL}\n")
