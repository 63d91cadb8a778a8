"""A whole fleet exported in one go, to real destinations: CPU time and memory of this side.

Wall time is the destination's; the receiver of `http` is in the same process and counts, too.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from controller.export.dead_letters import DeadLetters
from controller.export.delivery import Delivery, Terms
from controller.export.documents import FolderDocuments
from controller.export.exporter import Exporter
from controller.export.failures import Attempts
from controller.export.http import HttpExporter, HttpTarget
from controller.export.postgres import PostgresExporter, PostgresTarget
from controller.export.records import Facts
from controller.export.s3 import S3Exporter, S3Target
from controller.export.standard_output import StandardOutputExporter
from gpuwarden import __version__
from gpuwarden.clock import SystemClock
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from sandbox.fleet.tally import rss_mib
from tests.bench.results import Bound, Goal, Row
from tests.builders.exported import facts
from tests.fakes.http_receiver import receiver
from tests.fakes.postgres_server import DATABASE, PASSWORD, USER, postgres_server
from tests.fakes.recording_audit import RecordingAudit
from tests.fakes.s3_server import BUCKET, s3_server

GROUP = "Export, 5,000 nodes with 8 GPUs in one go"
_NODES, _GPUS = 5_000, 8
_RECORDS = _NODES * _GPUS
_BATCH = 1_000
_MOST_S = 20.0
_MOST_MIB = 256.0


def export_rows(folder: Path) -> list[Row]:
    """CPU seconds until everything has arrived, for each exporter, and the memory of what waits."""
    fleet = tuple(_fleet())
    before = rss_mib(os.getpid())
    waiting = _delivery(StandardOutputExporter(_nowhere()), folder / "waiting")
    begin = time.process_time()
    for each in fleet:
        waiting.note(each)
    noted_ms = (time.process_time() - begin) * 1000
    return [
        Row(GROUP, f"{_RECORDS:,} records noted", "ms CPU", noted_ms),
        Row(
            GROUP,
            f"{_RECORDS:,} records wait",
            "MiB",
            max(0.0, rss_mib(os.getpid()) - before),
            goal=Goal(Bound.AT_MOST, _MOST_MIB, of_ratio=False),
            note="Growth of the process while they are noted, without the facts themselves.",
        ),
        *asyncio.run(_all(fleet, folder)),
    ]


async def _all(fleet: tuple[Facts, ...], folder: Path) -> list[Row]:
    rows = [await _row("stdout", StandardOutputExporter(_nowhere()), fleet, folder)]
    async with receiver() as found:
        http = HttpExporter(HttpTarget(found.url), time.time_ns)
        rows.append(await _row("http", http, fleet, folder))
        _require(len(found.records))
    with postgres_server() as server:
        target = PostgresTarget(
            host="127.0.0.1",
            port=server.port,
            database=DATABASE,
            user=USER,
            password=PASSWORD,
            ssl_mode="prefer",
            auto_migrate=True,
        )
        rows.append(await _row("postgres", PostgresExporter(target), fleet, folder))
        _require(server.rows("SELECT count(DISTINCT record_key) FROM gpu")[0][0])
    with s3_server() as store:
        os.environ.update(store.environment)
        exporter = S3Exporter(S3Target(BUCKET, endpoint=store.endpoint))
        rows.append(await _row("s3", exporter, fleet, folder))
        _require(sum(x.count(b"\n") for x in store.objects().values()))
    return rows


async def _row(name: str, exporter: Exporter, fleet: tuple[Facts, ...], folder: Path) -> Row:
    delivery = _delivery(exporter, folder / name)
    for each in fleet:
        delivery.note(each)
    begin = time.process_time()
    await delivery.round()
    seconds = time.process_time() - begin
    if (warning := delivery.warning()) is not None:
        raise RuntimeError(warning)
    await delivery.close()
    return Row(
        GROUP,
        f"{name}: {_RECORDS:,} records in {_RECORDS // _BATCH} batches",
        "s CPU",
        seconds,
        goal=Goal(Bound.AT_MOST, _MOST_S, of_ratio=False),
    )


def _delivery(exporter: Exporter, folder: Path) -> Delivery:
    return Delivery(
        exporter,
        FolderDocuments(folder),
        DeadLetters(folder, exporter.name, 1 << 20),
        terms=Terms("bench", _BATCH, Attempts(1), 10 * _RECORDS, 60.0),
        leads=lambda: True,
        clock=SystemClock(),
        audit=RecordingAudit(),
        instruments=Instruments(Process.CONTROLLER, __version__),
    )


def _fleet() -> Iterator[Facts]:
    for number in range(_RECORDS):
        node = f"gpu-{number // _GPUS:05}"
        yield facts(number, node=node, source=f"spiffe://example.org/gpuwarden/agent/{node}")


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w")


def _require(arrived: int) -> None:
    if arrived != _RECORDS:
        raise RuntimeError(f"{arrived} records arrived, expected {_RECORDS}")
