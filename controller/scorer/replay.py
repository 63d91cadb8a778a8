"""`gpuwarden-score replay TRACE`: what the score would have cost on recorded runs."""

import argparse
import csv
import random
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from controller.scorer.failures import USAGE, failed
from controller.scoring.parameters import Parameters
from controller.scoring.replay import Draw, Report, read_alibaba, replay

SHUFFLES: Final = 20
_WIDTH, _HEIGHT = 720, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 110, 44, 48
_POINTS: Final = 400
_COLOURS: Final = ("#1f6fb4", "#c2571a", "#4d8f3a")


def main(arguments: Sequence[str]) -> int:
    """Run it; returns the exit status."""
    given = parser().parse_args(arguments)
    try:
        with given.trace.open(newline="") as file:
            runs = read_alibaba(csv.reader(file))
        report = replay(runs, Parameters(), [_draw(seed) for seed in range(SHUFFLES)])
        if given.plot is not None:
            given.plot.write_text(svg(report))
    except (ValueError, csv.Error) as error:
        return failed("replay", ValueError(f"{given.trace}: {error}"), USAGE)
    except OSError as error:
        return failed("replay", error)
    sys.stdout.write(text(report))
    return 0


def text(report: Report) -> str:
    """The report as a table."""
    lines = [
        f"{report.jobs} jobs of {report.job_types} types on {report.gpu_types} GPU types",
        f"{report.left_out} runs left out: their type of job ran on one GPU type only",
        "",
        f"{'choice':<12}{'GPU hours':>12}{'regret':>10}",
        f"{'oracle':<12}{report.oracle_hours:>12.2f}{'0.0 %':>10}",
    ]
    for one in report.outcomes:
        regret = f"{100 * (one.hours / report.oracle_hours - 1):.1f} %"
        spread = f"  (± {one.spread:.2f} over {SHUFFLES} seeds)" if one.spread else ""
        lines.append(f"{one.name:<12}{one.hours:>12.2f}{regret:>10}{spread}")
    return "\n".join(lines) + "\n"


def svg(report: Report) -> str:
    """Regret after each job, one line for each way of choosing."""
    top = max(max(x.regret) for x in report.outcomes) or 1.0
    across, down = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def place(at: int, hours: float) -> tuple[float, float]:
        return _LEFT + across * (at + 1) / report.jobs, _TOP + down * (1 - hours / top)

    parts = [
        _label(_WIDTH / 2, 22, "GPU hours above the oracle", "middle"),
        _label(_LEFT + across / 2, _HEIGHT - 12, f"jobs, of {report.jobs:,}", "middle"),
        f'<path d="M{_LEFT} {_TOP}V{_TOP + down}H{_LEFT + across}" fill="none" stroke="#333333"/>',
        _label(_LEFT - 8, _TOP + 4, f"{top:.1f}", "end"),
        _label(_LEFT - 8, _TOP + down + 4, "0", "end"),
    ]
    step = max(1, report.jobs // _POINTS)
    for one, colour in zip(report.outcomes, _COLOURS, strict=True):
        last = len(one.regret) - 1
        shown = [(at, x) for at, x in enumerate(one.regret) if at % step == 0 or at == last]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*each) for each in shown))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        x, y = place(last, one.regret[-1])
        parts.append(_label(x + 6, y + 4, one.name, "start", colour))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}"'
        f' viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="13">\n'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _label(x: float, y: float, words: str, anchor: str, colour: str = "#333333") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"'
    return f"<text {place}>{escape(words)}</text>"


def _draw(seed: int) -> Draw:
    return random.Random(seed).choice  # noqa: S311 -- the same draws every time


def parser() -> argparse.ArgumentParser:
    """The arguments of the command."""
    found = argparse.ArgumentParser(
        prog="gpuwarden-score replay",
        allow_abbrev=False,
        description="Say what the score would have cost on recorded runs, beside an oracle, chance,"
        " and the first type. Example: replay pai_task_table.csv --plot regret.svg",
    )
    found.add_argument("command", choices=["replay"], help=argparse.SUPPRESS)
    found.add_argument(
        "trace", type=Path, help="pai_task_table.csv of Alibaba's cluster-trace-gpu-v2020"
    )
    found.add_argument("--plot", type=Path, help="file for the regret after each job, as SVG")
    return found
