"""`gpuwarden-score replay` on a small trace of our making, in the columns of Alibaba's."""

import csv
import random
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from controller.scorer.__main__ import main

SLOWNESS = {"T4": 3.0, "P100": 2.0, "V100": 1.0}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Thirty types of jobs; what is fast differs: a third of them is as fast on a T4."""
    draw, path = random.Random(5), tmp_path / "pai_task_table.csv"  # noqa: S311 -- the same every time
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        for number in range(900):
            job, gpu = draw.randrange(30), draw.choice(sorted(SLOWNESS))
            slowness = 1 / SLOWNESS[gpu] if job % 3 == 0 else SLOWNESS[gpu]
            seconds = 600 * (1 + job) * slowness * draw.uniform(0.8, 1.25)
            status = "Failed" if draw.random() < 0.1 else "Terminated"
            times = (60.0 * number, 60.0 * number + seconds)
            writer.writerow((f"j{number}", "worker", 1.0, status, *times, 600, 30, job, gpu))
    return path


def test_it_reports_regret_and_draws_it(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "regret.svg"
    assert main(["replay", str(trace), "--plot", str(plot)]) == 0
    shown = capsys.readouterr().out
    regret = {line.split()[0]: float(line.split()[2]) for line in shown.splitlines()[4:] if line}
    assert list(regret) == ["oracle", "learned", "random", "first-fit"]
    assert regret["oracle"] == 0 < regret["learned"] < regret["random"] / 2
    assert regret["learned"] < regret["first-fit"] / 2
    assert "over 20 seeds" in shown
    drawing = ET.fromstring(plot.read_text())  # noqa: S314 -- written a moment ago
    lines = drawing.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 3
    assert main(["replay", str(trace)]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "No such file"),
        ("a,b\n", "line 1: 2 columns, expected 10"),
        ("", "no type of job ran on two GPU types"),
        ("\0", ""),
    ],
)
def test_what_fails_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, problem: str
) -> None:
    path = tmp_path / "trace.csv"
    if content is not None:
        path.write_text(content)
    assert main(["replay", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"gpuwarden-score replay: {path}: ")
    assert problem in error
    assert error.count("\n") == 1
