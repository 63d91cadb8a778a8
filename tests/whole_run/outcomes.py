"""Pytest plugin: writes what was collected, and how each test ended, one JSON line each.

`-p tests.whole_run.outcomes --outcomes FOLDER`. The names stand in FOLDER/collected before the
first test runs; FOLDER/outcomes follows. Where processes share the tests, what any of them has
collected was collected. It decides nothing: see `tests.whole_run.verdict`.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

COLLECTED: Final = "collected"
OUTCOMES: Final = "outcomes"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", metavar="FOLDER", help="write names and outcomes there")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--outcomes")
    if path is not None and not hasattr(config, "workerinput"):  # workers report to this process
        config.pluginmanager.register(_Writer(Path(path)))


class _Writer:
    def __init__(self, folder: Path) -> None:
        self._collected, self._outcomes = folder / COLLECTED, folder / OUTCOMES
        self._known: set[str] = set()
        folder.mkdir(parents=True, exist_ok=True)
        for file in (self._collected, self._outcomes):
            file.write_text("")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._know(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Iterable[str]) -> None:
        self._know(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            outcome = {"outcome": report.outcome, "reason": _reason(report)}
            _write(self._outcomes, [{"test": report.nodeid, **outcome}])

    def _know(self, ids: Iterable[str]) -> None:
        new = [test for test in ids if test not in self._known]
        self._known.update(new)
        _write(self._collected, [{"test": test} for test in new])


def _write(file: Path, lines: Iterable[dict[str, str]]) -> None:
    with file.open("a") as stream:
        stream.writelines(json.dumps(line) + "\n" for line in lines)


def _reason(report: pytest.TestReport) -> str:
    said = report.longrepr
    return said[2].removeprefix("Skipped: ") if isinstance(said, tuple) else ""
