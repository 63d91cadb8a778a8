"""`python -m tests.bench.extender_main`: the product's extender over a fleet in memory.

Server, verbs, filter, recorder and audit log are the controller's own; only the fleet was
not attested over streams but put into the registry.
"""

import argparse
import asyncio
import gc
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import uvloop

from controller.audit.opening import audit_log
from controller.audit.sealing import LogIdentity
from controller.binding.use import LedgerUse
from controller.placement.filter_and_score import FilterDecision
from controller.placement.keys import RequirementRules
from controller.placement.snapshot import Scenes, no_use
from controller.policy import DEFAULT_POLICY
from controller.recorders.http import ExtenderRecorder, FilterRecorder
from controller.web.extender.extender import Extender, ExtenderLimits, ExtenderServer
from controller.web.extender.verbs import ExtenderVerbs
from controller.web.tls import TlsFiles
from gpuwarden import __version__
from gpuwarden.clock import SystemClock, moment_of
from gpuwarden.settings.controller import AuditSettings
from gpuwarden.settings.shared import LogFormat, LogLevel
from gpuwarden.settings.values import Address
from gpuwarden.telemetry import logs
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.bench.fleet_of import ledger_of, registry_of
from tests.fakes.recording_audit import RecordingAudit


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--cert", type=Path, required=True)
    parser.add_argument("--key", type=Path, required=True)
    parser.add_argument("--ca", type=Path, required=True)
    parser.add_argument("--audit", type=Path)
    parser.add_argument("--full", type=int, default=0, help="nodes whose GPUs all have a holder")
    uvloop.run(serve(parser.parse_args()))


async def serve(options: argparse.Namespace) -> None:
    logs.configure(LogLevel.WARN, LogFormat.JSON, service="bench")
    registry, rare, usual = registry_of(options.nodes)
    ledger = ledger_of(options.full)
    clock, instruments = SystemClock(), Instruments(Process.CONTROLLER, __version__)
    recorder = ExtenderRecorder(instruments, RecordingAudit())
    verbs = ExtenderVerbs(
        scenes=Scenes(registry.snapshot, lambda: DEFAULT_POLICY, partial(moment_of, clock)),
        not_ready=lambda: None,
        use=LedgerUse(lambda: ledger).use if options.full else no_use,
        rules=RequirementRules(
            hash_keys=("gpuwarden.dev/required-hash",),
            managed_resources=("nvidia.com/gpu",),
            opaque_hashes=False,
        ),
    )
    note: Callable[[FilterDecision], None] = _forget
    if options.audit is not None:
        log = audit_log(
            AuditSettings(dir=options.audit, reserve=0),
            LogIdentity("bench/controller-0", "boot", "0" * 32),
            clock,
            instruments,
            copies_to=None,
        )
        note = FilterRecorder(await log.open(), recorder.count_nodes).note
    limits = ExtenderLimits()
    server = ExtenderServer(
        Extender(verbs, note=note, metrics=recorder, limits=limits),
        address=Address("127.0.0.1", 0),
        tls=TlsFiles(options.cert, options.key, options.ca),
        observer=recorder,
        limits=limits,
    )
    host, port = await server.start()
    gc.collect()
    event = {"event": "listening", "address": f"{host}:{port}", "rare": rare, "usual": usual}
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def _forget(decision: FilterDecision) -> None:
    del decision


if __name__ == "__main__":
    main()
