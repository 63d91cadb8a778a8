"""The audit log: groups of records against one sync for each, and what /filter pays."""

import asyncio
import os
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from controller.audit.opening import audit_log
from controller.audit.sealing import LogIdentity
from controller.record import Record
from gpuwarden import __version__
from gpuwarden.audit.record import RecordKind
from gpuwarden.clock import SystemClock
from gpuwarden.evidence.canonical import canonical_json, sha256_hex
from gpuwarden.settings.controller import AuditSettings
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.bench.bodies import by_name
from tests.bench.child import LOAD_CORE, pin
from tests.bench.filter_rows import Tls, alternate, our_extender
from tests.bench.results import Bound, Goal, Row

GROUP = "Audit log"
_RECORDS = 6_000
_SYNCED = 600
_ROUNDS = 5


def audit_rows(folder: Path) -> list[Row]:
    """Throughput, and the effect on /filter."""
    grouped, single = list[float](), list[float]()
    for number in range(_ROUNDS):
        grouped.append(asyncio.run(_grouped(folder / f"grouped-{number}")))
        single.append(_one_by_one(folder / f"single-{number}"))
    return [
        Row(
            GROUP,
            "records made durable per second, in groups over one at a time",
            "/s",
            median(grouped),
            median(single),
            "fdatasync each",
            Goal(Bound.AT_LEAST, 12.0),
        ),
        _filter_row(folder),
    ]


async def _grouped(folder: Path) -> float:
    """Through the product's log: every record noted, until all are durable."""
    instruments = Instruments(Process.CONTROLLER, __version__)
    log = audit_log(
        AuditSettings(dir=folder, reserve=0),
        LogIdentity("bench/controller-0", "boot", "0" * 32),
        SystemClock(),
        instruments,
        copies_to=None,
    )
    await log.open()
    begin = time.perf_counter()
    for number in range(_RECORDS):
        log.note(_record(number))
    await log.grant(_record(_RECORDS))
    spent = time.perf_counter() - begin
    await log.close(30)
    return _RECORDS / spent


def _one_by_one(folder: Path) -> float:
    """The same records chained and synced each for itself."""
    folder.mkdir()
    descriptor = os.open(folder / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    prev = "0" * 64
    begin = time.perf_counter()
    for number in range(_SYNCED):
        record = _record(number)
        line = canonical_json(
            {
                "v": "bench",
                "seq": number,
                "prev": prev,
                "kind": record.kind.value,
                "actor": record.actor,
                "subject": record.subject,
                "decision": record.decision,
                "codes": list(record.codes),
                "refs": dict(record.refs),
            }
        )
        prev = sha256_hex(line)
        os.write(descriptor, line + b"\n")
        os.fdatasync(descriptor)
    spent = time.perf_counter() - begin
    os.close(descriptor)
    return _SYNCED / spent


def _record(number: int) -> Record:
    """A filter decision about a pod of its own: not counted together with others."""
    return Record(
        RecordKind.FILTER_DECISION,
        actor="kube-scheduler",
        subject=f"pod/team-a/train-{number}",
        decision="passed",
        codes=("HASH_MISMATCH",),
        refs={"uid": f"{number:032x}", "candidates": 15_000, "nodesDigest": "0" * 64},
    )


def _filter_row(folder: Path) -> Row:
    pin(LOAD_CORE)
    nodes = 1_000
    tls = Tls.make(folder)
    with ExitStack() as stack:
        audited = our_extender(stack, tls, nodes, "--audit", folder / "filter-log")
        bare = our_extender(stack, tls, nodes)
        body = by_name(nodes, audited.hello["rare"])
        times = alternate([audited, bare], body, rounds=15, calls=40)
    return Row(
        GROUP,
        "/filter with 1,000 names, audited over not audited",
        "ms",
        times[0].latency,
        times[1].latency,
        "no log",
        Goal(Bound.AT_MOST, 1.15),
        "Calls without a pause: what is done after an answer counts too.",
    )
