# ruff: noqa: ASYNC240 -- a test may look at files while its loop stands still

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from controller.audit.log import Condition, Copies, DurableLog, Reporting
from controller.audit.opening import audit_log
from controller.audit.repeats import HOUR_NS
from controller.audit.sealing import SealedLine
from controller.record import AuditUnavailableError
from gpuwarden.audit.chain import Head, verify_collected
from gpuwarden.audit.files import file_name, log_files
from gpuwarden.settings.values import Duration
from gpuwarden.telemetry import names
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.audit_bench import ACCEPTED, FILTER, IDENTITY, ROUND, STATE, Bench, until
from tests.builders.audit_log import log
from tests.hang import HANG_S

# --- The log as the controller uses it: a real thread, real files, a disk that fails on command


async def test_granted_record_is_durable_when_grant_returns(folder: Path) -> None:
    bench = Bench(folder)
    async with bench.open() as audit:
        await audit.grant(ACCEPTED)

        assert bench.kinds() == ["log.start", "evidence.accepted"]
        assert audit.condition == Condition(available=True, low=False, reason="")
        assert audit._thread.daemon
    assert bench.kinds() == ["log.start", "evidence.accepted", "log.stop"]
    record = bench.uncertified()[1]
    assert record["refs"] == {"level": "L0"}
    assert record["origin"] == "lab/controller-0"


def test_a_grant_waits_two_seconds_in_a_queue_of_8192(folder: Path) -> None:
    bench = Bench(folder)
    audit = audit_log(bench.settings, IDENTITY, bench.clock, bench.instruments, copies_to=None)
    assert (audit._grant_seconds, audit._queue._limit) == (2.0, 8192)


def test_an_end_waits_two_seconds_and_copies_go_to_standard_output() -> None:
    assert signature(DurableLog.close).parameters["timeout"].default == 2.0
    assert signature(audit_log).parameters["copies_to"].default == 1


async def test_chain_goes_on_in_the_next_process(folder: Path) -> None:
    bench = Bench(folder)
    for _ in range(3):
        async with bench.open() as audit:
            await audit.grant(ACCEPTED)

    assert len(bench.uncertified()) == 9
    starts = [record for record in bench.records() if record["kind"] == "log.start"]
    assert [start["refs"]["after"].split(":")[0] for start in starts] == ["0", "5", "10"]


async def test_notes_do_not_wait_and_keep_their_order(folder: Path) -> None:
    bench = Bench(folder)
    async with bench.open() as audit:
        bench.disk.binding_webhook.clear()
        for n in range(200):
            audit.note(replace(STATE, subject=f"node/{n}"))
        assert audit.waiting > 0
        bench.disk.binding_webhook.set()

    subjects = [r["subject"] for r in bench.records() if r["kind"] == "node.state"]
    assert subjects == [f"node/{n}" for n in range(200)]


async def test_many_grants_share_few_syncs(folder: Path) -> None:
    bench = Bench(folder)
    async with bench.open() as audit:
        before = bench.disk.syncs
        await asyncio.gather(*(audit.grant(ACCEPTED) for _ in range(256)))
        assert bench.disk.syncs - before <= 256 // 16

    assert bench.metric(names.AUDIT_RECORDS, kind="evidence.accepted") == 256
    assert bench.metric(names.AUDIT_SEQUENCE) == bench.verified().head.seq == 260


async def test_writers_in_many_tasks_make_one_chain(folder: Path) -> None:
    bench = Bench(folder)
    async with bench.open() as audit:

        async def work(n: int) -> None:
            for _ in range(10):
                audit.note(replace(STATE, subject=f"node/{n}"))
                await audit.grant(replace(ACCEPTED, subject=f"node/{n}"))

        await asyncio.gather(*(work(n) for n in range(16)))

    assert len(bench.uncertified()) == 16 * 20 + 2


