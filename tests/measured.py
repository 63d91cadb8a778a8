"""Pytest plugin: coverage is measured where it counts (`-p tests.measured --cov`).

The tracer makes each line of Python several times as slow, lines of tests and libraries too.
So it runs in the tests of MEASURED, which have to hold the floors, and while a module of the
product is imported, whoever imports it. Collecting goes without it, and so do the tests that
show many histories of what those tests have shown once.
"""

import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Final

import pytest
from coverage import Coverage

MEASURED: Final = ("tests/unit/", "tests/contracts/", "tests/integration/")
UNMEASURED: Final = (
    "tests/integration/test_binding_webhook_storm.py",
    "tests/integration/test_deletion_storm.py",
)
PRODUCT: Final = ("agent", "controller", "gpuwarden")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Measured(), "measured")


class Tracer:
    """Coverage that stands still but where somebody asks for it."""

    def __init__(self, coverage: Coverage) -> None:
        self._coverage = coverage
        self._asked = 0
        # What was imported before was measured then; pytest-cov sets the same.
        coverage._warn_preimported_source = False
        coverage.stop()

    @contextmanager
    def on(self) -> Iterator[None]:
        self._asked += 1
        if self._asked == 1:
            self._coverage.start()
        try:
            yield
        finally:
            self._asked -= 1
            if self._asked == 0:
                self._coverage.stop()


class MeasuredImports:
    """Finds modules of the product, and measures what they do when they are imported."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] not in PRODUCT:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path, self._tracer)
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, tracer: Tracer) -> None:
        super().__init__(name, path)
        self._tracer = tracer

    def exec_module(self, module: ModuleType) -> None:
        with self._tracer.on():
            super().exec_module(module)


class _Measured:
    def __init__(self) -> None:
        self._tracer: Tracer | None = None

    @pytest.hookimpl(trylast=True)  # after pytest-cov has begun to measure
    def pytest_sessionstart(self) -> None:
        coverage = Coverage.current()
        if coverage is not None:
            self._tracer = Tracer(coverage)
            sys.meta_path.insert(0, MeasuredImports(self._tracer))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if self._tracer is None or not is_measured(item.nodeid):
            return (yield)
        with self._tracer.on():
            return (yield)


def is_measured(test: str) -> bool:
    return test.startswith(MEASURED) and not test.startswith(UNMEASURED)
