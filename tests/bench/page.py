"""A benchmark report as a page for people."""

from collections.abc import Iterable

from tests.bench.results import Bound, Goal, Report, Row

BEGIN = "<!-- begin: written by make bench -->"
END = "<!-- end: written by make bench -->"
_NOTHING = "-"
_SMALL = 10
_LARGE = 1000


def table(rows: Iterable[Row]) -> str:
    """A Markdown table, one row each, without columns that all lack; notes are below it."""
    rows = tuple(rows)
    notes = [row for row in rows if row.note]
    columns = [("work", "---"), ("gpuwarden", "---:")]
    if has_peer := any(row.peer is not None for row in rows):
        columns += [("peer", "---:"), ("ratio", "---:")]
    if has_goal := any(row.goal is not None for row in rows):
        columns += [("goal", "---"), ("", "---")]
    lines = [_line(title for title, _ in columns), f"|{'|'.join(line for _, line in columns)}|"]
    for row in rows:
        number = f" [{notes.index(row) + 1}]" if row.note else ""
        cells = [f"{_cell(row.work)}{number}", _amount(row.ours, row.unit)]
        cells += [_peer(row), _ratio(row)] if has_peer else []
        cells += [_goal(row.goal, row.unit), _verdict(row)] if has_goal else []
        lines.append(_line(cells))
    lines += ["", *(f"{at}. {row.note}" for at, row in enumerate(notes, start=1))]
    return "\n".join(lines).rstrip() + "\n"


def missed(rows: Iterable[Row]) -> str:
    """What stands between the markers of the page that people read first: what does not hold."""
    rows = tuple(rows)
    lines = [BEGIN, "", _summary(rows), ""]
    for row in (x for x in rows if x.holds is False):
        peer = "" if row.peer is None else f", {_ratio(row)} of {_peer(row)}"
        lines.append(
            f"- {row.group}: {row.work}: {_amount(row.ours, row.unit)}{peer};"
            f" goal {_goal(row.goal, row.unit)}"
        )
    return "\n".join([*lines, "", END])


def page(report: Report, plot: str) -> str:
    """What stands between the markers of the results: machine, tables by group, curves, plot."""
    parts = [BEGIN, "", "Machine: " + ", ".join(f"{k} {v}" for k, v in report.machine.items()), ""]
    for group in dict.fromkeys(row.group for row in report.rows):
        parts += [f"## {group}", "", table(row for row in report.rows if row.group == group)]
    if report.curves:
        parts += ["## Growth", "", _curves(report), "", f"![Cost over nodes]({plot})", ""]
    parts += [_summary(report.rows), "", END]
    return "\n".join(parts)


def merged(text: str, written: str) -> str:
    """`text` with the part between the markers replaced; raises ValueError without markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no {BEGIN} … {END} in the page")
    return before + written + after


def amount(value: float) -> str:
    """Three significant digits, no exponent."""
    if value >= _LARGE:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= _LARGE / 10 else f"{value:.3g}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _amount(value: float, unit: str) -> str:
    return f"{amount(value)} {unit}".rstrip()


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _peer(row: Row) -> str:
    if row.peer is None:
        return _NOTHING
    return f"{_amount(row.peer, row.unit)} ({row.peer_name})"


def _ratio(row: Row) -> str:
    ratio = row.ratio
    if ratio is None:
        return _NOTHING
    return f"{ratio:.2f}x" if ratio < _SMALL else f"{ratio:.0f}x"


def _goal(goal: Goal | None, unit: str) -> str:
    if goal is None:
        return ""
    sign = "≤" if goal.bound is Bound.AT_MOST else "≥"
    return f"{sign} {goal.value:g}x" if goal.of_ratio else f"{sign} {goal.value:g} {unit}".rstrip()


def _verdict(row: Row) -> str:
    return {None: "", True: "holds", False: "**missed**"}[row.holds]


def _curves(report: Report) -> str:
    sizes = sorted({point.nodes for curve in report.curves for point in curve.points})
    lines = [
        "| | " + " | ".join(f"{size:,} nodes" for size in sizes) + " |",
        "|---|" + "---:|" * len(sizes),
    ]
    for curve in report.curves:
        values = {point.nodes: _amount(point.value, curve.unit) for point in curve.points}
        cells = " | ".join(values.get(size, _NOTHING) for size in sizes)
        lines.append(f"| {curve.title} | {cells} |")
    return "\n".join(lines)


def _summary(rows: tuple[Row, ...]) -> str:
    missed = sum(row.holds is False for row in rows)
    goals = sum(row.goal is not None for row in rows)
    return f"{goals - missed} of {goals} goals hold." if missed else f"All {goals} goals hold."
