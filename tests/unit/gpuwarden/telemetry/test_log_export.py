"""Log records as a real collector on loopback gets them, and what their export may never do."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NoReturn

import pytest
from structlog.testing import capture_logs

from gpuwarden.telemetry import log_export as module
from gpuwarden.telemetry.log_entry import LogEntry, Severity
from gpuwarden.telemetry.log_export import (
    BATCH_RECORDS,
    QUEUE_RECORDS,
    LogExport,
    log_export,
)
from tests.fakes.otlp_collector import OtlpCollector, closed_address
from tests.hang import HANG_S

ENTRY = LogEntry(
    scope="gpuwarden.audit",
    name="gpuwarden.audit.node.state",
    time_ns=1_700_000_000_123_000_000,
    severity=Severity.WARNING,
    body="what happened",
    attributes={"gpuwarden.seq": 7, "gpuwarden.actor": "jane", "gpuwarden.codes": ("A", "B")},
)
RESOURCE = {"service.name": "gpuwarden-controller", "k8s.cluster.name": "lab"}


def entry(number: int) -> LogEntry:
    return replace(ENTRY, attributes={"gpuwarden.seq": number})


@pytest.fixture(autouse=True)
def patient_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end waits for the collector however busy the machine is; who wants less sets less."""
    monkeypatch.setattr(module, "END_S", HANG_S)


@pytest.fixture
def collector() -> Iterator[OtlpCollector]:
    collector = OtlpCollector()
    yield collector
    collector.close()


def exporting(endpoint: str, lost: list[int]) -> LogExport:
    made = log_export(f"{endpoint}/", resource=RESOURCE, headers={"x-key": "k"}, lost=lost.append)
    assert made is not None
    return made


def test_a_record_reaches_the_collector_with_all_that_it_has(collector: OtlpCollector) -> None:
    lost: list[int] = []
    export = exporting(collector.endpoint, lost)
    export.start()
    export.put(lambda: ENTRY)
    [log] = collector.wait_for_logs(bool)
    export.close()
    assert (log.scope, log.name, log.body) == (ENTRY.scope, ENTRY.name, ENTRY.body)
    assert log.attributes == ENTRY.attributes
    assert log.severity == (13, "WARN")
    assert log.time_ns == ENTRY.time_ns
    assert log.observed_ns > log.time_ns
    assert RESOURCE.items() <= log.resource.items()
    assert collector.headers[0]["x-key"] == "k"
    assert lost == []


@pytest.mark.parametrize(
    ("severity", "number"), [(Severity.INFO, 9), (Severity.WARNING, 13), (Severity.ERROR, 17)]
)
def test_a_severity_is_opentelemetry_s(
    collector: OtlpCollector, severity: Severity, number: int
) -> None:
    export = exporting(collector.endpoint, [])
    export.start()
    export.put(lambda: replace(ENTRY, severity=severity))
    export.close()
    [log] = collector.wait_for_logs(bool)
    assert log.severity == (number, severity.value)


def test_what_looks_like_a_secret_does_not_leave(collector: OtlpCollector) -> None:
    token = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJzcGlmZmUifQ.c2lnbmVk"  # noqa: S105 -- made up
    text = f"refused {token} of jane"
    export = exporting(collector.endpoint, [])
    export.start()
    export.put(lambda: replace(ENTRY, body=text, attributes={"one": text, "many": ("x", text)}))
    export.close()
    [log] = collector.wait_for_logs(bool)
    shown = "refused <redacted> of jane"
    assert log.body == shown
    assert log.attributes == {"one": shown, "many": ("x", shown)}


def test_the_end_sends_what_waits_in_its_order(collector: OtlpCollector) -> None:
    lost: list[int] = []
    export = exporting(collector.endpoint, lost)
    for number in range(2 * BATCH_RECORDS + 1):
        export.put(partial(entry, number))
    export.start()
    export.close()
    logs = collector.wait_for_logs(lambda logs: len(logs) > 2 * BATCH_RECORDS)
    assert [log.attributes["gpuwarden.seq"] for log in logs] == list(range(len(logs)))
    assert lost == []


def test_a_batch_that_the_collector_does_not_take_is_lost_and_the_next_one_is_sent(
    collector: OtlpCollector,
) -> None:
    """A path that nobody serves: it answers 404."""
    lost: list[int] = []
    export = exporting(f"{collector.endpoint}/elsewhere", lost)
    for _ in range(BATCH_RECORDS + 1):
        export.put(lambda: ENTRY)
    export.start()
    export.close()
    assert lost == [BATCH_RECORDS, 1]
    assert collector.refused == 2


