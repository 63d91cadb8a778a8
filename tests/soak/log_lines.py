"""Which lines of the logs tell of errors, and which kinds of them a soak brings about. Pure.

Of our own programs a warning counts as an error: who looks for a fault looks there. A kind that a
soak brings has an explanation; any other line is a fault that somebody has to look at.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum, auto
from functools import partial
from typing import Any, Final

_OURS: Final = frozenset({"warning", "error", "critical"})
_ZAP: Final = frozenset({"error", "dpanic", "panic", "fatal"})
_AUDIT_RECORD: Final = "v"
"""The field that marks a record of the audit log, which is copied to standard output."""
_KLOG: Final = re.compile(r"^[IWEF](\d{4} \d\d:\d\d:\d\d\.\d+) +\d+ ([^\]]+:\d+)\] (.*)$")
_CRASH: Final = re.compile(r"^(panic:|fatal error:|runtime error|goroutine \d+ \[)")
_PLAIN: Final = re.compile(r"^(?:WARNING|ERROR|CRITICAL) (\d+\.\d+) ([\w.]+): (.*)$")
PLAIN_FORMAT: Final = "%(levelname)s %(created).3f %(name)s: %(message)s"
"""For `logging`."""
LATE_S: Final = 5.0
"""A program says what happened to it somewhat later, the more so on a busy machine."""


class Format(Enum):
    """How a program writes its log."""

    OURS = auto()
    """JSON by line, copies of audit records between."""
    KLOG = auto()
    ZAP = auto()
    PLAIN = auto()
    """`PLAIN_FORMAT`, as the soak itself and its agents write."""


class Cause(Enum):
    """What a soak does to its cluster."""

    START = auto()
    """Until everything stands for the first time."""
    KILL = auto()
    """From the signal until everything is whole again."""
    ROTATION = auto()
    """From the first new certificate until the last agent has its SVID."""
    STOP = auto()
    """A replica is ended in good order, at the end of the soak."""


@dataclass(frozen=True, slots=True)
class Span:
    """From when to when something was done, in seconds of the wall clock."""

    cause: Cause
    begun: float
    over: float
    program: str = ""
    """To which program; empty: to all."""


@dataclass(frozen=True, slots=True)
class ErrorLine:
    """A line that tells of an error."""

    program: str
    text: str
    """What kinds are recognized by: what happened first, then about what."""
    at: float | None = None
    """Seconds of the wall clock; None where the line does not say."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A kind of error that a soak brings about."""

    name: str
    program: str
    """How the name of the program begins."""
    pattern: str
    """Searched in the text."""
    why: str
    during: tuple[Cause, ...] = ()
    """Only while one of these lasts, and shortly after; empty: at any time."""
    own: bool = False
    """Only while it lasts for the program that wrote the line."""
    late_s: float = LATE_S

    def fits(self, line: ErrorLine, spans: Iterable[Span]) -> bool:
        """Whether the line is of this kind."""
        is_meant = line.program.startswith(self.program) and re.search(self.pattern, line.text)
        return bool(is_meant) and (not self.during or any(self._lasts(line, x) for x in spans))

    def _lasts(self, line: ErrorLine, span: Span) -> bool:
        return (
            span.cause in self.during
            and (not self.own or span.program == line.program)
            and line.at is not None
            and span.begun <= line.at <= span.over + self.late_s
        )


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


def errors_in(program: str, written: str, how: Format, year: int) -> list[ErrorLine]:
    """Lines of a log that tell of an error, in their order; `year`: klog leaves it out."""
    read = partial(_klog, year=year) if how is Format.KLOG else _READ[how]
    found = (read(line) for line in written.splitlines() if line.strip())
    return [replace(one, program=program) for one in found if one is not None]


def sort(
    lines: Iterable[ErrorLine], expected: Sequence[Expected], spans: Sequence[Span] = ()
) -> Sorted:
    """By the first kind that fits; `spans`: what was done to the cluster."""
    counts = dict.fromkeys(expected, 0)
    unexplained: list[ErrorLine] = []
    for line in lines:
        kind = next((x for x in expected if x.fits(line, spans)), None)
        if kind is None:
            unexplained.append(line)
        else:
            counts[kind] += 1
    kinds = (Kind(x.name, count, x.why) for x, count in counts.items() if count)
    return Sorted(tuple(kinds), tuple(unexplained))


def _ours(line: str) -> ErrorLine | None:
    document = _document(line)
    if document is None:
        return ErrorLine("", line)
    if _AUDIT_RECORD in document or document.get("level") not in _OURS:
        return None
    about = {k: v for k, v in document.items() if k not in {"event", "level", "timestamp"}}
    text = f"{document.get('event', '')} {json.dumps(about, sort_keys=True)}"
    at = document.get("timestamp")
    return ErrorLine("", text, at and datetime.fromisoformat(at).timestamp())


def _zap(line: str) -> ErrorLine | None:
    document = _document(line)
    return ErrorLine("", line) if document is None or document.get("level") in _ZAP else None


def _klog(line: str, year: int) -> ErrorLine | None:
    """Of klog's lines those of E and F; of others those of a crash: messages have many lines."""
    found = _KLOG.match(line)
    if found is None:
        return ErrorLine("", line) if _CRASH.match(line) else None
    if line[0] not in "EF":
        return None
    at = datetime.strptime(f"{year}{found[1]}", "%Y%m%d %H:%M:%S.%f")  # noqa: DTZ007 - in local time
    return ErrorLine("", f"{found[2]} {found[3]}", at.timestamp())


def _plain(line: str) -> ErrorLine:
    """A line without a level belongs to a traceback, or was written by nobody's logger."""
    found = _PLAIN.match(line)
    if found is None:
        return ErrorLine("", line)
    return ErrorLine("", f"{found[2]} {found[3]}", float(found[1]))


def _document(line: str) -> dict[str, Any] | None:
    try:
        document = json.loads(line)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


_READ: Final[dict[Format, Callable[[str], ErrorLine | None]]] = {
    Format.OURS: _ours,
    Format.ZAP: _zap,
    Format.PLAIN: _plain,
}
