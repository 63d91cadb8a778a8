"""Sections that both processes have. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from gpuwarden.settings import keys
from gpuwarden.settings.keys import Spec


class LogLevel(StrEnum):
    """Least severe level that is written."""

    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


class LogFormat(StrEnum):
    """How a log line looks."""

    JSON = "json"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Section `log`."""

    level: Annotated[
        LogLevel,
        Spec(
            keys.one_of(LogLevel),
            "least severe level written; another word in `BGS_LOG_LEVEL` means `info`, with a"
            " warning",
            aliases=("BGS_LOG_LEVEL",),
            alias_warns=True,
        ),
    ] = LogLevel.INFO
    format: Annotated[
        LogFormat, Spec(keys.one_of(LogFormat), "`json` for collectors, `text` for people")
    ] = LogFormat.JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySettings:
    """Section `telemetry`."""

    otlp: Annotated[
        str | None, Spec(keys.URL, "OTLP/HTTP endpoint for traces; tracing is off without it")
    ] = None
    otlp_headers: Annotated[
        Mapping[str, str],
        Spec(keys.HEADERS, "headers sent to the OTLP endpoint, for authentication", secret=True),
    ] = field(default_factory=dict)
