"""Pytest plugin: writes what was collected, and how each test ended, one JSON line each.

`-p tests.whole_run.outcomes --outcomes FILE`. With --collect-only the names alone are
written. It decides nothing: see `tests.whole_run.verdict`.
"""

import json
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", metavar="FILE", help="write the tests' outcomes there")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--outcomes")
    if path is not None and not hasattr(config, "workerinput"):  # workers report to this process
        config.pluginmanager.register(_Writer(Path(path)))


class _Writer:
    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.config.option.collectonly:
            for item in session.items:
                self._write(test=item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._write(test=report.nodeid, outcome=report.outcome, reason=_reason(report))

    def _write(self, **line: str) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _reason(report: pytest.TestReport) -> str:
    said = report.longrepr
    return said[2].removeprefix("Skipped: ") if isinstance(said, tuple) else ""
