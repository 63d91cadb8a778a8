"""What depends on where and when a text is printed: colours, ages, the time of day.

Colour is for terminals alone, and for nobody who has set NO_COLOR (no-color.org).
"""

import os
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, TypeVar

from gpuwarden.cli.text.output import Format
from gpuwarden.cli.text.tables import Column, table, visible
from gpuwarden.cli.text.terminal import WIDTH, age

T = TypeVar("T")

_DUMB: Final = "dumb"


def has_colours() -> bool:
    """Whether standard output shows colours and its reader wants them."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != _DUMB
    return wanted and sys.stdout.isatty()


def on_screen(columns: Sequence[Column[T]], rows: Iterable[T], output: Format) -> str:
    """A table for standard output; empty where there are no rows."""
    found = list(rows)
    if not found:
        return ""
    shown_columns = visible(columns, wide=output is Format.WIDE)
    return table(shown_columns, found, colours=has_colours(), most=room(output))


def room(output: Format) -> int | None:
    """Columns that a row may take: the terminal's. None for `wide` and where a program reads."""
    if output is Format.WIDE or not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size((WIDTH, 0)).columns


def ago(at: str) -> str:
    """How long ago that was by this machine's clock, in one unit; empty for no RFC 3339 time."""
    try:
        then = datetime.fromisoformat(at).timestamp()
    except ValueError:
        return ""
    return age(max(int(wall_s() - then), 0)) or "0s"


def time_of_day() -> str:
    """Now, as people at this machine read it."""
    return time.strftime("%H:%M:%S", time.localtime(wall_s()))


def wall_s() -> float:
    """Seconds since the Unix epoch."""
    return time.time()
