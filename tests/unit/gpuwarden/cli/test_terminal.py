"""Text for terminals: nothing that is not printable leaves, columns stay aligned."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.cli.terminal import Column, cells, facts, shown, table, visible, width

COLUMNS: tuple[Column[tuple[str, str]], ...] = (
    Column("A", lambda x: x[0]),
    Column("B", lambda x: x[1]),
)


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("gpu-a1", "gpu-a1"),
        ("\x1b[31mred\x1b]0;title\x07", r"\x1b[31mred\x1b]0;title\x07"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\x9b1m\x7f", r"\x9b1m\x7f"),
        ("\ud800", r"\ud800"),
        ("\u00e9\u4e2d", "\u00e9\u4e2d"),
    ],
)
def test_what_is_not_printable_is_escaped(text: str, safe: str) -> None:
    assert shown(text) == safe


@given(text=st.text(st.characters()))
def test_no_control_character_survives(text: str) -> None:
    assert not any(unicodedata.category(x) in {"Cc", "Cf", "Cs"} for x in shown(text))


def test_a_table_is_aligned_without_trailing_blanks() -> None:
    assert table(COLUMNS, [("long name", "1"), ("x", "")]) == (
        "A           B\nlong name   1\nx           -\n"
    )


def test_wide_characters_take_two_columns_and_accents_none() -> None:
    assert width("e\u0301\u4e2d") == 3
    lines = table(COLUMNS, [("\u4e2d\u6587", "1"), ("abcd", "2")]).splitlines()
    assert lines == ["A      B", "\u4e2d\u6587   1", "abcd   2"]


def test_cells_cannot_forge_rows() -> None:
    assert cells(COLUMNS, ("a\nb", "\x1b[2K")) == (r"a\nb", r"\x1b[2K")


def test_wide_columns_are_shown_on_request() -> None:
    third: Column[tuple[str, str]] = Column("C", lambda _: "", wide=True)
    columns = (*COLUMNS, third)
    assert visible(columns, wide=False) == COLUMNS
    assert visible(columns, wide=True) == columns


def test_facts_leave_out_what_is_empty() -> None:
    assert facts([("Name", "a\x00"), ("Long name", "b"), ("None", "")]) == (
        "Name:       a\\x00\nLong name:  b\n"
    )
    assert facts([]) == ""
