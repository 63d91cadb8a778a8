import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gpuwarden.telemetry.names import Span
from gpuwarden.telemetry.tracing import configure, span


@pytest.fixture
def collector() -> Iterator[tuple[str, "Future[tuple[str, str, bytes]]"]]:
    got: Future[tuple[str, str, bytes]] = Future()

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()
            got.set_result((self.path, self.headers["x-key"], body))

        def log_message(self, *_args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    thread.join()
    server.server_close()


def test_without_an_endpoint_spans_cost_nothing() -> None:
    end = configure(None, service="agent", version="1")

    with span(Span.ROUND, node="n1") as active:
        active.set_attribute("code", "ACCEPTED")
    assert span(Span.ROUND) is span(Span.VERIFY)
    end()


def test_spans_reach_the_collector(
    collector: tuple[str, "Future[tuple[str, str, bytes]]"],
) -> None:
    endpoint, got = collector
    end = configure(f"{endpoint}/", service="agent", version="1", headers={"x-key": "k"})

    with span(Span.ROUND, node_name="n1") as outer, span(Span.INVENTORY):
        outer.set_attribute("code", "ACCEPTED")
    end()

    path, key, body = got.result(timeout=10)
    request = ExportTraceServiceRequest.FromString(body)
    resource = request.resource_spans[0]
    inner_span, outer_span = resource.scope_spans[0].spans
    assert (path, key) == ("/v1/traces", "k")
    assert inner_span.parent_span_id == outer_span.span_id
    assert (outer_span.name, inner_span.name) == ("agent.round", "agent.inventory")
    assert {x.key: x.value.string_value for x in outer_span.attributes} == {
        "node.name": "n1",
        "code": "ACCEPTED",
    }
    assert "agent" in {x.value.string_value for x in resource.resource.attributes}


def test_after_the_end_spans_cost_nothing_again(
    collector: tuple[str, "Future[tuple[str, str, bytes]]"],
) -> None:
    configure(collector[0], service="agent", version="1")()

    assert span(Span.ROUND) is span(Span.VERIFY)


def test_opentelemetry_is_not_imported_without_an_endpoint() -> None:
    code = (
        "import sys; from gpuwarden.telemetry import logs, metrics, tracing;"
        "tracing.configure(None, service='a', version='1')();"
        "sys.exit(any(m.startswith('opentelemetry') for m in sys.modules))"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
