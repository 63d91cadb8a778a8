"""Which lines of the logs tell of errors, and which kinds of them a soak brings about. Pure.

Of our own programs a warning counts as an error: who looks for a fault looks there. A kind that a
soak brings has an explanation; any other line is a fault that somebody has to look at.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

_OURS: Final = frozenset({"warning", "error", "critical"})
_ZAP: Final = frozenset({"error", "dpanic", "panic", "fatal"})
_AUDIT_RECORD: Final = "v"
"""The field that marks a record of the audit log, which is copied to standard output."""
_KLOG: Final = re.compile(r"^[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ ([^\]]+:\d+)\] (.*)$")
_CRASH: Final = re.compile(r"^(panic:|fatal error:|runtime error|goroutine \d+ \[)")
_PLAIN: Final = re.compile(r"^(WARNING|ERROR|CRITICAL) ([\w.]+): (.*)$")


class Format(Enum):
    """How a program writes its log."""

    OURS = auto()
    """JSON by line, copies of audit records between."""
    KLOG = auto()
    ZAP = auto()
    PLAIN = auto()
    """`LEVEL logger: text`, as the soak itself and its agents write."""


@dataclass(frozen=True, slots=True)
class ErrorLine:
    """A line that tells of an error."""

    program: str
    text: str
    """What kinds are recognized by: what happened first, then about what."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A kind of error that a soak brings about."""

    name: str
    program: str
    """How the name of the program begins."""
    pattern: str
    """Searched in the text."""
    why: str

    def fits(self, line: ErrorLine) -> bool:
        """Whether the line is of this kind."""
        is_program = line.program.startswith(self.program)
        return is_program and re.search(self.pattern, line.text) is not None


@dataclass(frozen=True, slots=True)
class Kind:
    """How often an expected kind was seen."""

    name: str
    count: int
    why: str


@dataclass(frozen=True, slots=True)
class Sorted:
    """All errors of a soak."""

    explained: tuple[Kind, ...]
    unexplained: tuple[ErrorLine, ...]


def errors_in(program: str, written: str, how: Format) -> list[ErrorLine]:
    """Lines of a log that tell of an error, in their order."""
    texts = (_READ[how](line) for line in written.splitlines() if line.strip())
    return [ErrorLine(program, text) for text in texts if text]


def sort(lines: Iterable[ErrorLine], expected: Sequence[Expected]) -> Sorted:
    """By the first kind that fits."""
    counts = dict.fromkeys(expected, 0)
    unexplained: list[ErrorLine] = []
    for line in lines:
        kind = next((x for x in expected if x.fits(line)), None)
        if kind is None:
            unexplained.append(line)
        else:
            counts[kind] += 1
    kinds = (Kind(x.name, count, x.why) for x, count in counts.items() if count)
    return Sorted(tuple(kinds), tuple(unexplained))


def _ours(line: str) -> str:
    document = _document(line)
    if document is None:
        return line
    if _AUDIT_RECORD in document or document.get("level") not in _OURS:
        return ""
    about = {k: v for k, v in document.items() if k not in {"event", "level", "timestamp"}}
    return f"{document.get('event', '')} {json.dumps(about, sort_keys=True)}"


def _zap(line: str) -> str:
    document = _document(line)
    if document is None:
        return line
    return line if document.get("level") in _ZAP else ""


def _klog(line: str) -> str:
    """Of klog's lines those of E and F; of others those of a crash: messages have many lines."""
    found = _KLOG.match(line)
    if found is None:
        return line if _CRASH.match(line) else ""
    return f"{found[1]} {found[2]}" if line[0] in "EF" else ""


def _plain(line: str) -> str:
    """A line without a level belongs to a traceback, or was written by nobody's logger."""
    found = _PLAIN.match(line)
    return line if found is None else f"{found[2]} {found[3]}"


def _document(line: str) -> dict[str, Any] | None:
    try:
        document = json.loads(line)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


_READ: Final = {
    Format.OURS: _ours,
    Format.KLOG: _klog,
    Format.ZAP: _zap,
    Format.PLAIN: _plain,
}
