"""What `--version` and `gpuwarden version` say."""

from gpuwarden import __version__
from gpuwarden.evidence.model import PROTOCOL


def version_line() -> str:
    """Version of this program and of the protocol."""
    return f"gpuwarden {__version__}, protocol {PROTOCOL}"
