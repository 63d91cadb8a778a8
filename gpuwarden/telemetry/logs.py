"""Structured logs through structlog: one JSON object (or line of text) per event.

`configure` is called once by a composition root; everybody else calls `logger()`. What libraries
and Python itself have to say comes in the same form, as `library.message`.
Keys, tokens and PEM blocks never come out, whatever is passed in, and control
characters are escaped, so that a logged value cannot forge a line or a terminal.
"""

import json
import logging
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TextIO, cast

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from gpuwarden.redaction import REDACTED, without_secrets
from gpuwarden.settings.shared import LogFormat, LogLevel
from gpuwarden.telemetry.names import Event

_MAX_VALUE = 2048
_MAX_ITEMS = 64
_MAX_DEPTH = 4
_LEVEL = {
    LogLevel.DEBUG: logging.DEBUG,
    LogLevel.INFO: logging.INFO,
    LogLevel.WARN: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
}
_SECRET_NAME = re.compile(
    r"(?:^|[_.-])(?:private_?key|key_?pem|pem|password|passwd|secret|token|authorization|cookie"
    r"|credentials?|api_?key|otlp_?headers|nonce)(?:$|[_.-])",
    re.IGNORECASE,
)
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def configure(
    level: LogLevel, log_format: LogFormat, *, service: str, stream: TextIO | None = None
) -> None:
    """Set up logging of this process, of libraries that use `logging` too.

    Lines go to `stream`, by default standard error (standard output carries the audit log). One
    that cannot be written there is lost.
    """
    out = cast("TextIO", _Lossy(sys.stderr if stream is None else stream))
    render: Processor = _render_json if log_format is LogFormat.JSON else _render_text
    logging.captureWarnings(capture=True)
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _named(service),
        redact,
    ]
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVEL[level]),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_as_library_message, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, redact, render],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(_LEVEL[level], logging.WARNING))


class _Lossy:
    """A stream whose disk may be full: what writes a line of the log must not fail with it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


class EventLogger(Protocol):
    """Writes lines of declared events and no others."""

    def debug(self, event: Event, /, **facts: object) -> None:
        """For whoever looks for a fault."""

    def info(self, event: Event, /, **facts: object) -> None:
        """What happens as it should."""

    def warning(self, event: Event, /, **facts: object) -> None:
        """What somebody should know."""

    def error(self, event: Event, /, **facts: object) -> None:
        """What somebody should act on."""


def logger(component: str) -> EventLogger:
    """Return a logger whose lines carry `component`."""
    return cast("EventLogger", structlog.get_logger().bind(component=component))


def announce(event: str, **facts: object) -> None:
    """One JSON line on standard output, for the program that started this one."""
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    line = {"timestamp": now, "level": "info", "event": str(event), **facts}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


@contextmanager
def unhandled_logged() -> Iterator[None]:
    """While the program runs, what nobody caught becomes a line of the log; it ends with 1."""
    log = logger("python")
    before = threading.excepthook, sys.unraisablehook

    def in_thread(failed: threading.ExceptHookArgs) -> None:
        if failed.exc_value is not None:
            thread = failed.thread.name if failed.thread else ""
            log.error(Event.PROCESS_FAULT, thread=thread, exc_info=failed.exc_value)

    def unraisable(failed: "sys.UnraisableHookArgs") -> None:
        detail = f"{failed.err_msg or 'ignored exception in'}: {failed.object!r}"
        log.error(Event.PROCESS_FAULT, detail=detail, exc_info=failed.exc_value)

    threading.excepthook, sys.unraisablehook = in_thread, unraisable
    try:
        yield
    except Exception as error:
        log.error(Event.PROCESS_FAULT, exc_info=error)  # noqa: TRY400 -- not of `logging`
        raise SystemExit(1) from None
    finally:
        threading.excepthook, sys.unraisablehook = before


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Replace secrets by name and by look, bound every value, escape control characters.

    A traceback becomes a list of its lines, so that its line ends need no escape.
    """
    return cast("dict[str, Any]", _clean_mapping(event, 0))


_OWN: Final = {
    "gpuwarden.identity.svid_watcher": Event.SVID_WATCH_FAULT,
    "gpuwarden.identity.tunnel": Event.TUNNEL_FAILED,
}
"""Loggers of packages below this one, and what their messages are about."""


def _as_library_message(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """A line of `logging`: its text is no stable name."""
    name = event["_record"].name
    event["message"] = event["event"]
    event["event"] = _OWN.get(name, Event.LIBRARY_MESSAGE).value
    event["component"] = name
    return event


def _named(service: str) -> Processor:
    def add(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event["service"] = service
        return event

    return add


def _clean(value: object, depth: int) -> object:
    match value:
        case None | bool() | int() | float():
            return value
        case Mapping():
            return _clean_mapping(value, depth) if depth < _MAX_DEPTH else _clean_text(repr(value))
        case list() | tuple() | set() | frozenset():
            if depth >= _MAX_DEPTH:
                return _clean_text(repr(value))
            kept = [_clean(item, depth + 1) for item in list(value)[:_MAX_ITEMS]]
            return (
                kept if len(value) <= _MAX_ITEMS else [*kept, f"… {len(value) - _MAX_ITEMS} more"]
            )
        case bytes() | bytearray() | memoryview():
            return f"<{len(value)} bytes>"
        case _:
            return _clean_text(str(value))


def _clean_mapping(values: Mapping[Any, Any], depth: int) -> dict[str, object]:
    cleaned: dict[str, object] = {}
    for key, value in list(values.items())[:_MAX_ITEMS]:
        name = _clean_text(str(key))
        if _SECRET_NAME.search(name):
            cleaned[name] = REDACTED
        elif name == "exception" and depth == 0 and isinstance(value, str):
            lines = without_secrets(value).splitlines()
            cleaned[name] = [_clean_text(line) for line in lines[-_MAX_ITEMS:]]
        else:
            cleaned[name] = _clean(value, depth + 1)
    return cleaned


def _clean_text(text: str) -> str:
    text = without_secrets(text)
    text = _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}… ({len(text)} characters)"


def _render_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    first = {key: event.pop(key) for key in ("timestamp", "level", "event") if key in event}
    return json.dumps({**first, **event}, ensure_ascii=False)


def _render_text(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    time, level = event.pop("timestamp", ""), event.pop("level", "")
    name = event.pop("event", "")
    rest = " ".join(f"{key}={_text_value(value)}" for key, value in event.items())
    return f"{time} {level:<8} {name} {rest}".rstrip()


def _text_value(value: object) -> str:
    plain = isinstance(value, str) and re.fullmatch(r"[^\s\"=]+", value)
    return str(value) if plain else json.dumps(value, ensure_ascii=False)
