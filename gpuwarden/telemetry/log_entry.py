"""One log record for OpenTelemetry, as the program makes it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Severity(Enum):
    """How a record is shown; the value is OpenTelemetry's name for it."""

    INFO = "INFO"
    WARNING = "WARN"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """One log record."""

    scope: str
    name: str
    time_ns: int
    """When it happened: wall clock, since 1970."""
    severity: Severity
    body: str
    attributes: Mapping[str, str | int | tuple[str, ...]]
