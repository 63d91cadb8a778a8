"""A pytest session that collects, and then hands the collected tests over instead of running them.

Tests are run one by one with `first_failure`, in a forked child.
"""

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import pytest
from hypothesis import Phase, settings

from tests.mutation.forks import Announce

_OPTIONS: Final = (
    *("-q", "--no-header", "-s", "-p", "no:cacheprovider", "-p", "no:xdist"),
    # Libraries are loaded before pytest, so that a fork need not load them.
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)
_PROFILE: Final = "mutation"
Run = Callable[[pytest.Session], None]


class _Session:
    """The plugin."""

    def __init__(self, run: Run) -> None:
        self._run = run

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self) -> None:
        """The same inputs each time, and no search for the smallest one that fails."""
        # A database would remember what failed with one mutant for the next.
        settings.register_profile(
            _PROFILE,
            settings(),
            derandomize=True,
            database=None,
            phases=(Phase.explicit, Phase.generate),
        )
        settings.load_profile(_PROFILE)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._run(session)
        return True


class _Failures:
    """Sees the first part of a test that fails."""

    def __init__(self) -> None:
        self.text = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.text = self.text or f"{report.nodeid} ({report.when})\n{report.longreprtext}"


def collect(tests: Iterable[str], run: Run) -> int:
    """Collect `tests` and give the session to `run`; pytest's exit status."""
    return int(pytest.main([*_OPTIONS, *tests], plugins=[_Session(run)]))


def in_folder(session: pytest.Session, folder: Path) -> None:
    """Let tests make their temporary folders in `folder`."""
    factory = session.config._tmp_path_factory  # type: ignore[attr-defined]  # no public way
    factory._basetemp = folder


def first_failure(
    items: Iterable[tuple[pytest.Item, float]],
    announce: Announce,
    around: Callable[[str], None] = lambda _: None,
) -> str:
    """Run tests up to the first that fails, each in so many seconds; says how that one failed."""
    failures, last = _Failures(), None
    chosen = list(items)
    following = [*(item for item, _ in chosen), None]
    for (item, limit), after in zip(chosen, following[1:], strict=True):
        if last is None:
            item.config.pluginmanager.register(failures)
        last = item
        announce(limit)
        around(item.nodeid)
        try:
            item.ihook.pytest_runtest_protocol(item=item, nextitem=after)
        except BaseException as error:  # noqa: BLE001 - a mutant may raise KeyboardInterrupt
            failures.text = failures.text or repr(error)
        if failures.text:
            break
    if last is not None:
        with contextlib.suppress(Exception):
            last.session._setupstate.teardown_exact(None)
    return failures.text
