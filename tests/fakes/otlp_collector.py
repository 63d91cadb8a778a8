"""An OTLP/HTTP collector on loopback: takes spans and log records and keeps what it decodes.

`hold` makes it slow: it takes requests and answers none until `release`.
"""

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Condition, Event, Thread

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from tests.hang import HANG_S

CONTENT_TYPE = "application/x-protobuf"
DEADLINE_S = HANG_S


@dataclass(frozen=True, slots=True)
class CollectedSpan:
    """One span; ids in hex, `parent` empty for the first of a trace."""

    service: str
    name: str
    trace: str
    span: str
    parent: str
    attributes: Mapping[str, str]
    failed: bool
    events: tuple[str, ...]
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class CollectedLog:
    """One log record."""

    resource: Mapping[str, object]
    scope: str
    name: str
    time_ns: int
    observed_ns: int
    severity: tuple[int, str]
    body: str
    attributes: Mapping[str, object]


class OtlpCollector:
    """Listens from the start; `close` ends it."""

    def __init__(self) -> None:
        self.headers: list[Mapping[str, str]] = []
        self.refused = 0
        self._spans: list[CollectedSpan] = []
        self._logs: list[CollectedLog] = []
        self._changed = Condition()
        self._go = Event()
        self._go.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector._go.wait(DEADLINE_S)
                status, answer = collector._take(self.path, dict(self.headers), body)
                self.send_response(status)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                """A client that has gone meanwhile is none of a collector's business."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = Thread(target=self._server.serve_forever)
        self._thread.start()

    def hold(self) -> None:
        """Answer nobody."""
        self._go.clear()

    def release(self) -> None:
        """Answer again, whoever waits too."""
        self._go.set()

    def close(self) -> None:
        """End."""
        self.release()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def spans(self) -> list[CollectedSpan]:
        """All that came so far."""
        with self._changed:
            return list(self._spans)

    def wait_for(self, *names: str) -> list[CollectedSpan]:
        """Wait until spans of all these names have come; returns all spans."""
        with self._changed:
            if not self._changed.wait_for(
                lambda: set(names) <= {span.name for span in self._spans}, DEADLINE_S
            ):
                missing = set(names) - {span.name for span in self._spans}
                raise AssertionError(f"no spans {sorted(missing)}")
            return list(self._spans)

    def wait_for_logs(self, whole: Callable[[list[CollectedLog]], bool]) -> list[CollectedLog]:
        """Wait until the log records that have come are `whole`; returns all."""
        with self._changed:
            if not self._changed.wait_for(lambda: whole(self._logs), DEADLINE_S):
                raise AssertionError(f"only {[log.name for log in self._logs]}")
            return list(self._logs)

    def _take(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[HTTPStatus, bytes]:
        spans: list[CollectedSpan] = []
        logs: list[CollectedLog] = []
        try:
            match path:
                case "/v1/traces":
                    spans += _collected(ExportTraceServiceRequest.FromString(body))
                    answer = ExportTraceServiceResponse().SerializeToString()
                case "/v1/logs":
                    logs += _collected_logs(ExportLogsServiceRequest.FromString(body))
                    answer = ExportLogsServiceResponse().SerializeToString()
                case _:
                    self.refused += 1
                    return HTTPStatus.NOT_FOUND, b""
        except DecodeError:
            self.refused += 1
            return HTTPStatus.BAD_REQUEST, b""
        with self._changed:
            self.headers.append({name.lower(): value for name, value in headers.items()})
            self._spans += spans
            self._logs += logs
            self._changed.notify_all()
        return HTTPStatus.OK, answer


@contextmanager
def silent_address() -> Iterator[str]:
    """Where connections are taken by the kernel and nobody ever reads."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def closed_address() -> str:
    """Where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def _collected(request: ExportTraceServiceRequest) -> Iterator[CollectedSpan]:
    for resource in request.resource_spans:
        facts = {x.key: x.value.string_value for x in resource.resource.attributes}
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield CollectedSpan(
                    service=facts["service.name"],
                    name=span.name,
                    trace=span.trace_id.hex(),
                    span=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    attributes={x.key: x.value.string_value for x in span.attributes},
                    events=tuple(event.name for event in span.events),
                    failed=span.status.code == span.status.STATUS_CODE_ERROR,
                    begin_ns=span.start_time_unix_nano,
                    end_ns=span.end_time_unix_nano,
                )


def _collected_logs(request: ExportLogsServiceRequest) -> Iterator[CollectedLog]:
    for resource in request.resource_logs:
        for scope in resource.scope_logs:
            for log in scope.log_records:
                yield CollectedLog(
                    resource={x.key: _plain(x.value) for x in resource.resource.attributes},
                    scope=scope.scope.name,
                    name=log.event_name,
                    time_ns=log.time_unix_nano,
                    observed_ns=log.observed_time_unix_nano,
                    severity=(log.severity_number, log.severity_text),
                    body=log.body.string_value,
                    attributes={x.key: _plain(x.value) for x in log.attributes},
                )


def _plain(value: AnyValue) -> object:
    match value.WhichOneof("value"):
        case "int_value":
            return value.int_value
        case "array_value":
            return tuple(_plain(one) for one in value.array_value.values)
        case _:
            return value.string_value
