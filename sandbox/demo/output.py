"""What the demo prints: lines of at most 80 columns, for as long as somebody reads them.

Whoever closes the terminal, or the program that reads, ends the demo: `say` raises then.
"""

import logging
import os
import select
import textwrap
from typing import Final

WIDTH: Final = 80
_STDOUT: Final = 1
_STDERR: Final = 2


class NobodyReadsError(Exception):
    """Standard output leads nowhere any more."""


class SaidLogs(logging.Handler):
    """Says what this process logs: the warnings of what is insecure."""

    def emit(self, record: logging.LogRecord) -> None:
        """Say one message."""
        say(record.getMessage())


def say(text: str = "", *, indent: int = 0) -> None:
    """Print one paragraph, its lines after the first `indent` columns to the right."""
    folded = textwrap.fill(
        text,
        WIDTH,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    say_as_it_is(folded)


def say_as_it_is(text: str) -> None:
    """Print text whose lines are short enough already. Raises NobodyReadsError."""
    try:
        print(text, flush=True)
    except OSError as error:
        _lead_nowhere()
        raise NobodyReadsError(str(error)) from None


def is_read(stream: int = _STDOUT) -> bool:
    """Whether the terminal, pipe or file behind it is still there."""
    poll = select.poll()
    poll.register(stream, 0)
    return not poll.poll(0)


def _lead_nowhere() -> None:
    """Let what was not read go nowhere: Python tries again at its end, and exits with 120 then."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, _STDOUT)
    if not is_read(_STDERR):
        os.dup2(nowhere, _STDERR)
    os.close(nowhere)
