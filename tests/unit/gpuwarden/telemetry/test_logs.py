import errno
import io
import json
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.redaction import REDACTED
from gpuwarden.settings.shared import LogFormat, LogLevel
from gpuwarden.telemetry.logs import announce, configure, logger, redact, unhandled_logged
from gpuwarden.telemetry.names import Event

PEM = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIHNlY3JldA==\n-----END PRIVATE KEY-----\n"
SECRETS = {
    "pem": PEM,
    "cut pem": PEM[:60],
    "ec pem": PEM.replace("PRIVATE", "EC PRIVATE"),
    "certificate": PEM.replace("PRIVATE KEY", "CERTIFICATE"),
    "jwt": "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJzcGlmZmUifQ.MEUCIQDsecret",
    "bearer": "Authorization: Bearer MC4CAQAwBQYDK2VwBCIEIHNl",
    "basic": "basic dXNlcjpwYXNzd29yZA==",
    "url": "https://user:MC4CAQAwBQYDK2Vw@host/path",
}
MARKS = ("MC4CAQAwBQYDK2Vw", "eyJzdWIiOiJzcGlmZmUifQ", "dXNlcjpwYXNzd29yZA")

Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:], level = before
    logging.captureWarnings(capture=False)
    root.setLevel(level)
    structlog.reset_defaults()


def refuse(text: str) -> None:
    raise ValueError(text)


def entry(out: io.StringIO) -> dict[str, Any]:
    (line,) = out.getvalue().splitlines()
    parsed: dict[str, Any] = json.loads(line)
    return parsed


class FullDisk(io.StringIO):
    """Takes nothing while it is full."""

    is_full = True

    def write(self, text: str, /) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(text)

    def flush(self) -> None:
        self.write("")


def test_what_writes_a_line_does_not_fail_with_the_logs_disk(out: io.StringIO) -> None:
    disk = FullDisk()
    configure(LogLevel.INFO, LogFormat.JSON, service="agent", stream=disk)
    logger("core").info(Event.PROCESS_STARTED)
    logging.getLogger("library").warning("told")
    disk.is_full = False
    logger("core").info(Event.PROCESS_STOPPED)
    assert entry(disk)["event"] == "process.stopped"
    assert out.getvalue() == ""


def test_line_is_json_with_time_level_event_and_component(out: io.StringIO) -> None:
    configure(LogLevel.INFO, LogFormat.JSON, service="agent", stream=out)

    logger("stream").info(Event.STREAM_OPENED, controller="10.0.0.1:9443", attempt=2)

    line = entry(out)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "level": "info",
        "event": "stream.opened",
        "component": "stream",
        "service": "agent",
        "controller": "10.0.0.1:9443",
        "attempt": 2,
    }


def test_text_is_for_people(out: io.StringIO) -> None:
    configure(LogLevel.INFO, LogFormat.TEXT, service="agent", stream=out)

    logger("stream").warning(Event.STREAM_CLOSED, why="reset by peer", count=3)

    assert out.getvalue().split(" ", 1)[1] == (
        'warning  stream.closed component=stream why="reset by peer" count=3 service=agent\n'
    )


@pytest.mark.parametrize(
    ("level", "lines"), [(LogLevel.DEBUG, 2), (LogLevel.INFO, 1), (LogLevel.ERROR, 0)]
)
def test_level_is_a_threshold(level: LogLevel, lines: int, out: io.StringIO) -> None:
    configure(level, LogFormat.JSON, service="agent", stream=out)

    logger("x").debug(Event.GPU_EVENT)
    logger("x").info(Event.GPU_EVENT)

    assert len(out.getvalue().splitlines()) == lines


def test_libraries_log_through_the_same_rendering(out: io.StringIO) -> None:
    configure(LogLevel.INFO, LogFormat.JSON, service="agent", stream=out)

    logging.getLogger("asyncio").warning("lost %s", PEM)
    logging.getLogger("asyncio").info("chatter")

    line = entry(out)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "level": "warning",
        "event": "library.message",
        "component": "asyncio",
        "message": f"lost {REDACTED}\\u000a",
        "service": "agent",
    }


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("aiohttp.server", "library.message"),
        ("grpc._cython.cygrpc", "library.message"),
        ("kubernetes.client.rest", "library.message"),
        ("gpuwarden.identity.tunnel", "tunnel.failed"),
        ("gpuwarden.identity.svid_watcher", "svid.watch.fault"),
    ],
)
def test_a_library_s_text_is_no_event(name: str, event: str, out: io.StringIO) -> None:
    configure(LogLevel.INFO, LogFormat.JSON, service="agent", stream=out)

    logging.getLogger(name).error("no event=forged %s", "here")

    line = entry(out)
    assert (line["event"], line["component"], line["level"]) == (event, name, "error")
    assert line["message"] == "no event=forged here"


def test_a_warning_of_python_is_a_line(out: io.StringIO) -> None:
    configure(LogLevel.INFO, LogFormat.JSON, service="agent", stream=out)

    warnings.showwarning("old way", DeprecationWarning, "x.py", 7)

    line = entry(out)
    assert (line["event"], line["component"], line["level"]) == (
        "library.message",
        "py.warnings",
        "warning",
    )
    assert "x.py:7: DeprecationWarning: old way" in line["message"]


class FailsAtItsEnd:
    def __del__(self) -> None:
        raise ValueError("on the way out")


