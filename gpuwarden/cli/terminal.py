"""Text for terminals: untrusted strings escaped, tables aligned as kubectl does.

A node may call itself anything, escape sequences included; nothing but printable characters and
the colours chosen here leaves. Pure: returns text, prints nothing.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_GAP: Final = "  "
WIDTH: Final = 80
"""Columns of a terminal: no more are taken unless one word needs them."""
_HANGING: Final = 4
_ROOM: Final = 24
"""Columns that a text of more than two lines needs beside others."""
_WORDS: Final = re.compile(r"[^ ,]*(?:,+ *| +)|[^ ,]+$")
STANDARD_INPUT: Final = "/dev/stdin"
"""What `audit verify` calls it; `-` there means the same."""
_PREFIX: Final = "v1:sha256:"
_SHORT: Final = 8
_SHORT_UUID: Final = 8
_MIB_PER_GIB: Final = 1024
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60))
_FEW_LINES: Final = 2
_ENOUGH: Final = 2
"""Of a unit, before it is used: 90 s are 90s, 120 s are 2m."""
NOTHING: Final = "-"


class Tone(IntEnum):
    """What a value means for whoever looks after the fleet; the code of its ANSI colour."""

    BAD = 31
    GOOD = 32
    DOUBTFUL = 33


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """A column of a table; `wide` ones are shown with `-o wide` only."""

    title: str
    value: Callable[[T], str]
    wide: bool = False
    tone: Callable[[T], Tone | None] | None = None


def shown(text: str) -> str:
    r"""`text` with everything that is not printable escaped, as `\x1b` or `\u202e`."""
    if text.isprintable():
        return text
    return "".join(x if x.isprintable() else _escaped(x) for x in text)


def cells(columns: Sequence[Column[T]], row: T) -> tuple[str, ...]:
    """One row, escaped; an empty cell is a dash, so that columns can be counted."""
    return tuple(shown(column.value(row)) or NOTHING for column in columns)


def visible(columns: Sequence[Column[T]], *, wide: bool) -> tuple[Column[T], ...]:
    """The columns that are shown."""
    return tuple(column for column in columns if wide or not column.wide)


def table(
    columns: Sequence[Column[T]],
    rows: Iterable[T],
    *,
    colours: bool = False,
    most: int | None = WIDTH,
) -> str:
    """Header and rows, aligned, without trailing blanks; ends with a line feed.

    Where a row is longer than `most` columns, its last cell flows over several lines.
    """
    found = tuple(rows)
    titles = tuple(column.title for column in columns)
    body = [cells(columns, row) for row in found]
    widths = column_widths([titles, *body])
    lines = (
        line(row, widths, tones=tones_of(columns, of) if colours else (), most=most)
        for row, of in zip(body, found, strict=True)
    )
    return heading(titles, widths, most=most) + "".join(lines)


def column_widths(rows: Iterable[Sequence[str]]) -> list[int]:
    """Width of each column, so that all these rows are aligned."""
    return [max(map(width, column)) for column in zip(*rows, strict=True)]


def heading(titles: Sequence[str], widths: Sequence[int], *, most: int | None = WIDTH) -> str:
    """The titles; the last is left out where it would be beyond `most` columns."""
    text = line(titles, widths, most=None)
    if most is None or width(text) - 1 <= most:
        return text
    return line([*titles[:-1], ""], widths, most=None)


def tones_of(columns: Sequence[Column[T]], row: T) -> tuple[Tone | None, ...]:
    """The tone of each cell of a row."""
    return tuple(None if column.tone is None else column.tone(row) for column in columns)


def line(
    row: Sequence[str],
    widths: Sequence[int],
    *,
    tones: Sequence[Tone | None] = (),
    most: int | None = WIDTH,
) -> str:
    """One row, each cell padded to its column's width or longer; ends with a line feed."""
    *cells_before, last = row
    indent = sum(widths[:-1]) + len(_GAP) * len(cells_before)
    flowing = [last] if most is None else flowed(last, most - indent)
    if most is not None:
        is_cramped = most - indent < _ROOM and len(flowing) > _FEW_LINES
        if is_cramped or indent + max(map(width, flowing)) > most:
            indent, flowing = _HANGING, ["", *flowed(last, most - _HANGING)]
    padded = [
        _toned(cell, tone) + " " * max(size - width(cell), 0)
        for cell, size, tone in zip(
            [*cells_before, flowing[0]], widths, tones or [None] * len(row), strict=True
        )
    ]
    below = (" " * indent + text for text in flowing[1:])
    return "".join(f"{x.rstrip()}\n" for x in (_GAP.join(padded), *below))


def _toned(text: str, tone: Tone | None) -> str:
    return text if tone is None or not text else f"\x1b[{tone:d}m{text}\x1b[0m"


def flowed(text: str, room: int) -> list[str]:
    """Lines of at most `room` columns, broken after blanks and commas; longer words stay whole."""
    lines = [""]
    for word in _WORDS.findall(text):
        if lines[-1] and width((lines[-1] + word).rstrip()) > room:
            lines.append("")
        lines[-1] += word
    return [x.rstrip() for x in lines]


def paragraph(text: str, *, first: str = "", indent: int = 0) -> str:
    """`text` after `first`, within the width of a terminal; further lines are indented."""
    lines = flowed(shown(text), WIDTH - indent)
    if indent + max(map(width, lines)) > WIDTH:
        lines, indent = ["", *flowed(shown(text), WIDTH - _HANGING)], _HANGING
    head = f"{first:<{indent}}{lines[0]}" if lines[0] else first
    return "".join(f"{x.rstrip()}\n" for x in (head, *(" " * indent + x for x in lines[1:])))


def width(text: str) -> int:
    """Columns that `text` takes on a terminal: East Asian wide characters take two."""
    if text.isascii():
        return len(text)
    return sum(_width(character) for character in text)


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """`Name:  value` lines with aligned values; pairs with an empty value are left out."""
    filled = [(f"{name}:", value) for name, value in pairs if value]
    size = max((len(name) for name, _ in filled), default=0) + len(_GAP)
    return "".join(paragraph(value, first=name, indent=size) for name, value in filled)


def joined(parts: Iterable[str]) -> str:
    """A list in one cell."""
    return ",".join(parts)


def short_hash(text: str) -> str:
    """The first digits of a class hash: enough to name it on a command line."""
    return text.removeprefix(_PREFIX)[:_SHORT] if text.startswith(_PREFIX) else text


def short_uuid(text: str) -> str:
    """The beginning of a GPU's or MIG device's UUID: enough to name it among others."""
    kind, dash, rest = text.partition("-")
    return f"{kind}{dash}{rest[:_SHORT_UUID]}"


def duration(milliseconds: int) -> str:
    """Whole seconds, rounded down; empty for none."""
    return f"{milliseconds // 1000}s" if milliseconds else ""


def memory(mebibytes: int) -> str:
    """Memory as selectors name it, with one decimal."""
    return f"{mebibytes / _MIB_PER_GIB:.1f}Gi" if mebibytes else ""


def age(seconds: int) -> str:
    """As kubectl writes it, in one unit; empty where it is not known."""
    for unit, size in _UNITS:
        if seconds >= _ENOUGH * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s" if seconds else ""


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
