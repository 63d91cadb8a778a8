"""Tables for people: columns aligned as kubectl does, within the width of a terminal.

With a width, the last cell of a row flows over further lines and names lose their middle, so that
no line is longer and each column keeps its title. Without one, a row is one line with all of it.
Pure: returns text, prints nothing.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Final, Generic, TypeVar

from gpuwarden.cli.text.terminal import HANGING, flowed, shown, width

T = TypeVar("T")

NOTHING: Final = "-"
_GAP: Final = "  "
_MARK: Final = "…"
_ROOM: Final = 24
"""Columns that a text of more than two lines needs beside others."""
_FEW_LINES: Final = 2
_NAME: Final = 17
"""Columns that a name keeps while its row can do without them, such as `ip-10-0-12-34` needs."""
_LEAST: Final = 8


class Tone(IntEnum):
    """What a value means for whoever looks after the fleet; the code of its ANSI colour."""

    BAD = 31
    GOOD = 32
    DOUBTFUL = 33


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """A column of a table; `wide` ones are shown with `-o wide` only.

    Names, which people choose and which can be long, are cut before anything else is.
    """

    title: str
    value: Callable[[T], str]
    wide: bool = False
    tone: Callable[[T], Tone | None] | None = None
    is_name: bool = False


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
    most: int | None = None,
) -> str:
    """Header and rows, aligned, without trailing blanks; ends with a line feed."""
    found = tuple(rows)
    layout = Layout(columns, found, colours=colours, most=most)
    return layout.heading() + "".join(map(layout.line, found))


class Layout(Generic[T]):
    """How wide the columns are, for rows that are printed together or one by one.

    `rows` are those that are known; `least` are widths for what is still to come.
    """

    def __init__(
        self,
        columns: Sequence[Column[T]],
        rows: Iterable[T] = (),
        *,
        colours: bool = False,
        most: int | None = None,
        least: Sequence[int] = (),
    ) -> None:
        self._columns, self._colours, self._most = tuple(columns), colours, most
        self._titles = tuple(column.title for column in columns)
        body = [cells(columns, row) for row in rows]
        *before, last = zip(self._titles, *body, strict=True)
        self._widths = [max(map(width, column)) for column in before]
        self._widths[: len(least)] = map(max, self._widths, least)
        self._last = max(_word(text, title=last[0]) for text in last)
        self._fitted = self._fit(self._widths)
        self._cuts = list(map(_cut_for, before, self._fitted))

    def heading(self) -> str:
        """The titles."""
        return self._line(self._titles, ())

    def line(self, row: T) -> str:
        """One row; a cell that is longer than those that were known moves the others."""
        tones = [None if x.tone is None else x.tone(row) for x in self._columns]
        return self._line(cells(self._columns, row), tones if self._colours else ())

    def _line(self, row: Sequence[str], tones: Sequence[Tone | None]) -> str:
        *before, last = row
        widths = [max(known, width(x)) for known, x in zip(self._widths, before, strict=True)]
        fitted, cuts = self._fitted, self._cuts
        if widths != self._widths:
            fitted = self._fit(widths)
            cuts = [_cut_for([text], size) for text, size in zip(before, fitted, strict=True)]
        short = [cut(text) for cut, text in zip(cuts, before, strict=True)]
        return _laid_out([*short, last], fitted, tones or [None] * len(row), self._most)

    def _fit(self, widths: Sequence[int]) -> list[int]:
        """Widths of all columns but the last, so that this has room.

        First names give way, then the last column moves below its row, then anything is cut.
        """
        if self._most is None:
            return list(widths)
        room = self._most - len(_GAP) * len(widths)
        title = width(self._titles[-1])
        lowest = list(widths)
        for last, name, other in (
            (self._last, _NAME, None),
            (title, _LEAST, None),
            (title, _LEAST, _LEAST),
        ):
            lowest = [
                size if (least := name if x.is_name else other) is None
                else max(width(x.title), min(size, least))
                for x, size in zip(self._columns, widths, strict=False)
            ]  # fmt: skip
            if sum(lowest) <= room - last:
                return _capped(widths, lowest, room - last)
        return lowest


def _capped(widths: Sequence[int], lowest: Sequence[int], room: int) -> list[int]:
    """The widest give way, as far as needed and to none less than its lowest."""
    cap, found = max(widths, default=0), list(widths)
    while sum(found) > room:
        cap -= 1
        found = [max(low, min(size, cap)) for size, low in zip(widths, lowest, strict=True)]
    return found


def _word(text: str, *, title: str) -> int:
    """Columns of a short text, or of the longest word that has room beside other cells.

    At least those of the title.
    """
    words = (width(x) for x in (text, *flowed(text, 1)))
    return max(width(title), *(x for x in words if x <= _ROOM), 0)


_Cut = Callable[[str], str]


def _cut_for(texts: Sequence[str], room: int) -> _Cut:
    """What brings the names of a column into `room` columns.

    Of all ways the most usual one by which names that differ look different; where there is none,
    the one by which most do.
    """
    long = {text for text in texts if width(text) > room}
    found, most = _ways(long, room)[0], 0
    for way in _ways(long, room) if len(long) > 1 else ():
        different = len(set(map(way, long)))
        if different > most:
            found, most = way, different
        if different == len(long):
            break
    return found


def _ways(long: Collection[str], room: int) -> list[_Cut]:
    """Usual is that both ends keep as much, and that hosts keep all before their first dot."""
    half = (room - 1) // 2
    hosts = [width(text.partition(".")[0]) for text in long if "." in text]
    host = max(hosts, default=0)
    if not hosts or host < room:
        usual = min(half, room - 1 - host) if hosts else half
        return [partial(_cut, room=room, end=x) for x in _around(usual, room)]
    of_hosts = [partial(_cut_host, room=room, end=x) for x in _around(half, room)]
    return [*of_hosts, *(partial(_cut, room=room, end=x) for x in _around(half, room))]


def _around(usual: int, room: int) -> list[int]:
    return sorted(range(room), key=lambda x: abs(x - usual))


def _cut(text: str, room: int, end: int) -> str:
    """`text` in `room` columns: its middle gives way, `end` columns of its end are kept."""
    if width(text) <= room:
        return text
    return f"{_start(text, room - 1 - end)}{_MARK}{_start(text[::-1], end)[::-1]}"


def _cut_host(text: str, room: int, end: int) -> str:
    """Likewise, without what follows the first dot."""
    if width(text) <= room:
        return text
    host, dot, _ = text.partition(".")
    return _cut(f"{host}{_MARK}" if dot else text, room, end)


def _start(text: str, room: int) -> str:
    if text.isascii():
        return text[:room]
    taken = 0
    for at, character in enumerate(text):
        taken += width(character)
        if taken > room:
            return text[:at]
    return text


def _laid_out(
    row: Sequence[str], widths: Sequence[int], tones: Sequence[Tone | None], most: int | None
) -> str:
    """One row, each cell padded to its column's width; ends with a line feed."""
    *before, last = row
    indent = sum(widths) + len(_GAP) * len(before)
    flowing = [last] if most is None else flowed(last, most - indent)
    if most is not None:
        is_cramped = most - indent < _ROOM and len(flowing) > _FEW_LINES
        if is_cramped or indent + max(map(width, flowing)) > most:
            room = most - HANGING
            indent, flowing = HANGING, ["", *(_cut(x, room, room // 2) for x in flowed(last, room))]
    padded = [
        _toned(cell, tone) + " " * max(size - width(cell), 0)
        for cell, size, tone in zip([*before, flowing[0]], [*widths, 0], tones, strict=True)
    ]
    below = (" " * indent + text for text in flowing[1:])
    return "".join(f"{x.rstrip()}\n" for x in (_GAP.join(padded), *below))


def _toned(text: str, tone: Tone | None) -> str:
    return text if tone is None or not text else f"\x1b[{tone:d}m{text}\x1b[0m"