def test_what_nobody_caught_is_a_line(out: io.StringIO) -> None:
    configure(LogLevel.INFO, LogFormat.JSON, service="agent", stream=out)

    def program() -> None:
        thread = threading.Thread(target=refuse, args=("in a thread",), name="worker")
        thread.start()
        thread.join()
        FailsAtItsEnd()
        refuse("in the program")

    with pytest.raises(SystemExit) as ended, unhandled_logged():
        program()

    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert ended.value.code == 1
    assert {line["event"] for line in lines} == {"process.fault"}
    assert {line["level"] for line in lines} == {"error"}
    assert [line["exception"][-1] for line in lines] == [
        "ValueError: in a thread",
        "ValueError: on the way out",
        "ValueError: in the program",
    ]
    assert lines[0]["thread"] == "worker"


def test_the_hooks_are_put_back(out: io.StringIO) -> None:
    configure(LogLevel.INFO, LogFormat.JSON, service="agent", stream=out)
    before = threading.excepthook, sys.unraisablehook
    with unhandled_logged():
        assert threading.excepthook is not before[0]
        assert sys.unraisablehook is not before[1]
    assert (threading.excepthook, sys.unraisablehook) == before
    assert out.getvalue() == ""


def test_an_announcement_is_a_line_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    announce(Event.AGENT_LISTENING, ops="127.0.0.1:1")

    line = json.loads(capsys.readouterr().out)
    assert datetime.fromisoformat(line.pop("timestamp")).tzinfo is not None
    assert line == {"level": "info", "event": "agent.listening", "ops": "127.0.0.1:1"}


def test_traceback_is_kept_line_by_line_without_secrets(out: io.StringIO) -> None:
    configure(LogLevel.INFO, LogFormat.JSON, service="agent", stream=out)
    try:
        refuse(f"{PEM}Bearer MC4CAQAwBQYDK2VwBCIEIHNl")
    except ValueError:
        logger("x").error(Event.PROCESS_FAULT, exc_info=True)

    trace = entry(out)["exception"]
    assert trace[0] == "Traceback (most recent call last):"
    assert trace[-2:] == [f"ValueError: {REDACTED}", REDACTED]


@pytest.mark.parametrize("form", list(LogFormat))
@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
@pytest.mark.parametrize(
    "wrap",
    [
        lambda secret: {"text": secret},
        lambda secret: {"text": f"before {secret} after"},
        lambda secret: {"nested": {"deep": [{"x": secret}]}},
        lambda secret: {"deeper": {"a": {"b": {"c": {"d": {"e": secret}}}}}},
        lambda secret: {"deeper": [[[[[[secret]]]]]]},
        lambda secret: {"error": ValueError(secret)},
        lambda secret: {secret: 1},
        lambda secret: {"set": {secret}},
        lambda secret: {"raw": secret.encode()},
        lambda secret: {"exception": secret},
    ],
    ids=[
        "text",
        "within",
        "nested",
        "deep-map",
        "deep-list",
        "error",
        "key",
        "set",
        "bytes",
        "exc",
    ],
)
def test_secret_never_comes_out(
    wrap: Callable[[str], dict[str, Any]], secret: str, form: LogFormat, out: io.StringIO
) -> None:
    configure(LogLevel.DEBUG, form, service="agent", stream=out)

    logger("x").info(Event.SVID_UPDATED, **wrap(secret))
    structlog.get_logger().info(secret)

    assert len(out.getvalue().splitlines()) == 2
    assert not [mark for mark in MARKS if mark in out.getvalue()]


@pytest.mark.parametrize(
    "name",
    [
        "token",
        "private_key",
        "key_pem",
        "Authorization",
        "db_password",
        "client.secret",
        "nonce",
        "spare_nonce",
        "otlp_headers",
    ],
)
def test_what_is_called_a_secret_never_comes_out(name: str) -> None:
    assert redact(None, "info", {name: ["hunter2"]}) == {name: REDACTED}


def test_names_that_only_look_alike_are_shown() -> None:
    shown = {"tokens_used": 3, "key": "attestation.interval", "keyring": "x"}

    assert redact(None, "info", dict(shown)) == shown


@pytest.mark.parametrize("form", list(LogFormat))
@given(
    text=st.text(st.characters(codec="utf-8"), max_size=30),
    control=st.sampled_from("\n\r\x00\x1b\x7f\x85\x9b\u2028\u202e\u2066"),
)
def test_untrusted_text_cannot_forge_a_line(form: LogFormat, text: str, control: str) -> None:
    out = io.StringIO(newline="")
    configure(LogLevel.INFO, form, service="s", stream=out)

    logger("x").info(Event.SVID_UPDATED, value=f"{text}{control}{text}")
    structlog.reset_defaults()
    logging.getLogger().handlers.clear()

    assert control not in out.getvalue().removesuffix("\n")
    assert out.getvalue().count("\n") == 1


def test_values_are_bounded() -> None:
    shown = redact(
        None,
        "info",
        {
            "long": "x" * 5000,
            "many": list(range(100)),
            "raw": b"12345",
            "wide": {str(n): n for n in range(100)},
        },
    )

    assert shown["long"] == f"{'x' * 2048}… (5000 characters)"
    assert shown["many"][63:] == [63, "… 36 more"]
    assert shown["raw"] == "<5 bytes>"
    assert len(shown["wide"]) == 64


def test_plain_values_stay_what_they_are() -> None:
    values = {"n": None, "b": True, "i": 3, "f": 1.5, "t": "text"}

    assert redact(None, "info", dict(values)) == values
