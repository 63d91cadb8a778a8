"""`python -m tests.bench.binding_main`: the product's binding webhook over a fleet in memory.

Listener, binding webhook, claims and audit log are the controller's own. The ledger's store is in
memory, in
the place of the API server. Claims and records are timed. Pods are known from the start, as from
the copy of the cluster's pods. A line on standard input: `report` gives what each bind took since
the last report, and what of it were writes; `burst NODES` binds 200 pods for that many nodes and
one for another node at once.
"""

import argparse
import asyncio
import gc
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from controller.__main__ import run_to_end
from controller.admission.rules import AdmissionRules
from controller.audit.opening import audit_log
from controller.audit.sealing import LogIdentity
from controller.binding.decision import BindingView
from controller.binding.request import StoredPod
from controller.binding.turns import RecentDenials
from controller.binding.webhook import (
    BINDING_WEBHOOK,
    BindingWebhook,
    Granting,
)
from controller.ledger.claim import Claim, Claimant, Claimed
from controller.ledger.reservation_id import ReservationIds, ReservationKey
from controller.ledger.store import LedgerStore
from controller.placement.snapshot import Scenes
from controller.policy import NodeMode, Policy
from controller.record import AuditLog, Record
from controller.recorders.binding import BindingRecorder
from controller.recorders.http import AdmissionRecorder
from controller.web.listener import HttpServer
from controller.web.tls import TlsFiles
from controller.web.webhook import AdmissionLimits, AdmissionWebhooks
from gpuwarden import __version__
from gpuwarden.clock import SystemClock, moment_of
from gpuwarden.reasons import Refusal
from gpuwarden.settings.controller import AuditSettings
from gpuwarden.settings.shared import LogFormat, LogLevel
from gpuwarden.settings.values import Address
from gpuwarden.telemetry import logs
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.bench.fleet_of import node_name, registry_of
from tests.builders.admitted_pods import admitted
from tests.builders.bindings import binding, env_pod, review_request
from tests.fakes.ledger_store import MemoryLedgerStore

POLICY = Policy(default_mode=NodeMode.ENV)
BURST = 200
"""Pods that are bound at once."""


@dataclass
class Writes:
    """What binds took since the last report, in milliseconds each."""

    spent: list[float] = field(default_factory=list)
    """Waiting for ledger and audit log."""
    whole: list[float] = field(default_factory=list)
    """From the request's headers to the answer."""


class TimedClaims(Claimant):
    """Claims of the product, timed."""

    def __init__(self, store: LedgerStore, writes: Writes) -> None:
        super().__init__(store)
        self._writes = writes

    async def claim(self, claim: Claim) -> Claimed | Refusal:
        begin = time.perf_counter()
        found = await super().claim(claim)
        self._writes.spent.append((time.perf_counter() - begin) * 1000)
        return found


class TimedGrants:
    """Grants of the product's audit log, timed; each follows its claim."""

    def __init__(self, log: AuditLog, writes: Writes) -> None:
        self._log = log
        self._writes = writes

    async def grant(self, record: Record) -> None:
        begin = time.perf_counter()
        await self._log.grant(record)
        self._writes.spent[-1] += (time.perf_counter() - begin) * 1000

    def note(self, record: Record) -> None:
        self._log.note(record)


class TimedRecorder(AdmissionRecorder):
    """Of the product, and notes how long answers take."""

    def __init__(self, instruments: Instruments, log: AuditLog, writes: Writes) -> None:
        super().__init__(instruments, log, lambda _: None)
        self._writes = writes

    def answered(self, path: str, result: str, seconds: float) -> None:
        super().answered(path, result, seconds)
        self._writes.whole.append(seconds * 1000)


