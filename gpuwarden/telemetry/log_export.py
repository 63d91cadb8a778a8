"""Log records on their way to OpenTelemetry: a bounded queue that a thread of its own empties.

Whoever puts a record never waits. What finds the queue full, or is not taken by the collector, is
lost and counted: the audit log on disk is the proof, this is a copy. OpenTelemetry is imported
only where an endpoint is set.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final

from gpuwarden.telemetry import trace_export
from gpuwarden.telemetry.log_entry import LogEntry
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.names import Event

QUEUE_RECORDS: Final = 2048
BATCH_RECORDS: Final = 256
LINGER_S: Final = 1.0
"""How long the first record waits for company."""
END_S: Final = 0.5
"""What the end of a process may wait for the last records."""


class LogExport:
    """The queue and its thread: `start` and `close` once, `put` from any thread at any time."""

    def __init__(
        self,
        send: Callable[[Sequence[LogEntry]], bool],
        give_up: Callable[[], None],
        lost: Callable[[int], None],
    ) -> None:
        """`send` returns whether a batch was taken, and may take long until `give_up` is called."""
        self._send = send
        self._give_up = give_up
        self._lost = lost
        self._waiting: deque[Callable[[], LogEntry]] = deque()
        """Those of the batch that is being sent are the first."""
        self._closing = False
        self._ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="otlp logs", daemon=True)

    def start(self) -> None:
        """Send what is put from now on, and what was put before."""
        self._thread.start()

    def put(self, make: Callable[[], LogEntry]) -> None:
        """Queue a record, which `make` makes on the thread that sends it; never waits."""
        with self._changed:
            if self._closing or len(self._waiting) >= QUEUE_RECORDS:
                self._lost(1)
                return
            self._waiting.append(make)
            if len(self._waiting) in {1, BATCH_RECORDS}:
                self._changed.notify()

    def close(self) -> None:
        """Send what waits, for `END_S` seconds at most; what is left then is lost."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(END_S)
        with self._changed:
            self._ended = True
            left = len(self._waiting)
            self._waiting.clear()
        self._give_up()
        if left:
            self._lost(left)
            logger("telemetry").warning(Event.LOG_RECORDS_LOST, count=left)

    def _run(self) -> None:
        while batch := self._next():
            taken = self._deliver(batch)
            with self._changed:
                if self._ended:
                    return
                for _ in batch:
                    self._waiting.popleft()
            if not taken:
                self._lost(len(batch))

    def _next(self) -> list[Callable[[], LogEntry]]:
        """The next batch; empty when nothing follows."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            self._changed.wait_for(
                lambda: len(self._waiting) >= BATCH_RECORDS or self._closing, LINGER_S
            )
            return list(islice(self._waiting, BATCH_RECORDS))

    def _deliver(self, batch: Sequence[Callable[[], LogEntry]]) -> bool:
        try:
            return self._send([make() for make in batch])
        except Exception:  # noqa: BLE001 -- whatever it is, a copy is not worth the ones that follow
            return False


def log_export(
    endpoint: str | None,
    *,
    resource: Mapping[str, str],
    headers: Mapping[str, str],
    lost: Callable[[int], None],
) -> LogExport | None:
    """Make what sends records to an OTLP/HTTP base URL, if there is one; not yet started.

    `lost` counts. `OTEL_*` variables for resources and the exporter are honoured by the SDK. Where
    it cannot begin with them no records are sent, and a warning names the variables.
    """
    if endpoint is None:
        return None
    try:
        # OpenTelemetry is loaded where it is used; it reads variables already then.
        from gpuwarden.telemetry.otlp_logs import OtlpLogs  # noqa: PLC0415

        exporter = OtlpLogs(endpoint, resource=resource, headers=headers)
    except Exception as error:  # noqa: BLE001 -- whatever it is, the export is not worth the process
        trace_export.report_off(Event.LOG_EXPORT_OFF, error)
        return None
    return LogExport(exporter.send, exporter.give_up, lost)
