"""Simulations as a table and a plot for docs/learned-scores.md."""

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Final

from tests.bench.hints.outcome import BATCH, SEEDS, Arm, Interval, Load, Outcome, interval
from tests.bench.hints.workload import GPUS, JOB_TYPES, MODELS
from tests.bench.page import BEGIN, END
from tests.bench.plot import rule, text

Figure = Callable[[Outcome], float]
_FIGURES: Final[tuple[tuple[str, Figure, bool], ...]] = (
    ("makespan, hours", lambda x: x.makespan_h, True),
    ("mean completion, minutes", lambda x: x.completion_min, True),
    ("of which waiting, minutes", lambda x: x.waiting_min, False),
    ("interference in all, hours", lambda x: x.interference_h, True),
    ("on the best type, % of jobs", lambda x: x.on_best, False),
)
"""Name, value, and whether the difference is a share of what it is without hints."""


def page(loads: Iterable[Load], plot: str, jobs: int) -> str:
    """What stands between the markers of the page."""
    parts = [BEGIN, "", described(jobs), ""]
    for load in loads:
        parts += [f"### {load.name}: arriving work is {load.load:.0%} of what the fleet does", ""]
        parts += [_table(load), ""]
    parts += [f"![Run time over job number]({plot})", "", END]
    return "\n".join(parts)


def _table(load: Load) -> str:
    arms = list(load.outcomes)
    heads = ["mean of the seeds"]
    for arm in arms:
        heads += [arm.value, *(["difference, 95 % confidence"] if arm is Arm.WITH else [])]
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for name, figure, is_share in _FIGURES:
        values = {arm: [figure(x) for x in found] for arm, found in load.outcomes.items()}
        cells = [name]
        for arm in arms:
            cells.append(f"{fmean(values[arm]):,.1f}")
            if arm is Arm.WITH:
                cells.append(_difference(values[arm], values[Arm.WITHOUT], is_share=is_share))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _difference(own: Sequence[float], before: Sequence[float], *, is_share: bool) -> str:
    """Of each seed with itself."""
    pairs = zip(own, before, strict=True)
    if is_share:
        return _shown(interval([100 * (x / y - 1) for x, y in pairs]), " %")
    return _shown(interval([x - y for x, y in pairs]), "")


def _shown(found: Interval, unit: str) -> str:
    return f"{found.mean:+.1f} ± {found.reach:.1f}{unit}"


# --- the plot

_WIDTH, _HEIGHT = 360, 290
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 24, 40, 44
_FOOT: Final = 36
_ENTRY: Final = 110
_COLOURS: Final = {
    Arm.WITHOUT: "#c2571a",
    Arm.WITH: "#1f6fb4",
    Arm.ORACLE: "#4d8f3a",
}
_STEP: Final = 0.5


def svg(loads: Sequence[Load]) -> str:
    """One panel a load: a line for each arm, and its confidence interval as a band."""
    top = max(
        _reaches(x) for load in loads for found in load.outcomes.values() for x in _points(found)
    )
    panels = "".join(
        f'<g transform="translate({at * _WIDTH} 0)">{_panel(load, top)}</g>\n'
        for at, load in enumerate(loads)
    )
    width, height = _WIDTH * len(loads), _HEIGHT + _FOOT
    words = "over jobs; 1: alone on the best GPU type; bands: 95 %"
    legend = "".join(_entry(at, arm) for at, arm in enumerate(loads[0].outcomes))
    foot = text(width / 2, height - 9, words, "middle")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n'
        f"{panels}{legend}\n{foot}\n</svg>\n"
    )


def _entry(at: int, arm: Arm) -> str:
    """One of the legend."""
    x, y = _LEFT + at * _ENTRY, _HEIGHT + 4
    box = f'<rect x="{x}" y="{y - 8}" width="12" height="8" fill="{_COLOURS[arm]}"/>'
    return box + text(x + 17, y, arm.value, "start")


def _points(found: Sequence[Outcome]) -> list[Interval]:
    return [interval(batch) for batch in zip(*(x.curve for x in found), strict=True)]


def _reaches(point: Interval) -> float:
    return point.mean + point.reach


def _panel(load: Load, top: float) -> str:
    across, down = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    batches = len(load.outcomes[Arm.WITH][0].curve)

    def place(at: int, value: float) -> tuple[float, float]:
        return _LEFT + across * (at + 0.5) / batches, _TOP + down * (top - value) / (top - 1)

    parts = [f'<g font-size="13">{text(_WIDTH / 2, 20, f"{load.name}: run time", "middle")}</g>']
    for step in range(int((top - 1) / _STEP) + 1):
        value = 1 + step * _STEP
        y = place(0, value)[1]
        parts += [rule(_LEFT, y, _WIDTH - _RIGHT, y), text(_LEFT - 6, y + 4, f"{value:g}", "end")]
    for jobs in range(0, batches * BATCH + 1, 250):
        x = _LEFT + across * jobs / (batches * BATCH)
        parts.append(text(x, _HEIGHT - _BOTTOM + 18, f"{jobs:,}", "middle"))
    for arm, found in load.outcomes.items():
        parts.append(_line(_points(found), _COLOURS[arm], place))
    return "".join(parts)


def _line(
    points: Sequence[Interval], colour: str, place: Callable[[int, float], tuple[float, float]]
) -> str:
    above = [place(at, x.mean + x.reach) for at, x in enumerate(points)]
    below = [place(at, x.mean - x.reach) for at, x in enumerate(points)]
    middle = [place(at, x.mean) for at, x in enumerate(points)]
    return (
        f'<polygon points="{_path((*above, *reversed(below)))}" fill="{colour}" opacity="0.15"/>'
        f'<polyline points="{_path(middle)}" fill="none" stroke="{colour}" stroke-width="2"/>'
    )


def _path(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def described(jobs: int) -> str:
    """What was simulated, in numbers."""
    seeds = f"{SEEDS[0]} to {SEEDS[-1]}"
    return (
        f"{jobs:,} jobs of {len(JOB_TYPES)} types on {GPUS} GPUs of {len(MODELS)} types,"
        f" seeds {seeds}."
    )
