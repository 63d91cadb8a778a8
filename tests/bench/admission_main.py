"""`python -m tests.bench.admission_main`: the product's webhooks for pods.

Listener, webhooks, judgement, recorder and audit log are the controller's own. No API server is
there: the namespace counts as enforced by the path, as where a real one says so.
"""

import argparse
import asyncio
import gc
import json
import sys
from pathlib import Path

from controller.__main__ import run_to_end
from controller.admission.pod_webhooks import AdmissionDecision, PodWebhooks
from controller.admission.rules import AdmissionRules
from controller.audit.opening import audit_log
from controller.audit.sealing import LogIdentity
from controller.recorders.http import AdmissionRecorder
from controller.web.listener import HttpServer
from controller.web.tls import TlsFiles
from controller.web.webhook import AdmissionLimits, AdmissionWebhooks
from gpuwarden import __version__
from gpuwarden.clock import SystemClock
from gpuwarden.settings.controller import AuditSettings
from gpuwarden.settings.shared import LogFormat, LogLevel
from gpuwarden.settings.values import Address
from gpuwarden.telemetry import logs
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cert", type=Path, required=True)
    parser.add_argument("--key", type=Path, required=True)
    parser.add_argument("--ca", type=Path, required=True)
    parser.add_argument("--audit", type=Path, required=True)
    options = parser.parse_args()
    sys.exit(run_to_end(lambda: serve(options)))


async def serve(options: argparse.Namespace) -> int:
    logs.configure(LogLevel.WARN, LogFormat.JSON, service="bench")
    instruments = Instruments(Process.CONTROLLER, __version__)
    log = audit_log(
        AuditSettings(dir=options.audit, reserve=0),
        LogIdentity("bench/controller-0", "boot", "0" * 32),
        SystemClock(),
        instruments,
        copies_to=None,
    )
    recorder = AdmissionRecorder(instruments, await log.open(), _forget)
    pods = PodWebhooks(AdmissionRules(), is_enforced=lambda _: True, note=recorder.note)
    limits = AdmissionLimits()
    webhooks = AdmissionWebhooks(pods.handlers(), metrics=recorder, limits=limits, report=False)
    server = HttpServer(
        webhooks.application(),
        name="admission",
        address=Address("127.0.0.1", 0),
        tls=TlsFiles(options.cert, options.key, options.ca),
        limits=limits,
        observer=recorder,
    )
    host, port = await server.start()
    gc.collect()
    sys.stdout.write(json.dumps({"event": "listening", "address": f"{host}:{port}"}) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()
    return 0


def _forget(decision: AdmissionDecision) -> None:
    del decision


if __name__ == "__main__":
    main()
