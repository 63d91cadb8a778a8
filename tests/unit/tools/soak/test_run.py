"""A soak of which nothing comes to its end: it ends all the same, and says what was outstanding."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandbox.fleet.process import Report as FleetReport
from sandbox.fleet.tally import Tally
from tests.e2e.lab.api import Api, Document
from tests.e2e.lab.pods import Namespace
from tests.e2e.product.ledger import OBJECTS
from tests.hang import HANG_S
from tests.soak import run
from tests.soak.report import Shape, Stuck
from tests.soak.run import Soak
from tests.soak.watch import Phase, Watch, during
from tests.soak.workers import Workers

RECORD = {
    "spec": {
        "gpu": "GPU-7",
        "node": "soak-003",
        "holders": [{"pod": {"uid": "u-1"}, "state": "Confirmed"}],
    }
}
NOT_SERVED = (
    '{"timestamp": "%s", "level": "warning", "event": "kube.cache.trouble", "reason": "the API'
    ' server answered 429 TooManyRequests: storage is (re)initializing"}\n'
)
LATE = (timedelta(), timedelta(minutes=1))
"""Of the line: while the cluster starts, and when everything stood long ago."""
PENDING = {
    "spec": {},
    "status": {"phase": "Pending", "conditions": [{"message": "0/24 nodes are available"}]},
}


class StubbornApi(Api):
    """Pods are never bound, and one reservation is never given back."""

    def __init__(self) -> None:
        self.created = threading.Event()
        self.closed = threading.Event()

    def _document(
        self, method: str, path: str, body: Document | None = None, kind: str = ""
    ) -> Document:
        del body, kind
        if method == "POST":
            self.created.set()
            return {"metadata": {"name": "a"}}
        if path == OBJECTS:
            return {"items": [RECORD]}
        if path.endswith("/pods"):
            return {"items": [], "metadata": {"resourceVersion": "1"}}
        return PENDING

    def watched(self, path: str) -> Iterator[Document]:
        del path
        self.closed.wait(0.05)
        return iter(())

    @contextmanager
    def kept_open(self) -> Iterator[Api]:
        yield self


class Cluster:
    """Its kills fail as soon as there is a pod: it has no replicas."""

    def __init__(self, log: Path) -> None:
        self.api = StubbornApi()
        self.lab = SimpleNamespace(api=self.api, log_sizes=lambda: {log: 0})
        self.pods = Namespace(self.api, "soak")
        self.fleet = SimpleNamespace(report=FleetReport(Tally(), alive=True))

    @property
    def controllers(self) -> list[Any]:
        self.api.created.wait(HANG_S)
        return []

    def processes(self) -> dict[str, int]:
        return {}

    def missing(self) -> list[str]:
        return []


def test_nothing_settles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BIND", "AGREE", "EMPTY"):
        monkeypatch.setattr(run, name, Phase(name, 0.3))
    own_log = tmp_path / "agents.log"
    own_log.write_text("")
    log = tmp_path / "controller-0.log"
    log.write_text("".join(NOT_SERVED % (datetime.now(UTC) + late).isoformat() for late in LATE))
    watch = Watch(lambda _: None, lambda _: None)
    shape = Shape(HANG_S / 60, 24, 60_000, 60, 60, 100)
    workers = Workers()
    soak = Soak(Cluster(log), shape, own_log, workers, watch)  # type: ignore[arg-type] # a fake
    report = soak.run()
    assert workers.running(["kill", "rotate", "measure", "act on pods", "follow pods"]) == []
    assert report.failed[0].startswith("kill: ValueError(")
    stuck = {x.phase: x for x in report.stuck}
    assert list(stuck) == [during(shape.minutes).name, "BIND", "AGREE", "EMPTY"]
    assert stuck[during(shape.minutes).name].why == "a thread has raised"
    assert (
        stuck["BIND"].outstanding[0] == "pod soak-0: Pending on no node: 0/24 nodes are available"
    )
    (differs,), (left,) = stuck["AGREE"].outstanding, stuck["EMPTY"].outstanding
    assert differs.startswith("only ledger have Held(gpu='GPU-7'")
    assert left.startswith("reservation Held(gpu='GPU-7'")
    assert report.ledger.left == 1
    (kind,) = report.logs.explained
    assert (kind.name, kind.count) == ("custom resource not served yet", 1)
    assert len(report.logs.unexplained) == 1
    assert isinstance(report.stuck[0], Stuck)
    assert "pods created, 0 bound" in watch.state()
