"""That the library which watches the Workload API sleeps while nothing comes."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from types import ModuleType

import grpc._common  # what is set there is what this is about
import pytest

from gpuwarden.identity.workload_api import WAKE_S, sleep_longer


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = grpc._common.MAXIMUM_WAIT_TIMEOUT
    yield
    grpc._common.MAXIMUM_WAIT_TIMEOUT = before


def test_nothing_is_changed_by_an_import() -> None:
    code = (
        "import grpc._common; before = grpc._common.MAXIMUM_WAIT_TIMEOUT;"
        "import gpuwarden.identity.workload_api;"
        "raise SystemExit(grpc._common.MAXIMUM_WAIT_TIMEOUT != before)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("other", [{}, {"MAXIMUM_WAIT_TIMEOUT": "soon"}])
def test_a_grpc_that_has_no_such_thing_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, other: dict[str, str]
) -> None:
    module = ModuleType("grpc._common")
    vars(module).update(other)
    monkeypatch.setitem(sys.modules, "grpc._common", module)
    before = dict(vars(module))
    assert sleep_longer() is False
    assert vars(module) == before
    monkeypatch.setitem(sys.modules, "grpc._common", None)
    assert sleep_longer() is False


def test_blocking_calls_of_grpc_sleep_long_and_end_at_once() -> None:
    assert sleep_longer() is True
    done, sleeps = threading.Event(), list[float]()

    def sleep(*, timeout: float) -> bool:
        sleeps.append(timeout)
        done.set()
        return True

    assert grpc._common.wait(sleep, done.is_set) is False
    assert sleeps == [WAKE_S]
