"""The cluster that all tests of a process share; logs of failed tests; which of our accounts
called what during which test.

Nothing here is collected unless a path below tests/e2e is asked for: `make e2e`.
"""

import os
from collections.abc import Generator, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.e2e.lab.audit_log import AuditLog
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.selection import chosen_kubernetes, why_no_node
from tests.e2e.product.installation import ACCOUNTS, account
from tests.e2e.run_record import KEPT, RUN, RUNS, Run

_LAB = pytest.StashKey[Lab]()
_READY_S = pytest.StashKey[float]()
_SIZES = pytest.StashKey[Mapping[Path, int]]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: takes minutes; run by `make e2e-long`")
    config.addinivalue_line("markers", "last: looks back at what all others left; run by itself")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    del collection_path
    asked = any("e2e" in Path(argument.partition("::")[0]).parts for argument in config.args)
    return None if asked else True


@pytest.fixture(scope="session")
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A cluster with a real node where one can run, else the control plane alone."""
    audit = AuditLog(tmp_path_factory.mktemp("audit"), [account(name) for name in ACCOUNTS])
    made = Lab.control_plane_only if why_no_node() else Lab.whole
    with made(api_server_extra=audit.arguments()) as running:
        run = Run(audit, is_part=_is_part(request.config))
        run.begins(request.node.name, datetime.now(UTC))
        request.config.stash[RUN] = run
        request.config.stash[_LAB] = running
        request.config.stash[_READY_S] = running.ready_s
        yield running
        run.keep(RUNS / f"{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}-{os.getpid()}.json")
        del request.config.stash[_LAB]


@pytest.fixture(scope="session")
def real_node() -> None:
    """For tests that need a real node: left out where none can run."""
    if reasons := why_no_node():
        pytest.skip(f"no real node: {'; '.join(reasons)}")


def _is_part(config: pytest.Config) -> bool:
    """Whether not all tests of `make e2e` were asked for."""
    folder = Path(__file__).parent
    asked = [Path(argument).resolve() for argument in config.args]
    return folder not in asked or bool(config.option.keyword) or bool(why_no_node())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Know what each log held before the test, and when it began."""
    running = item.config.stash.get(_LAB, None)
    if (run := item.config.stash.get(RUN, None)) is not None:
        run.begins(item.nodeid, datetime.now(UTC))
    item.stash[_SIZES] = {} if running is None else running.log_sizes()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep what was written to the logs during a test that failed, under the test's name."""
    report = yield
    running = item.config.stash.get(_LAB, None)
    if report.failed and running is not None:
        folder = KEPT / item.name.replace("/", "-")
        told = running.keep_logs(folder, item.stash[_SIZES])
        report.sections.append(("logs of the lab", told))
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Say what was run on; tests/whole_run names what was left out."""
    del exitstatus
    seconds = config.stash.get(_READY_S, None)
    ready = "" if seconds is None else f", ready after {seconds:.1f} s"
    terminalreporter.write_line(f"Kubernetes {chosen_kubernetes().version}{ready}")
