import math
from datetime import UTC, datetime

import structlog
from aiohttp import web

from controller.recorders.listeners import ListenerRecorder, show_listener
from controller.web.handshakes import ClientCertificates, HandshakeFailure
from controller.web.listener import ConnectionEnd, ConnectionLimits, HttpServer
from gpuwarden.settings.values import Address
from gpuwarden.telemetry.limited import BURST
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process


class Workbench:
    def __init__(self) -> None:
        self.instruments = Instruments(Process.CONTROLLER, "0")
        self.recorder = ListenerRecorder("admission", self.instruments)

    def value(self, name: str, **labels: str) -> float | None:
        return self.instruments.registry.get_sample_value(
            f"gpuwarden_{name}", {"listener": "admission", **labels}
        )


def test_failed_handshakes_are_all_counted_and_few_are_logged() -> None:
    bench = Workbench()
    with structlog.testing.capture_logs() as logs:
        for number in range(1000):
            bench.recorder.handshake_failed(
                HandshakeFailure.NO_CERTIFICATE, f"10.0.0.1:{number}", "none shown"
            )
        bench.recorder.handshake_failed(HandshakeFailure.CLOSED, "10.0.0.2:1", "ended")
        bench.recorder.handshake_completed()
    assert [line["cause"] for line in logs] == ["no-certificate"] * BURST + ["closed"]
    assert logs[0] == {
        "event": "tls.handshake.failed",
        "log_level": "warning",
        "component": "admission",
        "listener": "admission",
        "cause": "no-certificate",
        "peer": "10.0.0.1:0",
        "reason": "none shown",
    }
    assert bench.value("tls_handshake_failures_total", cause="no-certificate") == 1000
    assert bench.value("tls_handshakes_completed_total") == 1


def test_connections_that_are_cut_are_counted_and_idle_ones_are_no_news() -> None:
    bench = Workbench()
    with structlog.testing.capture_logs() as logs:
        for cause in ConnectionEnd:
            bench.recorder.connection_cut(cause, "10.0.0.1:1")
        for _ in range(50):
            bench.recorder.malformed("BadStatusLine: x\nline two")
    cut = [line["cause"] for line in logs if line["event"] == "connections.cut"]
    assert set(cut) == set(ConnectionEnd) - {ConnectionEnd.IDLE}
    assert all(bench.value("connections_cut_total", cause=cause) == 1 for cause in ConnectionEnd)
    reasons = [line["reason"] for line in logs if line["event"] == "request.malformed"]
    assert reasons == ["BadStatusLine: x"] * BURST
    assert bench.value("requests_malformed_total") == 50


def test_open_connections_are_a_gauge() -> None:
    bench = Workbench()
    server = HttpServer(
        web.Application(),
        name="admission",
        address=Address("127.0.0.1", 0),
        tls=None,
        limits=ConnectionLimits(),
        observer=bench.recorder,
    )
    show_listener(server, bench.instruments)
    assert bench.value("connections") == 0
    assert bench.value("serving_certificate_expires_seconds") is None
    assert bench.value("client_certificate_expires_seconds") is None
    server.clients = ClientCertificates()
    show_listener(server, bench.instruments)
    assert math.isnan(bench.value("client_certificate_expires_seconds") or 0)
    server.clients.show("10.0.0.1", "", datetime(9999, 1, 1, tzinfo=UTC), datetime.now(UTC))
    assert (bench.value("client_certificate_expires_seconds") or 0) > 1e11