async def test_slow_disk_refuses_the_grant_and_lag_refuses_the_next_at_once(folder: Path) -> None:
    bench = Bench(folder)
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, error: errors.append(error))
    async with bench.open(grant_seconds=0.05) as audit:
        bench.disk.binding_webhook.clear()
        with pytest.raises(AuditUnavailableError, match=r"not durable within 0\.05 s"):
            await audit.grant(ACCEPTED)
        audit.note(STATE)
        bench.clock.advance(1)
        assert audit.condition.reason == ""
        bench.clock.boottime += 1
        with pytest.raises(AuditUnavailableError, match="lags behind"):
            await audit.grant(ACCEPTED)
        assert not audit.condition.available
        bench.disk.binding_webhook.set()
        await until(lambda: audit.condition.available)
        audit.note(STATE)
    assert errors == []


async def test_grant_that_was_given_up_while_it_waited_is_not_written(folder: Path) -> None:
    bench = Bench(folder)
    async with bench.open(grant_seconds=0.05) as audit:
        bench.disk.binding_webhook.clear()
        audit.note(STATE)
        syncing = bench.disk.syncs
        await until(lambda: audit.waiting == 0)
        with pytest.raises(AuditUnavailableError):
            await audit.grant(ACCEPTED)
        bench.disk.binding_webhook.set()
        await until(lambda: bench.disk.syncs > syncing)

    assert "evidence.accepted" not in bench.kinds()


async def test_cancelled_grant_is_not_written(folder: Path) -> None:
    bench = Bench(folder)
    async with bench.open() as audit:
        bench.disk.binding_webhook.clear()
        audit.note(STATE)
        await until(lambda: audit.waiting == 0)
        task = asyncio.create_task(audit.grant(ACCEPTED))
        await until(lambda: audit.waiting == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        bench.disk.binding_webhook.set()

    assert "evidence.accepted" not in bench.kinds()


async def test_full_queue_drops_and_says_how_much(folder: Path) -> None:
    bench = Bench(folder)
    async with bench.open(queue_records=8) as audit:
        bench.disk.binding_webhook.clear()
        audit.note(STATE)
        await until(lambda: audit.waiting == 0)
        for number in range(12):
            audit.note(replace(STATE, subject=f"node/of-many-{number}"))
        with pytest.raises(AuditUnavailableError, match="too many records"):
            await audit.grant(ACCEPTED)
        bench.disk.binding_webhook.set()

    gaps = [record["refs"] for record in bench.records() if record["kind"] == "log.gap"]
    assert gaps == [{"lost": 4}]
    assert bench.metric(names.AUDIT_LOST) == 4


async def test_full_disk_refuses_grants_keeps_refusals_and_comes_back(folder: Path) -> None:
    bench = Bench(folder, reserve=0)
    async with bench.open() as audit:
        bench.disk.room = 100
        with pytest.raises(AuditUnavailableError, match="No space left"):
            await audit.grant(ACCEPTED)
        audit.note(STATE)
        with pytest.raises(AuditUnavailableError, match="No space left"):
            await audit.grant(ACCEPTED)
        assert not audit.condition.available
        assert bench.metric(names.AUDIT_AVAILABLE) == 0
        assert bench.kinds() == ["log.start"]

        bench.disk.room = None
        await until(lambda: audit.condition.available)
        await audit.grant(ACCEPTED)
        assert bench.metric(names.AUDIT_AVAILABLE) == 1

    assert bench.kinds() == ["log.start", "log.gap", "node.state", "evidence.accepted", "log.stop"]
    assert "No space left" in bench.uncertified()[1]["refs"]["cause"]


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS])
async def test_failing_sync_loses_no_promise(folder: Path, error: int) -> None:
    bench = Bench(folder)
    async with bench.open() as audit:
        await audit.grant(ACCEPTED)
        bench.disk.sync_errno = error
        results = await asyncio.gather(
            *(audit.grant(ACCEPTED) for _ in range(5)), return_exceptions=True
        )
        assert all(isinstance(result, AuditUnavailableError) for result in results)
        bench.disk.sync_errno = None
        await until(lambda: audit.condition.available)

    assert bench.kinds().count("evidence.accepted") == 1


