"""The table, page and plot of a benchmark report, from rows that were never measured."""

import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tests.bench import __main__ as bench
from tests.bench.page import BEGIN, END, merged, missed, page, table
from tests.bench.plot import svg
from tests.bench.results import Bound, Curve, Goal, Point, Report, Row

FAST = Row("/filter", "names", "ms", 2.0, 8.0, "Go", Goal(Bound.AT_MOST, 0.25))
SLOW = Row("ingest", "a|b", "/s", 400.0, 1600.0, "floor", Goal(Bound.AT_LEAST, 0.45), "why")
ALONE = Row("ingest", "memory", "KiB", 120.0, goal=Goal(Bound.AT_MOST, 110, of_ratio=False))
PLAIN = Row("ingest", "median", "ms", 12_345.6)
SHORT = Curve("streams", "MiB", (Point(100, 90.0),))
CURVE = Curve("cost & <care>", "ms", (Point(100, 0.5), Point(1000, 4.0), Point(15_000, 70.0)))


def test_a_row_shows_numbers_ratio_goal_and_whether_it_holds() -> None:
    assert table([FAST]).splitlines()[2:] == [
        "| names | 2 ms | 8 ms (Go) | 0.25x | ≤ 0.25x | holds |"
    ]


def test_what_falls_short_is_said_so_and_notes_are_numbered() -> None:
    assert table([PLAIN, SLOW, ALONE]).splitlines()[2:] == [
        "| median | 12,346 ms | - | - |  |  |",
        "| a\\|b [1] | 400 /s | 1,600 /s (floor) | 0.25x | ≥ 0.45x | **missed** |",
        "| memory | 120 KiB | - | - | ≤ 110 KiB | **missed** |",
        "",
        "1. why",
    ]


@pytest.mark.parametrize(
    ("row", "holds"), [(FAST, True), (SLOW, False), (ALONE, False), (PLAIN, None)]
)
def test_a_goal_is_about_the_ratio_or_about_the_number(row: Row, holds: bool | None) -> None:
    assert row.holds is holds


def test_columns_that_every_row_lacks_are_left_out() -> None:
    assert table([ALONE, PLAIN]).splitlines()[:3] == [
        "| work | gpuwarden | goal |  |",
        "|---|---:|---|---|",
        "| memory | 120 KiB | ≤ 110 KiB | **missed** |",
    ]
    assert (
        table([replace(FAST, goal=None)]).splitlines()[0] == "| work | gpuwarden | peer | ratio |"
    )


def test_what_does_not_hold_is_a_list_for_those_who_read_no_table() -> None:
    assert missed([FAST, SLOW, ALONE, PLAIN]).splitlines() == [
        BEGIN,
        "",
        "1 of 3 goals hold.",
        "",
        "- ingest: a|b: 400 /s, 0.25x of 1,600 /s (floor); goal ≥ 0.45x",
        "- ingest: memory: 120 KiB; goal ≤ 110 KiB",
        "",
        END,
    ]


def test_the_page_has_a_table_per_group_and_counts_the_goals() -> None:
    report = Report({"cores": "2"}, (FAST, SLOW, ALONE, PLAIN), (CURVE, SHORT))
    text = page(report, "plot.svg")
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "## /filter",
        "## ingest",
        "## Growth",
    ]
    assert "Machine: cores 2" in text
    assert "| cost & <care> | 0.5 ms | 4 ms | 70 ms |" in text
    assert "| streams | 90 MiB | - | - |" in text
    assert "1 of 3 goals hold.\n" in text
    assert "All 1 goals hold." in page(Report({}, (FAST,), ()), "")


def test_only_what_stands_between_the_markers_is_replaced() -> None:
    before = f"# Title\n{BEGIN}\nold\n{END}\nafter\n"
    assert merged(before, f"{BEGIN}\nnew\n{END}") == f"# Title\n{BEGIN}\nnew\n{END}\nafter\n"
    with pytest.raises(ValueError, match="no <!-- begin"):
        merged("no markers", "")


def test_results_survive_their_file() -> None:
    report = Report({"cores": "2"}, (FAST, SLOW), (CURVE,))
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


def test_the_plot_is_well_formed_and_inside_its_panels() -> None:
    drawing = ET.fromstring(svg([CURVE, CURVE, CURVE]))  # noqa: S314 - written a moment ago
    names = {"svg": "http://www.w3.org/2000/svg"}
    circles = drawing.findall(".//svg:circle", names)
    assert len(circles) == 9
    assert all(0 < float(x.attrib["cx"]) < 360 and 0 < float(x.attrib["cy"]) < 250 for x in circles)
    heights = [float(circle.attrib["cy"]) for circle in circles[:3]]
    assert heights == sorted(heights, reverse=True)
    lines = drawing.findall(".//svg:line", names)
    assert all(float(x.attrib["x1"]) >= 0 and 0 <= float(x.attrib["y1"]) <= 250 for x in lines)


def test_every_measured_part_has_its_place_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, path in (("PAGE", bench.PAGE), ("RESULTS", bench.RESULTS)):
        written = tmp_path / f"{name}.md"
        written.write_text(path.read_text())
        monkeypatch.setattr(bench, name, written)
    monkeypatch.setattr(bench, "NUMBERS", tmp_path / "benchmarks.json")
    groups = {module.GROUP for name, module in vars(bench).items() if name.endswith("_rows")}
    assert len(groups) == len(bench.parts(tmp_path, tmp_path))
    bench.keep(Report({}, tuple(Row(group, "work", "ms", 1.0) for group in groups), ()))
    assert {row.group for row in bench.known().rows} == groups
