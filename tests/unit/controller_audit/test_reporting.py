"""What the log tells about itself: metrics, events, copies."""

import os
from collections.abc import Callable
from typing import Any

from structlog.testing import capture_logs

from controller.audit.log import Copies, Reporting
from controller.audit.sealing import SealedLine
from gpuwarden.audit.chain import Head
from gpuwarden.telemetry import names
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process

LINES = [SealedLine(b"one", Head(7, "a" * 64)), SealedLine(b"two", Head(8, "b" * 64))]


class Desk:
    """A reporting with its metrics."""

    def __init__(
        self,
        copies: Callable[[Callable[[int], None]], Copies] | None = None,
        also_close: Callable[[float], None] = lambda _timeout: None,
    ) -> None:
        self.instruments = Instruments(Process.CONTROLLER, "1")
        self.reporting = Reporting(self.instruments, copies, also_close)

    def metric(self, metric: names.Metric, suffix: str = "", **labels: str) -> float | None:
        return self.instruments.registry.get_sample_value(f"{metric.name}{suffix}", labels)

    def told(self, *states: tuple[str, bool]) -> list[dict[str, Any]]:
        with capture_logs() as logs:
            for down, low in states:
                self.reporting.state(down, low=low)
        return [dict(x) for x in logs]


def event(name: str, level: str, **fields: str) -> dict[str, Any]:
    return {"component": "audit", "event": name, "log_level": level, **fields}


DOWN = event("audit.unavailable", "error", reason="no disk")
LOW = event("audit.space.low", "error")
UP = event("audit.available", "info")


def test_a_group_is_counted_by_kind_with_its_time_and_last_number() -> None:
    desk = Desk()
    desk.reporting.committed(LINES, ["node.state", "checkpoint"], 0.25)
    desk.reporting.lost(3)
    assert desk.metric(names.AUDIT_RECORDS, kind="node.state") == 1
    assert desk.metric(names.AUDIT_RECORDS, kind="checkpoint") == 1
    assert desk.metric(names.AUDIT_COMMIT_SECONDS, "_sum") == 0.25
    assert desk.metric(names.AUDIT_SEQUENCE) == 8
    assert desk.metric(names.AUDIT_LOST) == 3


def test_copies_are_whole_lines_and_the_end_waits_for_them() -> None:
    reader, writer = os.pipe()
    made: list[Copies] = []
    closed: list[float] = []

    def copies(lost: Callable[[int], None]) -> Copies:
        made.append(Copies(writer, lost))
        return made[0]

    desk = Desk(copies, closed.append)
    desk.reporting.state("", low=False)
    desk.reporting.committed(LINES, ["node.state", "node.state"], 0.25)
    desk.reporting.close()
    assert not made[0]._thread.is_alive()
    assert closed == [1.0]
    assert desk.metric(names.AUDIT_AVAILABLE) == 0
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b"one\ntwo\n"


def test_without_copies_the_end_is_told_all_the_same() -> None:
    desk = Desk()
    desk.reporting.state("", low=False)
    desk.reporting.close()
    assert desk.metric(names.AUDIT_AVAILABLE) == 0


def test_states_are_told_as_they_change() -> None:
    desk = Desk()
    assert desk.told(("no disk", False)) == [DOWN]
    assert desk.metric(names.AUDIT_AVAILABLE) == 0
    assert desk.told(("", False)) == [UP]
    assert desk.metric(names.AUDIT_AVAILABLE) == 1
    assert desk.told(("", True), ("no disk", True), ("", True), ("", False), ("", True)) == [
        LOW,
        DOWN,
        UP,
        UP,
        LOW,
    ]
    assert Desk().told(("", True)) == [LOW]