async def test_reserve_is_spent_on_grants_and_ordinary_records_are_dropped(folder: Path) -> None:
    bench = Bench(folder, reserve=1 << 20)
    async with bench.open() as audit:
        bench.disk.full_while = lambda: (folder / "reserve").stat().st_size > 0
        bench.disk.reserve_errno = errno.ENOSPC
        await audit.grant(ACCEPTED)
        assert audit.condition.low
        assert audit.condition.available
        audit.note(FILTER)
        audit.note(STATE)
        await audit.grant(ACCEPTED)
        assert "filter.decision" not in bench.kinds()
        bench.clock.advance(2)
        await audit.grant(ACCEPTED)
        assert audit.condition.low

        bench.disk.reserve_errno = None
        bench.disk.full_while = lambda: False
        bench.clock.advance(2)
        audit.note(STATE)
        await until(lambda: not audit.condition.low)
        audit.note(FILTER)

    assert bench.kinds().count("evidence.accepted") == 3
    assert bench.kinds().count("filter.decision") == 1
    assert {"lost": 1} in [record["refs"] for record in bench.records()]


async def test_group_of_ordinary_records_alone_is_dropped_when_space_is_out(folder: Path) -> None:
    bench = Bench(folder, reserve=1 << 20)
    async with bench.open() as audit:
        bench.disk.reserve_errno = errno.ENOSPC
        bench.disk.full_while = lambda: (folder / "reserve").stat().st_size > 0
        audit.note(FILTER)
        await until(lambda: audit.condition.low)
        await audit.grant(ACCEPTED)

    assert "filter.decision" not in bench.kinds()


async def test_log_rotates_by_size_and_deletes_what_is_past_retention(folder: Path) -> None:
    """Retention counts the time that the log was open; what the wall clock says is no matter."""
    bench = Bench(folder, retention=Duration.parse("1d"))
    async with bench.open(rotate_bytes=4000) as audit:
        for _ in range(30):
            await audit.grant(ACCEPTED)
        files = log_files(folder)
        assert len(files) > 2
        assert bench.verified().records == bench.verified().head.seq
        for path in files:
            os.utime(path, (1, 1))
        bench.clock.wall += 3650 * 86_400 * 10**9
        for _ in range(30):
            await audit.grant(ACCEPTED)
        assert all(path.exists() for path in files)
        bench.clock.advance(86_401)
        for _ in range(30):
            await audit.grant(ACCEPTED)

    assert not files[0].exists()
    result = bench.verified()
    assert result.first_seq > 1
    assert result.head.seq == result.first_seq + result.records - 1
    rotations = [record for record in bench.records() if record["kind"] == "log.rotate"]
    assert any(files[0].name in record["refs"]["deleted"] for record in rotations)


async def test_rotation_that_fails_is_tried_again_later(folder: Path) -> None:
    bench = Bench(folder)
    async with bench.open(rotate_bytes=4000) as audit:
        os.utime(folder, None)
        for seq in range(2, 60):
            (folder / file_name(seq)).mkdir()
        for _ in range(12):
            await audit.grant(ACCEPTED)
        assert audit.condition.available
        for seq in range(2, 60):
            (folder / file_name(seq)).rmdir()
        for _ in range(12):
            await audit.grant(ACCEPTED)

    assert bench.kinds().count("log.rotate") >= 1


