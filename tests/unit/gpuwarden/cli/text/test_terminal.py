"""Text for terminals: nothing that is not printable leaves, columns stay aligned."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.cli.text.terminal import facts, flowed, paragraph, short_uuid, shown, width


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


def test_wide_characters_take_two_columns_and_accents_none() -> None:
    assert width("e\u0301\u4e2d") == 3


def test_facts_leave_out_what_is_empty() -> None:
    assert facts([("Name", "a\x00"), ("Long name", "b"), ("None", "")]) == (
        "Name:       a\\x00\nLong name:  b\n"
    )
    assert facts([]) == ""


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
    assert paragraph(f"{'x' * 81} fits") == f"    {'x' * 81}\n    fits\n"


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
