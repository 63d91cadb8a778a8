"""How a command ends: exit codes, and the one error that stands for all that a person can see."""

from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    """Stable; scripts rely on them."""

    OK = 0
    ERROR = 1
    USAGE = 2
    FINDING = 3
    NOT_AUTHORISED = 4
    NOT_REACHABLE = 5
    TIMEOUT = 124
    INTERRUPTED = 130


MEANING: Final = {
    ExitCode.OK: "done, and nothing was found wrong",
    ExitCode.ERROR: "it did not work; the message says why",
    ExitCode.USAGE: "wrong arguments, or a configuration that is not valid",
    ExitCode.FINDING: "something was found: a broken log, no node that fits, classes that differ,"
    " a pod that does not have what was reserved",
    ExitCode.NOT_AUTHORISED: "the controller does not let this caller in",
    ExitCode.NOT_REACHABLE: "no controller answers there, or it is not the expected one",
    ExitCode.TIMEOUT: "no answer in time",
    ExitCode.INTERRUPTED: "ended by Ctrl-C",
}


class CliError(Exception):
    """Ends the command with `code`; the text is for people, without secrets."""

    def __init__(self, code: ExitCode, text: str) -> None:
        super().__init__(text)
        self.code = code