async def test_folder_that_cannot_be_written_refuses_grants_until_it_can(folder: Path) -> None:
    folder.write_text("a file where the folder should be")
    bench = Bench(folder)
    async with bench.open() as audit:
        assert "exists" in audit.condition.reason
        audit.note(STATE)
        with pytest.raises(AuditUnavailableError, match="exists"):
            await audit.grant(ACCEPTED)
        folder.unlink()
        await until(lambda: audit.condition.available)
        await audit.grant(ACCEPTED)

    assert bench.kinds() == ["log.start", "node.state", "evidence.accepted", "log.stop"]


async def test_log_of_another_process_is_waited_for(folder: Path) -> None:
    first, second = Bench(folder), Bench(folder)
    async with first.open() as old, second.open() as new:
        assert "in use by another process" in new.condition.reason
        await old.grant(ACCEPTED)
        assert await old.close(20)
        await until(lambda: new.condition.available)
        await new.grant(ACCEPTED)

    assert second.kinds() == ["log.start", "evidence.accepted", "log.stop"] * 2


async def test_broken_log_is_not_touched_and_refuses_grants(folder: Path) -> None:
    folder.mkdir()
    lines = log(3)
    path = folder / file_name(1)
    path.write_bytes(lines[0] + lines[2])
    bench = Bench(folder)
    async with bench.open() as audit:
        assert "broken before record 3" in audit.condition.reason
        audit.note(STATE)

    assert path.read_bytes() == lines[0] + lines[2]
    assert bench.metric(names.AUDIT_LOST) == 2


async def test_torn_end_is_healed_and_recorded(folder: Path) -> None:
    folder.mkdir()
    (folder / file_name(1)).write_bytes(log(1)[0] + b"torn")
    bench = Bench(folder)
    async with bench.open():
        pass

    healed = bench.records()[1]["refs"]["healed"]
    assert (healed["bytes"], healed["file"]) == (4, file_name(1))


async def test_unchanged_rounds_become_one_record_an_hour(folder: Path) -> None:
    bench = Bench(folder)
    async with bench.open() as audit:
        for _ in range(100):
            audit.note(ROUND)
        bench.clock.advance(HOUR_NS / 1e9 + 1)
        audit.note(STATE)
        await until(lambda: bench.metric(names.AUDIT_RECORDS, kind="evidence.repeated"))
        audit.note(ROUND)

    counts = [r["refs"]["count"] for r in bench.records() if r["kind"] == "evidence.repeated"]
    assert counts == [100, 1]


async def test_fault_in_one_record_is_survived_and_counted(folder: Path) -> None:
    bench = Bench(folder)
    async with bench.open() as audit:
        audit.note(replace(STATE, decision=7))  # type: ignore[arg-type]  # a fault of the caller
        await until(lambda: bench.metric(names.AUDIT_AVAILABLE) == 0)
        await until(lambda: audit.condition.available)
        await audit.grant(ACCEPTED)

    assert bench.kinds() == ["log.start", "log.gap", "evidence.accepted", "log.gap", "log.stop"]
    assert "fault in the writer" in bench.uncertified()[1]["refs"]["cause"]


async def test_grant_on_a_closed_log_is_refused(folder: Path) -> None:
    bench = Bench(folder)
    async with bench.open() as audit:
        await audit.close(20)
        with pytest.raises(AuditUnavailableError, match="closed"):
            await audit.grant(ACCEPTED)
        audit.note(STATE)


async def test_disk_that_hangs_does_not_hang_the_end(folder: Path) -> None:
    bench = Bench(folder)
    async with bench.open() as audit:
        bench.disk.binding_webhook.clear()
        audit.note(STATE)
        await until(lambda: audit.waiting == 0)

        assert not await audit.close(0.05)


async def test_disk_that_fails_at_the_end_says_what_was_lost(folder: Path) -> None:
    bench = Bench(folder, reserve=0)
    async with bench.open() as audit:
        bench.disk.room = 0
        audit.note(STATE)
        await until(lambda: not audit.condition.available)

    assert bench.kinds() == ["log.start"]
    assert bench.metric(names.AUDIT_LOST) == 2