def test_a_collector_that_is_not_there_costs_records_and_holds_up_no_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "END_S", 0.01)
    lost: list[int] = []
    export = exporting(closed_address(), lost)
    export.put(lambda: ENTRY)
    export.start()
    export.close()
    export._thread.join(HANG_S)
    assert not export._thread.is_alive()
    assert lost == [1]


# --- the queue alone


class Sender:
    """Takes batches when it may."""

    def __init__(self, *, taken: bool = True) -> None:
        self.batches: list[list[int]] = []
        self.go = threading.Event()
        self.begun = threading.Event()
        self._taken = taken

    def send(self, entries: Sequence[LogEntry]) -> bool:
        self.begun.set()
        assert self.go.wait(HANG_S)
        self.batches.append([int(str(one.attributes["gpuwarden.seq"])) for one in entries])
        return self._taken


def queue(sender: Sender, lost: list[int]) -> LogExport:
    """Giving up lets the sender go."""
    return LogExport(sender.send, sender.go.set, lost.append)


def put(export: LogExport, numbers: range) -> None:
    for number in numbers:
        export.put(partial(entry, number))


def test_a_full_queue_drops_the_newest_and_counts_them_and_nobody_waits() -> None:
    sender, lost = Sender(), list[int]()
    export = queue(sender, lost)
    export.start()
    put(export, range(BATCH_RECORDS))
    assert sender.begun.wait(HANG_S)
    put(export, range(BATCH_RECORDS, QUEUE_RECORDS))
    assert lost == []
    put(export, range(QUEUE_RECORDS, QUEUE_RECORDS + 2))
    assert lost == [1, 1]
    sender.go.set()
    export.close()
    sent = [number for batch in sender.batches for number in batch]
    assert sent == list(range(QUEUE_RECORDS))
    assert {len(batch) for batch in sender.batches} == {BATCH_RECORDS}
    assert lost == [1, 1]


def test_the_end_does_not_wait_for_a_collector_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "END_S", 0.01)
    sender, lost = Sender(), list[int]()
    export = queue(sender, lost)
    export.start()
    put(export, range(BATCH_RECORDS + 5))
    assert sender.begun.wait(HANG_S)
    with capture_logs() as lines:
        export.close()
    export._thread.join(HANG_S)
    assert sender.batches == [list(range(BATCH_RECORDS))]
    assert lost == [BATCH_RECORDS + 5]
    [line] = lines
    assert (line["event"], line["count"]) == ("telemetry.logs.lost", BATCH_RECORDS + 5)


def test_after_the_end_records_are_lost() -> None:
    sender, lost = Sender(), list[int]()
    export = queue(sender, lost)
    export.start()
    export.close()
    put(export, range(1))
    assert (sender.batches, lost) == ([], [1])


def test_a_record_that_cannot_be_made_costs_its_batch_alone() -> None:
    sender, lost = Sender(), list[int]()
    sender.go.set()
    export = queue(sender, lost)

    def broken() -> NoReturn:
        raise ValueError

    export.put(broken)
    put(export, range(1, BATCH_RECORDS + 1))
    export.start()
    export.close()
    assert sender.batches == [[BATCH_RECORDS]]
    assert lost == [BATCH_RECORDS]


# --- on and off


def test_without_an_endpoint_nothing_is_made_nor_imported() -> None:
    code = (
        "import sys; from gpuwarden.telemetry.log_export import log_export;"
        "made = log_export(None, resource={}, headers={}, lost=print);"
        "sys.exit(made is not None or any(m.startswith('opentelemetry') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


WITH_LOGS = """
from gpuwarden.telemetry import logs
from gpuwarden.telemetry.log_export import log_export

logs.configure("info", "json", service="a")
print(log_export("http://127.0.0.1:9", resource={}, headers={}, lost=print))
"""


def test_odd_variables_of_opentelemetry_end_no_program() -> None:
    odd = {
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=secret",
        "OTEL_PYTHON_EXPORTER_OTLP_HTTP_LOGS_CREDENTIAL_PROVIDER": "nonsense",
    }
    ran = subprocess.run(
        [sys.executable, "-c", WITH_LOGS],
        env=os.environ | odd,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )
    assert (ran.returncode, ran.stdout) == (0, "None\n"), ran.stderr
    [line] = [x for x in ran.stderr.splitlines() if "telemetry.logs.off" in x]
    for name in odd:
        assert f'"{name}"' in line
    assert "fault=RuntimeError" in line
    assert "secret" not in ran.stderr
