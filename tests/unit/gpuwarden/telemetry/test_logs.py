import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.redaction import REDACTED
from gpuwarden.settings.shared import LogFormat, LogLevel
from gpuwarden.telemetry.logs import configure, logger, redact
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
    root.setLevel(level)
    structlog.reset_defaults()


def refuse(text: str) -> None:
    raise ValueError(text)


def entry(out: io.StringIO) -> dict[str, Any]:
    (line,) = out.getvalue().splitlines()
    parsed: dict[str, Any] = json.loads(line)
    return parsed


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

    assert entry(out)["event"] == f"lost {REDACTED}\\u000a"


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
