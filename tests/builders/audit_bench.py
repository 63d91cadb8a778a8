"""A log with everything around it in a test's hands: real thread, real files, a disk that fails."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from controller.audit.log import DurableLog, Reporting
from controller.audit.opening import open_files
from controller.audit.sealing import LogIdentity
from controller.record import Record
from gpuwarden.audit.chain import Verified
from gpuwarden.audit.files import log_files, verify_files
from gpuwarden.audit.record import RecordKind
from gpuwarden.settings.controller import AuditSettings
from gpuwarden.telemetry import names
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.fakes.clock import FakeClock
from tests.fakes.disk import FaultyDisk

IDENTITY = LogIdentity("lab/controller-0", "boot", "instance")
ACCEPTED = Record(
    RecordKind.EVIDENCE_ACCEPTED, "agent/n1", "node/n1", "accepted", ("ACCEPTED",), {"level": "L0"}
)
STATE = replace(ACCEPTED, kind=RecordKind.NODE_STATE, decision="revoked")
FILTER = replace(ACCEPTED, kind=RecordKind.FILTER_DECISION, decision="passed")
ROUND = replace(ACCEPTED, kind=RecordKind.EVIDENCE_REPEATED)


class Bench:
    """One log with everything around it in a test's hands."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.settings = AuditSettings(**{"dir": folder, "reserve": 4096, **changes})
        self.clock = FakeClock()
        self.disk = FaultyDisk()
        self.instruments = Instruments(Process.CONTROLLER, "1")

    @asynccontextmanager
    async def open(self, **changes: Any) -> AsyncIterator[DurableLog]:
        log = DurableLog(
            lambda: open_files(self.settings, IDENTITY.origin, self.clock, self.disk),
            IDENTITY,
            self.clock,
            Reporting(self.instruments, None),
            **{"rotate_bytes": self.settings.rotate_bytes, "grant_seconds": 20.0, **changes},
        )
        assert await log.open() is log
        try:
            yield log
        finally:
            self.disk.binding_webhook.set()
            assert await log.close(20)

    def verified(self) -> Verified:
        result = verify_files(log_files(self.settings.dir)).result
        assert isinstance(result, Verified)
        return result

    def records(self) -> list[dict[str, Any]]:
        self.verified()
        lines = [
            line for path in log_files(self.settings.dir) for line in path.read_bytes().splitlines()
        ]
        return [json.loads(line) for line in lines]

    def kinds(self) -> list[str]:
        """Without the checkpoints, which come when they are due."""
        return [kind for r in self.records() if (kind := r["kind"]) != "checkpoint"]

    def uncertified(self) -> list[dict[str, Any]]:
        return [record for record in self.records() if record["kind"] != "checkpoint"]

    def metric(self, metric: names.Metric, **labels: str) -> float | None:
        name = metric.name
        return self.instruments.registry.get_sample_value(name, labels)


async def until(condition: Callable[[], object]) -> None:
    """Wait for another thread; the test's own timeout ends it if nothing comes."""
    while not condition():  # noqa: ASYNC110 -- the other side is a thread
        await asyncio.sleep(0.005)