async def test_copies_on_standard_output_are_enough_to_audit(folder: Path) -> None:
    bench = Bench(folder)
    reader, target = os.pipe()
    audit = audit_log(bench.settings, IDENTITY, bench.clock, bench.instruments, copies_to=target)
    await audit.open()
    for _ in range(3):
        os.write(target, b'{"event":"something.else"}\n')
        await audit.grant(ACCEPTED)
    assert await audit.close(20)
    os.close(target)

    with os.fdopen(reader, "rb") as pipe:
        copied = pipe.read().splitlines(keepends=True)
    (result,) = verify_collected(copied).values()
    assert result == bench.verified()
    written = b"".join(path.read_bytes() for path in log_files(folder))
    assert b"".join(line for line in copied if b"something" not in line) == written


# --- What the log tells about itself: metrics, events, copies

LINES = [SealedLine(b"one", Head(7, "a" * 64)), SealedLine(b"two", Head(8, "b" * 64))]


class Workbench:
    """A reporting with its metrics."""

    def __init__(
        self,
        copies: Callable[[Callable[[int], None]], Copies] | None = None,
        also_close: Callable[[float], None] = lambda _timeout: None,
    ) -> None:
        self.instruments = Instruments(Process.CONTROLLER, "1")
        self.reporting = Reporting(self.instruments, copies, also_close=also_close)

    def metric(self, metric: names.Metric, suffix: str = "", **labels: str) -> float | None:
        return self.instruments.registry.get_sample_value(f"{metric.name}{suffix}", labels)

    def told(self, *states: tuple[str, bool]) -> list[dict[str, Any]]:
        with capture_logs() as logs:
            for down, low in states:
                self.reporting.state(down, low=low)
        return [dict(x) for x in logs]


def event(name: str, level: str, **fields: str) -> dict[str, Any]:
    return {"component": "audit", "event": name, "log_level": level, **fields}


DOWN = event("audit.unavailable", "error", reason="no disk")
LOW = event("audit.space.low", "error")
UP = event("audit.available", "info")


def test_a_group_is_counted_by_kind_with_its_time_and_last_number() -> None:
    workbench = Workbench()
    workbench.reporting.committed(LINES, ["node.state", "checkpoint"], 0.25)
    workbench.reporting.lost(3)
    assert workbench.metric(names.AUDIT_RECORDS, kind="node.state") == 1
    assert workbench.metric(names.AUDIT_RECORDS, kind="checkpoint") == 1
    assert workbench.metric(names.AUDIT_COMMIT_SECONDS, "_sum") == 0.25
    assert workbench.metric(names.AUDIT_SEQUENCE) == 8
    assert workbench.metric(names.AUDIT_LOST) == 3


def test_a_durable_group_is_copied_elsewhere_too() -> None:
    groups: list[Sequence[SealedLine]] = []
    reporting = Reporting(Instruments(Process.CONTROLLER, "1"), None, groups.append)
    reporting.committed(LINES, ["node.state", "node.state"], 0.25)
    assert groups == [LINES]


def test_copies_are_whole_lines_and_the_end_waits_for_them() -> None:
    reader, writer = os.pipe()
    made: list[Copies] = []
    closed: list[float] = []

    def copies(lost: Callable[[int], None]) -> Copies:
        made.append(Copies(writer, lost))
        return made[0]

    workbench = Workbench(copies, closed.append)
    workbench.reporting.state("", low=False)
    workbench.reporting.committed(LINES, ["node.state", "node.state"], 0.25)
    workbench.reporting.close()
    assert not made[0]._thread.is_alive()
    assert closed == [1.0]
    assert workbench.metric(names.AUDIT_AVAILABLE) == 0
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b"one\ntwo\n"


def test_without_copies_the_end_is_reported_all_the_same() -> None:
    workbench = Workbench()
    workbench.reporting.state("", low=False)
    workbench.reporting.close()
    assert workbench.metric(names.AUDIT_AVAILABLE) == 0


