"""What the demo prints: lines of at most 80 columns, for as long as somebody reads them.

Whoever closes the terminal, or the program that reads, ends the demo: `say` raises then.
"""

import logging
import os
import select
import sys
import textwrap
from typing import Final

WIDTH: Final = 80
_STDOUT: Final = 1


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
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, _STDOUT)
        os.close(nowhere)
        raise NobodyReadsError(str(error)) from None


def is_read() -> bool:
    """Whether the terminal, pipe or file behind standard output is still there."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return not poll.poll(0)
