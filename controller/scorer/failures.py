"""How a command of `gpuwarden-score` ends that cannot do what it was asked: one line, one code."""

import sys
from typing import Final

ERROR: Final = 1
USAGE: Final = 2
"""As the command line's: invalid arguments or configuration, or a file that cannot be read."""
_WRONG_PATH: Final = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)


def failed(command: str, error: Exception, code: int = ERROR) -> int:
    """Write why; returns the exit status: `code`, or USAGE where an argument names no such file."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    sys.stderr.write(f"gpuwarden-score {command}: {text}\n")
    return USAGE if isinstance(error, _WRONG_PATH) else code