def test_states_are_reported_as_they_change() -> None:
    workbench = Workbench()
    assert workbench.told(("no disk", False)) == [DOWN]
    assert workbench.metric(names.AUDIT_AVAILABLE) == 0
    assert workbench.told(("", False)) == [UP]
    assert workbench.metric(names.AUDIT_AVAILABLE) == 1
    assert workbench.told(("", True), ("no disk", True), ("", True), ("", False), ("", True)) == [
        LOW,
        DOWN,
        UP,
        UP,
        LOW,
    ]
    assert Workbench().told(("", True)) == [LOW]


def test_blocks_come_out_whole_and_in_order() -> None:
    reader, writer = os.pipe()
    lost: list[int] = []
    copies = Copies(writer, lost.append)

    for n in range(50):
        copies.put(b"line %d\n" % n, 1)
    assert copies._thread.daemon
    copies.close(10)
    assert not copies._thread.is_alive()
    os.close(writer)

    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b"".join(b"line %d\n" % n for n in range(50))
    assert lost == []


def test_a_thread_that_waits_is_woken_to_end() -> None:
    reader, writer = os.pipe()
    copies = Copies(writer, print)
    while not copies._changed._waiters:  # type: ignore[attr-defined]  # nothing else says that it waits
        threading.Event().wait(0.005)
    copies.close(10)
    assert not copies._thread.is_alive()
    os.close(writer)
    os.close(reader)


def test_reader_that_sleeps_loses_copies_and_holds_nobody_up() -> None:
    reader, writer = os.pipe()
    lost: list[int] = []
    copies = Copies(writer, lost.append)
    block = b"x" * (1 << 20) + b"\n"

    for _ in range(8):
        copies.put(block, 10)
    copies.close(0.01)
    copies.put(block, 1)

    assert sum(lost) >= 41
    drained = threading.Thread(target=lambda: list(iter(lambda: os.read(reader, 1 << 16), b"")))
    drained.start()
    copies.close(10)
    os.close(writer)
    drained.join(10)
    os.close(reader)


def test_four_mebibytes_may_wait_and_again_when_they_are_out() -> None:
    reader, writer = os.pipe()
    lost: list[int] = []
    copies = Copies(writer, lost.append)
    block = b"x" * (4 << 20)
    out = bytearray()

    copies.put(block + b"y", 1)
    copies.put(block, 2)
    copies.put(b"y", 4)
    assert lost == [1, 4]
    while len(out) < len(block):
        out += os.read(reader, 1 << 16)
    while copies._waiting:
        threading.Event().wait(0.005)
    copies.put(block, 8)
    copies.put(b"y", 16)
    while len(out) < 2 * len(block):
        out += os.read(reader, 1 << 16)
    copies.close(10)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        out += pipe.read()

    assert lost == [1, 4, 16]
    assert out == 2 * block


def test_closed_reader_is_counted() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    lost: list[int] = []
    copies = Copies(writer, lost.append)

    copies.put(b"line\n", 3)
    copies.close(10)
    os.close(writer)

    assert lost == [3]


def test_copy_that_broke_off_does_not_spoil_the_next_line() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    lost: list[int] = []
    losing = threading.Event()

    def count(records: int) -> None:
        lost.append(records)
        losing.set()

    copies = Copies(writer, count)
    copies.put(b"x" * (1 << 20) + b"\n", 1)
    assert losing.wait(HANG_S)
    os.read(reader, 1 << 14)
    copies.put(b"next\n", 1)
    copies.put(b"after\n", 1)
    copies.close(10)
    os.close(writer)

    with os.fdopen(reader, "rb") as pipe:
        torn, *rest = pipe.read().split(b"\n")
    assert set(torn) == set(b"x")
    assert rest == [b"next", b"after", b""]
    assert lost == [1]
