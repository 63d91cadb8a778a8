"""What log, metrics and audit are told about the SPIRE server."""

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from controller.recorders.trust import MAX_LISTED, SpireJournal
from controller.spire.client import SpireFailure
from controller.spire.judgement import ADMIN_WARNING
from gpuwarden.audit.record import RecordKind
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.spire import PARENT, TD, spire_agent, spire_snapshot
from tests.fakes.recording_audit import RecordingAudit


class Bench:
    def __init__(self, logs: list[EventDict]) -> None:
        self.logs = logs
        self.audit = RecordingAudit()
        self.instruments = Instruments(Process.CONTROLLER, "test")
        self.journal = SpireJournal(self.instruments, self.audit)

    def metric(self, name: str, **labels: str) -> float | None:
        return self.instruments.registry.get_sample_value(f"gpuwarden_{name}", labels)

    @property
    def events(self) -> list[str]:
        return [str(x["event"]) for x in self.logs]


@pytest.fixture
def bench() -> Iterator[Bench]:
    with capture_logs() as logs:
        yield Bench(logs)


def test_polls_are_counted_and_availability_is_told_once(bench: Bench) -> None:
    snapshot = spire_snapshot(spire_agent(), spire_agent(f"{PARENT}-2", banned=True))
    bench.journal.taken(None, snapshot, 0.01)
    bench.journal.taken(snapshot, snapshot, 0.01)
    assert bench.metric("spire_polls_total", result="taken") == 2
    assert bench.metric("spire_available") == 1
    assert bench.metric("spire_agents", state="attested") == 1
    assert bench.metric("spire_agents", state="banned") == 1
    assert bench.events == ["spire.available"]
    assert bench.audit.noted == []


def test_each_cause_of_failure_is_told_once_and_recovery_again(bench: Bench) -> None:
    for _ in range(3):
        bench.journal.failed(SpireFailure.UNREACHABLE, "unreachable: refused")
    bench.journal.failed(SpireFailure.DENIED, "denied: no")
    bench.journal.taken(None, spire_snapshot(), 0.01)
    assert bench.metric("spire_polls_total", result="unreachable") == 3
    assert bench.metric("spire_polls_total", result="denied") == 1
    assert bench.events == ["spire.unavailable", "spire.unavailable", "spire.available"]
    assert bench.logs[0]["reason"] == "unreachable: refused"


def test_availability_falls_with_the_first_failure(bench: Bench) -> None:
    bench.journal.taken(None, spire_snapshot(), 0.01)
    bench.journal.failed(SpireFailure.SLOW, "slow")
    assert bench.metric("spire_available") == 0


def test_changed_agents_are_one_line_and_one_record_per_kind(bench: Bench) -> None:
    ids = [f"spiffe://{TD}/spire/agent/x509pop/{number}" for number in range(MAX_LISTED + 3)]
    before = spire_snapshot(*map(spire_agent, ids), spire_agent())
    after = spire_snapshot(*(spire_agent(x, banned=True) for x in ids))
    bench.journal.taken(before, after, 0.01)
    assert [(x.kind, x.subject, x.decision, dict(x.refs)) for x in bench.audit.noted] == [
        (
            RecordKind.SPIRE_STATUS,
            "spire-agents",
            "banned",
            {"count": len(ids), "agents": tuple(ids[:MAX_LISTED])},
        ),
        (RecordKind.SPIRE_STATUS, "spire-agents", "evicted", {"count": 1, "agents": (PARENT,)}),
    ]
    lines = [x for x in bench.logs if x["event"] == "spire.agents.changed"]
    assert [(x["change"], x["count"]) for x in lines] == [("banned", len(ids)), ("evicted", 1)]


def test_too_many_rights_are_a_warning(bench: Bench) -> None:
    bench.journal.excessive()
    assert bench.logs[0]["log_level"] == "warning"
    assert bench.logs[0]["warning"] == ADMIN_WARNING
