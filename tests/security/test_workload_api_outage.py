"""An outage of the Workload API that outlives the library that talks to it.

spiffe 0.3.2 multiplies a float with 2**attempt: at the 1,025th attempt in a row, 85 minutes
into an outage at its usual pace, its thread ends with OverflowError and tells nobody. Here
its pauses are taken out, so that it gets there within seconds, against a real socket.
"""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from spiffe.workloadapi.workload_api_client import RetryPolicy

from gpuwarden.identity.spiffe_id import parse_spiffe_id
from gpuwarden.identity.svid import exactly
from gpuwarden.identity.svid_watcher import SvidWatcher
from gpuwarden.identity.watchdog import Limits
from gpuwarden.identity.workload_api import SpiffeWorkloadApi, WorkloadApiError
from sandbox.spiffe.workload import Fault
from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.fakes.clock import FakeClock

AGENT = "spiffe://example.org/gpuwarden/agent/node-a"
QUICK = Limits(tick=0.01)
"""The SVID watcher looks around often in real time; when it probes is up to the test's clock."""
SECONDS = 30.0


def until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < end, "never happened"
        time.sleep(0.01)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[type[BaseException] | None]:
    """How threads have ended by an exception; and retries of the library without pauses."""
    seen: list[type[BaseException] | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: seen.append(args.exc_type))
    monkeypatch.setattr(RetryPolicy.__init__, "__defaults__", (0, 0.1, 2, 0.0))
    return seen


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[InsecureWorkloadApi]:
    with InsecureWorkloadApi(tmp_path) as api:
        api.add("a", AGENT)
        yield api


def test_the_watch_of_the_library_dies_in_silence_and_the_svid_watcher_goes_on(
    sandbox: InsecureWorkloadApi, tmp_path: Path, ends: list[type[BaseException] | None]
) -> None:
    endpoint, wanted = f"unix://{tmp_path}/a.sock", exactly(parse_spiffe_id(AGENT))
    clock = FakeClock(wall=time.time_ns())
    with SvidWatcher.dialing(endpoint, wanted, clock, QUICK) as svid_watcher:
        until(lambda: svid_watcher.current() is not None)
        first = svid_watcher.current()
        sandbox.fault("a", Fault.SOCKET_REMOVED)
        until(lambda: OverflowError in ends)
        assert svid_watcher.current() is first
        sandbox.fault("a", Fault.NONE)
        sandbox.rotate_ca()
        # A probe that fails would have the watch built again, for another reason than its silence.
        until(lambda: _answers(endpoint))

        def renewed() -> bool:
            clock.boottime += 5 * 1_000_000_000  # probes come by boot time
            svid = svid_watcher.current()
            return svid is not None and svid is not first

        until(renewed)
        assert svid_watcher.facts().failures == 0


def _answers(endpoint: str) -> bool:
    wanted = exactly(parse_spiffe_id(AGENT))
    api = SpiffeWorkloadApi(endpoint, wanted, fetch_timeout=0.5, first_update_timeout=1.0)
    try:
        api.fetch()
    except WorkloadApiError:
        return False
    return True
