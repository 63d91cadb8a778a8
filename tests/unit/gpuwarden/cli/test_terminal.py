"""Text for terminals: nothing that is not printable leaves, columns stay aligned."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.cli.terminal import (
    Column,
    Tone,
    cells,
    facts,
    flowed,
    paragraph,
    short_uuid,
    shown,
    table,
    visible,
    width,
)

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
        "A          B\nlong name  1\nx          -\n"
    )


def test_wide_characters_take_two_columns_and_accents_none() -> None:
    assert width("e\u0301\u4e2d") == 3
    lines = table(COLUMNS, [("\u4e2d\u6587", "1"), ("abcd", "2")]).splitlines()
    assert lines == ["A     B", "\u4e2d\u6587  1", "abcd  2"]


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


LONG = "needs 9 GPUs, node has 8, of which 7 are free and one is lost or unhealthy"


def test_the_last_cell_flows_within_a_terminal() -> None:
    lines = table(COLUMNS, [("x" * 30, LONG), ("y", "short")]).splitlines()
    start = " " * 32
    assert lines == [
        f"A{' ' * 31}B",
        f"{'x' * 30}  needs 9 GPUs, node has 8, of which 7 are free",
        f"{start}and one is lost or unhealthy",
        f"y{' ' * 31}short",
    ]


def test_where_there_is_no_room_beside_it_flows_below() -> None:
    lines = table(COLUMNS, [("x" * 60, LONG), ("y", "short")]).splitlines()
    assert lines[1:] == [
        "x" * 60,
        "    needs 9 GPUs, node has 8, of which 7 are free and one is lost or unhealthy",
        f"y{' ' * 61}short",
    ]


@pytest.mark.parametrize(("size", "heading"), [(77, f"A{' ' * 78}B"), (78, "A"), (79, "A")])
def test_a_title_beyond_the_terminal_is_left_out(size: int, heading: str) -> None:
    lines = table(COLUMNS, [("x" * size, "1")]).splitlines()
    assert lines[0] == heading
    assert all(len(x) <= 80 for x in lines)


def test_wide_tables_flow_nowhere() -> None:
    lines = table(COLUMNS, [("x" * 60, LONG)], most=None).splitlines()
    assert lines[1] == f"{'x' * 60}  {LONG}"


def test_a_tone_is_colour_around_the_text_alone() -> None:
    columns: tuple[Column[str], ...] = (
        Column("A", str, tone=lambda x: Tone.BAD if x == "bad" else None),
        Column("B", lambda _: "b"),
    )
    assert table(columns, ["bad", "good"], colours=True) == (
        "A     B\n\x1b[31mbad\x1b[0m   b\ngood  b\n"
    )
    assert "\x1b" not in table(columns, ["bad"])


@given(text=st.text(st.sampled_from("ab ,"), max_size=60), room=st.integers(1, 20))
def test_flowing_loses_nothing_but_blanks_and_keeps_words_whole(text: str, room: int) -> None:
    lines = flowed(text, room)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(len(x) <= room or not ({" ", ","} & set(x.rstrip(","))) for x in lines)


def test_a_paragraph_is_indented_below_its_beginning() -> None:
    text = paragraph("word " * 20, first="Cause:", indent=8)
    first, second = text.splitlines()
    assert first.startswith("Cause:  word word")
    assert second.startswith(" " * 8 + "word")
    assert max(len(first), len(second)) <= 80


def test_one_long_word_stands_below() -> None:
    assert facts([("Class", "x" * 74)]) == f"Class:\n    {'x' * 74}\n"
    assert facts([("Class", "x" * 72)]) == f"Class:  {'x' * 72}\n"


@pytest.mark.parametrize(
    ("uuid", "short"),
    [
        ("GPU-5d2b0c1e-8f1f-4f3e-9d0a-6f0f0a4b7c11", "GPU-5d2b0c1e"),
        ("MIG-5d2b0c1e-8f1f-4f3e-9d0a-6f0f0a4b7c11", "MIG-5d2b0c1e"),
        ("", ""),
    ],
)
def test_the_beginning_of_a_uuid(uuid: str, short: str) -> None:
    assert short_uuid(uuid) == short
