"""Tables: aligned, never wider than a terminal, whole where a program reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.cli.text.tables import Column, Layout, Tone, cells, table, visible
from gpuwarden.cli.text.terminal import width

Row = tuple[str, ...]


def columns(*titles: str, names: str = "") -> tuple[Column[Row], ...]:
    """A column for each title; those whose title is in `names` have names."""
    return tuple(
        Column(title, lambda row, at=at: row[at], is_name=title in names)  # type: ignore[misc]
        for at, title in enumerate(titles)
    )


COLUMNS = columns("A", "B")
LONG = "needs 9 GPUs, node has 8, of which 7 are free and one is lost or unhealthy"


def test_a_table_is_aligned_without_trailing_blanks() -> None:
    assert table(COLUMNS, [("long name", "1"), ("x", "")]) == (
        "A          B\nlong name  1\nx          -\n"
    )


def test_columns_are_counted_as_a_terminal_shows_them() -> None:
    lines = table(COLUMNS, [("\u4e2d\u6587", "1"), ("abcd", "2")]).splitlines()
    assert lines == ["A     B", "\u4e2d\u6587  1", "abcd  2"]


def test_cells_cannot_forge_rows() -> None:
    assert cells(COLUMNS, ("a\nb", "\x1b[2K")) == (r"a\nb", r"\x1b[2K")


def test_wide_columns_are_shown_on_request() -> None:
    third: Column[Row] = Column("C", lambda _: "", wide=True)
    every = (*COLUMNS, third)
    assert visible(every, wide=False) == COLUMNS
    assert visible(every, wide=True) == every


def test_without_a_width_each_row_is_one_line_with_all_of_it() -> None:
    rows = [("x" * 300, LONG), ("y", LONG)]
    lines = table(columns("A", "B", names="A"), rows).splitlines()
    assert [line.split(maxsplit=1) for line in lines[1:]] == [[*row] for row in rows]


def test_the_last_cell_flows_within_a_terminal() -> None:
    lines = table(COLUMNS, [("x" * 30, LONG), ("y", "short")], most=80).splitlines()
    start = " " * 32
    assert lines == [
        f"A{' ' * 31}B",
        f"{'x' * 30}  needs 9 GPUs, node has 8, of which 7 are free",
        f"{start}and one is lost or unhealthy",
        f"y{' ' * 31}short",
    ]


def test_where_there_is_no_room_beside_it_flows_below() -> None:
    lines = table(COLUMNS, [("x" * 60, LONG), ("y", "short")], most=80).splitlines()
    assert lines[1:] == [
        "x" * 60,
        "    needs 9 GPUs, node has 8, of which 7 are free and one is lost or unhealthy",
        f"y{' ' * 61}short",
    ]


@pytest.mark.parametrize(
    ("name", "last", "shown"),
    [
        ("n" * 59, "GPU-5d2b0c1e", [f"{'n' * 59} free GPU-5d2b0c1e"]),
        ("s" + "n" * 58 + "e", "GPU-5d2b0c1e", [f"s{'n' * 28}…{'n' * 28}e free GPU-5d2b0c1e"]),
        ("s" + "n" * 65 + "e", "x" * 30, [f"s{'n' * 65}e free", "x" * 30]),
        ("s" + "n" * 66 + "e", "x" * 30, [f"s{'n' * 32}…{'n' * 32}e free", "x" * 30]),
        ("n", "s" + "x" * 90 + "e", ["n free", f"s{'x' * 36}…{'x' * 37}e"]),
    ],
)
def test_names_lose_their_middle_where_a_row_is_too_long(
    name: str, last: str, shown: list[str]
) -> None:
    """The title of the last column always has room, and so has a short word below it."""
    found = table(columns("NAME", "STATE", "GPUS", names="NAME"), [(name, "free", last)], most=80)
    lines = [" ".join(x.split()) for x in found.splitlines()]
    assert lines == ["NAME STATE GPUS", *shown]
    assert max(map(len, found.splitlines())) <= 80


def test_the_longest_names_give_way_first() -> None:
    every = columns("POD", "NODE", "STATE", "GPUS", names="POD NODE")
    row = ("p" * 40, "n" * 20, "reserved", "GPU-5d2b0c1e")
    line = table(every, [row], most=80).splitlines()[1].split()
    assert [len(x) for x in line] == [34, 20, 8, 12]


def test_names_give_way_before_what_is_no_name() -> None:
    every = columns("NODE", "REASON", "DETAIL", names="NODE")
    row = ("n" * 60, "c" * 40, "d" * 10)
    line = table(every, [row], most=80).splitlines()[1].split()
    assert [len(x) for x in line] == [26, 40, 10]
    row = ("n" * 60, "c" * 60, "d" * 24)
    lines = table(every, [row], most=80).splitlines()
    assert lines[1:] == [f"nnnnn…nnnn  {'c' * 60}", f"    {'d' * 24}"]
    lines = table(every, [("n" * 60, "c" * 90, "d")], most=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" in lines[1].split()[1]


HOSTS = [f"ip-10-120-33-{x}.eu-central-1.compute.internal" for x in range(140, 150)]
IN_ZONES = [f"{'x' * 30}-1.zone-{x}" for x in "abc"]
PODS = [f"llama-finetune-worker-7d9f5c6b8-{x}2k4j" for x in "bcdfghjklm"]


def test_names_that_differ_look_different() -> None:
    hosts, zones, pods = (
        [line.split()[0] for line in table(COLUMNS_OF_NAMES, rows, most=30).splitlines()[1:]]
        for rows in ([(x, "y" * 9) for x in names] for names in (HOSTS, IN_ZONES, PODS))
    )
    assert hosts == [f"{x[:16]}…al" for x in HOSTS]
    assert zones == [f"{'x' * 9}…-1.zone-{x}" for x in "abc"]
    assert pods == [f"llama-fin…{x[-9:]}" for x in PODS]


def test_a_host_keeps_its_own_part_of_its_name() -> None:
    line = table(COLUMNS_OF_NAMES, [(HOSTS[0], "y" * 9)], most=30).splitlines()[1]
    assert line == "ip-10-120-33-140…al  yyyyyyyyy"
    every = columns("A", "S", "B", names="A")
    line = table(every, [(HOSTS[0], "y" * 14, "z")], most=33).splitlines()[1]
    assert line == "ip-10-1…3-140…  yyyyyyyyyyyyyy  z"


COLUMNS_OF_NAMES = columns("A", "B", names="A")


@given(
    rows=st.lists(
        st.tuples(*[st.text(st.sampled_from("ab,. -\u4e2d"), max_size=120)] * 3), max_size=4
    ),
    most=st.integers(30, 100),
)
def test_no_line_is_longer_than_the_terminal(rows: list[Row], most: int) -> None:
    found = table(columns("NAME", "STATE", "GPUS", names="NAME"), rows, most=most).splitlines()
    assert max(map(width, found)) <= most
    assert found[0].split() == ["NAME", "STATE", "GPUS"]


def test_rows_that_come_later_keep_the_columns_where_they_fit() -> None:
    layout = Layout(columns("A", "B", names="A"), [("known", "1")], most=30, least=(8,))
    assert layout.heading() == "A         B\n"
    assert layout.line(("known", "1")) == "known     1\n"
    assert layout.line(("longer-name", "1")) == "longer-name  1\n"
    assert layout.line(("x" * 40, "1")) == f"{'x' * 13}…{'x' * 13}  1\n"


def test_a_tone_is_colour_around_the_text_alone() -> None:
    toned: tuple[Column[str], ...] = (
        Column("A", str, tone=lambda x: Tone.BAD if x == "bad" else None),
        Column("B", lambda _: "b"),
    )
    assert table(toned, ["bad", "good"], colours=True) == (
        "A     B\n\x1b[31mbad\x1b[0m   b\ngood  b\n"
    )
    assert "\x1b" not in table(toned, ["bad"])