class KnownPods:
    """A pod of every name that is asked for: `NAME` has the UID `uid-NAME`."""

    def __init__(self) -> None:
        self._pod = admitted(env_pod())

    def known(self, namespace: str, name: str) -> StoredPod | None:
        del namespace
        return StoredPod(f"uid-{name}", "7", "", has_ended=False, pod=self._pod)

    async def read(self, namespace: str, name: str) -> StoredPod | None:
        return self.known(namespace, name)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--cert", type=Path, required=True)
    parser.add_argument("--key", type=Path, required=True)
    parser.add_argument("--ca", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    sys.exit(run_to_end(lambda: serve(options)))


async def serve(options: argparse.Namespace) -> int:
    logs.configure(LogLevel.WARN, LogFormat.JSON, service="bench")
    clock, instruments = SystemClock(), Instruments(Process.CONTROLLER, __version__)
    options.folder.mkdir()
    log = await audit_log(
        AuditSettings(dir=options.folder / "audit", reserve=0),
        LogIdentity("bench/controller-0", "boot", "0" * 32),
        clock,
        instruments,
        copies_to=None,
    ).open()
    store = MemoryLedgerStore()
    registry, _, _ = registry_of(options.nodes)
    registry.set_policy(POLICY)
    scenes = Scenes(registry.snapshot, lambda: POLICY, partial(moment_of, clock))
    ids = ReservationIds("bench", (ReservationKey("k1", b"k" * 32),))
    writes = Writes()

    def view() -> BindingView:
        return BindingView(
            scene=scenes.now(),
            ledger=store.snapshot(),
            claiming={},
            ids=ids,
            rules=AdmissionRules(),
            not_ready=None,
            grant_refusal=lambda _node, _gpus: None,
        )

    sink = BindingRecorder(instruments, log)
    granting = Granting(
        claims=TimedClaims(store, writes),
        audit=TimedGrants(log, writes),
        grant_refusal=lambda _node, _gpus: None,
        sink=sink,
        wake=_nobody,
        draw_call=_Calls().draw,
    )
    binding_webhook = BindingWebhook(
        pods=KnownPods(),
        view=view,
        granting=granting,
        store=store,
        is_enforced=lambda _: True,
        denials=RecentDenials(),
        sink=sink,
        boottime_ns=clock.boottime_ns,
    )
    recorder = TimedRecorder(instruments, log, writes)
    limits = AdmissionLimits()
    webhooks = AdmissionWebhooks(
        {BINDING_WEBHOOK: binding_webhook.decide}, metrics=recorder, limits=limits, report=False
    )
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
    _say(event="listening", address=f"{host}:{port}")
    await _obey(binding_webhook, writes, options.nodes)
    return 0


class _Calls:
    def __init__(self) -> None:
        self._count = 0

    def draw(self) -> str:
        self._count += 1
        return f"{self._count:016x}"


def _nobody(nodes: Iterable[str]) -> None:
    del nodes


async def _obey(binding_webhook: BindingWebhook, writes: Writes, nodes: int) -> None:
    """Until standard input ends."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    bursts = _Bursts(binding_webhook, nodes)
    while line := (await reader.readline()).decode().split():
        if line[0] == "report":
            _say(event="report", writes=writes.spent, whole=writes.whole)
        else:
            _say(event="burst", other=await bursts.at_once(int(line[1])))
        writes.spent.clear()
        writes.whole.clear()


class _Bursts:
    """Binds of pods and nodes that nobody has used before, from the last node downwards."""

    def __init__(self, binding_webhook: BindingWebhook, nodes: int) -> None:
        self._binding_webhook = binding_webhook
        self._next = nodes
        self._pods = 0

    async def at_once(self, over: int) -> float:
        """Milliseconds that one bind takes, to a node of its own, beside BURST over others."""
        self._next -= over + 1
        mine, others = self._next, range(self._next + 1, self._next + 1 + over)
        rest = [
            asyncio.create_task(self._bind(others[n % over])) for n in range(BURST if over else 0)
        ]
        begin = time.perf_counter()
        await asyncio.create_task(self._bind(mine))
        spent = (time.perf_counter() - begin) * 1000
        await asyncio.gather(*rest)
        return spent

    async def _bind(self, node: int) -> None:
        self._pods += 1
        name = f"burst-{self._pods}"
        document = binding(name, node_name(node), uid=f"uid-{name}")
        await self._binding_webhook.decide(review_request(document))


def _say(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
