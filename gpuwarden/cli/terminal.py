"""Text for terminals: untrusted strings escaped, tables aligned as kubectl does.

A node may call itself anything, escape sequences included; nothing but printable
characters leaves here. Pure: returns text, prints nothing.
"""

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_GAP: Final = "   "
STANDARD_INPUT: Final = "/dev/stdin"
"""What `audit verify` calls it; `-` there means the same."""
_PREFIX: Final = "v1:sha256:"
_SHORT: Final = 12
_MIB_PER_GIB: Final = 1024
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60))
_ENOUGH: Final = 2
"""Of a unit, before it is used: 90 s are 90s, 120 s are 2m."""
NOTHING: Final = "-"


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """A column of a table; `wide` ones are shown with `-o wide` only."""

    title: str
    value: Callable[[T], str]
    wide: bool = False


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


def table(columns: Sequence[Column[T]], rows: Iterable[T]) -> str:
    """Header and rows, aligned, without trailing blanks; ends with a line feed."""
    body = [tuple(column.title for column in columns), *(cells(columns, row) for row in rows)]
    widths = [max(map(width, column)) for column in zip(*body, strict=True)]
    return "".join(f"{line(row, widths)}\n" for row in body)


def line(row: Sequence[str], widths: Sequence[int]) -> str:
    """One row, each cell padded to its column's width or longer."""
    padded = (cell + " " * (size - width(cell)) for cell, size in zip(row, widths, strict=True))
    return _GAP.join(padded).rstrip()


def width(text: str) -> int:
    """Columns that `text` takes on a terminal: East Asian wide characters take two."""
    if text.isascii():
        return len(text)
    return sum(_width(character) for character in text)


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """`Name:  value` lines with aligned values; pairs with an empty value are left out."""
    filled = [(name, shown(value)) for name, value in pairs if value]
    size = max((len(name) for name, _ in filled), default=0) + 1
    return "".join(f"{name + ':':<{size}}  {value}\n" for name, value in filled)


def joined(parts: Iterable[str]) -> str:
    """A list in one cell."""
    return ",".join(parts)


def short_hash(text: str) -> str:
    """The first digits of a class hash: enough to name it on a command line."""
    return text.removeprefix(_PREFIX)[:_SHORT] if text.startswith(_PREFIX) else text


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
