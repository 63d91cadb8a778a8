"""Exit codes, and the error that ends a command with one of them."""

from enum import IntEnum
from typing import Final

from gpuwarden.cli.text.terminal import shown
from gpuwarden.regular_file import NotRegularError


class ExitCode(IntEnum):
    """Stable; scripts rely on them."""

    OK = 0
    ERROR = 1
    USAGE = 2
    FINDING = 3
    NOT_AUTHORISED = 4
    NOT_REACHABLE = 5
    NOT_KEPT = 6
    TIMEOUT = 124
    INTERRUPTED = 130


MEANING: Final = {
    ExitCode.OK: "success",
    ExitCode.ERROR: "error; the message says why",
    ExitCode.USAGE: "invalid arguments or configuration, or a file that cannot be read",
    ExitCode.FINDING: "finding: a broken log, no node that fits, classes that differ,"
    " a pod that does not have what was reserved, a GPU that no log names, pods that would be"
    " evicted, a controller"
    " that is not ready, a check of `doctor` that failed",
    ExitCode.NOT_AUTHORISED: "not authorised: the controller refuses this caller",
    ExitCode.NOT_REACHABLE: "not reachable: no controller answers, or not the expected one",
    ExitCode.NOT_KEPT: "not kept: evidence that was not archived, since nothing was granted by it",
    ExitCode.TIMEOUT: "no answer in time",
    ExitCode.INTERRUPTED: "ended by Ctrl-C",
}


def unreadable(error: OSError) -> "CliError":
    """The error for a file that an argument names and that cannot be read."""
    if error.strerror is None or isinstance(error, NotRegularError):
        return CliError(ExitCode.USAGE, shown(str(error)))
    return CliError(ExitCode.USAGE, f"{shown(str(error.filename))}: {error.strerror}")


class CliError(Exception):
    """Ends the command with `code`; the text is for people, without secrets."""

    def __init__(self, code: ExitCode, text: str) -> None:
        super().__init__(text)
        self.code = code
