"""Colours for terminals alone; ages by this machine's clock."""

import io

import pytest

from gpuwarden.cli.text import screen
from gpuwarden.cli.text.output import Format
from gpuwarden.cli.text.screen import ago, has_colours, on_screen
from gpuwarden.cli.text.tables import Column, Tone
from tests.unit.gpuwarden.cli.conftest import Terminal

NOW = 1_795_896_000.0
"""2026-11-28T20:00:00Z"""


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "wall_s", lambda: NOW)
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("variables", "stdout", "wanted"),
    [
        ({}, Terminal(), True),
        ({"NO_COLOR": ""}, Terminal(), True),
        ({"NO_COLOR": "0"}, Terminal(), False),
        ({"TERM": "dumb"}, Terminal(), False),
        ({"TERM": "xterm"}, Terminal(), True),
        ({}, io.StringIO(), False),
    ],
)
def test_colours_are_for_terminals_whose_reader_wants_them(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], stdout: io.StringIO, wanted: bool
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout", stdout)
    assert has_colours() is wanted
    columns: tuple[Column[str], ...] = (Column("A", str, tone=lambda _: Tone.GOOD),)
    assert ("\x1b[32mx\x1b[0m" in on_screen(columns, ["x"], Format.TABLE)) is wanted


@pytest.mark.parametrize(
    ("at", "text"),
    [
        ("2026-11-28T20:00:00.000Z", "0s"),
        ("2026-11-28T19:59:59.000Z", "1s"),
        ("2026-11-28T19:58:01Z", "119s"),
        ("2026-11-28T19:58:00Z", "2m"),
        ("2026-11-28T18:00:00Z", "2h"),
        ("2026-11-26T20:00:00Z", "2d"),
        ("2026-11-28T20:00:09Z", "0s"),
        ("", ""),
        ("yesterday", ""),
    ],
)
def test_how_long_ago(at: str, text: str) -> None:
    assert ago(at) == text


def test_no_rows_are_no_table() -> None:
    columns: tuple[Column[str], ...] = (Column("A", str),)
    assert on_screen(columns, [], Format.TABLE) == ""
