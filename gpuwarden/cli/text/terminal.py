"""Text for terminals: untrusted strings escaped, paragraphs and values within a width.

A node may call itself anything, escape sequences included; nothing but printable characters and
the colours chosen here leaves. Pure: returns text, prints nothing.
"""

import re
import unicodedata
from collections.abc import Iterable
from typing import Final

WIDTH: Final = 80
"""Columns of a paragraph: no more are taken unless one word needs them."""
HANGING: Final = 4
_GAP: Final = 2
_WORDS: Final = re.compile(r"[^ ,]*(?:,+ *| +)|[^ ,]+$")
STANDARD_INPUT: Final = "/dev/stdin"
"""What `audit verify` calls it; `-` there means the same."""
_PREFIX: Final = "v1:sha256:"
_SHORT: Final = 8
_SHORT_UUID: Final = 8
_MIB_PER_GIB: Final = 1024
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60))
_ENOUGH: Final = 2
"""Of a unit, before it is used: 90 s are 90s, 120 s are 2m."""


def shown(text: str) -> str:
    r"""`text` with everything that is not printable escaped, as `\x1b` or `\u202e`."""
    if text.isprintable():
        return text
    return "".join(x if x.isprintable() else _escaped(x) for x in text)


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
        lines, indent = flowed(shown(text), WIDTH - HANGING), HANGING
        if first.strip():
            lines.insert(0, "")
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
    size = max((len(name) for name, _ in filled), default=0) + _GAP
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
