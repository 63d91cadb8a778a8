import errno
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from controller.audit.checkpoints import Published
from controller.audit.files import Disk, LogBrokenError
from controller.audit.opening import open_files
from controller.audit.sealing import LogIdentity, SealedLine, Sealer
from controller.audit.writer import Losses, Opened, QueuedRecord, RecordQueue, Waiter, Writer
from controller.record import Record
from gpuwarden.audit.files import file_name, log_files
from gpuwarden.audit.record import RecordKind
from gpuwarden.settings.controller import AuditSettings
from gpuwarden.settings.values import Duration
from tests.builders.audit_log import log
from tests.builders.log_trees import records_in
from tests.fakes.clock import FakeClock
from tests.fakes.disk import FaultyDisk


def queued(
    number: int, kind: RecordKind = RecordKind.NODE_STATE, *, waits: bool = False
) -> QueuedRecord:
    waiter = Waiter(lambda _failure: None) if waits else None
    return QueuedRecord(Record(kind, "a", f"s{number}", "d"), number, number, waiter)


def subjects(batch: list[QueuedRecord]) -> list[str]:
    return [item.record.subject for item in batch]


def test_letters_come_out_in_order_in_groups() -> None:
    queue = RecordQueue(1000)
    for number in range(74):
        assert queue.put(queued(number))

    first, second = queue.take(0), queue.take(0)

    assert subjects(first + second) == [f"s{n}" for n in range(74)]
    assert len(first) == 64
    assert len(queue) == 0


def test_nothing_to_take_ends_after_the_timeout_or_a_wake() -> None:
    queue = RecordQueue(10)
    taken: list[list[QueuedRecord]] = [queue.take(0)]
    thread = threading.Thread(target=lambda: taken.append(queue.take(30)))
    thread.start()

    queue.wake()
    thread.join(10)

    assert taken == [[], []]


def test_grant_is_taken_without_waiting_for_company() -> None:
    queue = RecordQueue(10)
    taken: list[list[QueuedRecord]] = []
    thread = threading.Thread(target=lambda: taken.append(queue.take(30)))
    thread.start()

    queue.put(queued(1, waits=True))
    thread.join(10)

    assert subjects(taken[0]) == ["s1"]


def test_a_record_that_nobody_waits_for_is_taken_as_well() -> None:
    queue = RecordQueue(10)
    taken: list[list[QueuedRecord]] = []
    thread = threading.Thread(target=lambda: taken.append(queue.take(30)))
    thread.start()
    while not queue._changed._waiters:  # type: ignore[attr-defined] # says that it sleeps
        threading.Event().wait(0.001)

    queue.put(queued(1))
    thread.join(10)

    assert subjects(taken[0]) == ["s1"]


def test_only_a_grant_is_urgent() -> None:
    queue = RecordQueue(10)
    queue.put(queued(1))
    assert not queue._urgent
    queue.put(queued(2, waits=True))
    queue.put(queued(3))
    assert queue._urgent


def test_grant_left_behind_in_the_queue_is_still_urgent() -> None:
    queue = RecordQueue(1000)
    for number in range(64):
        queue.put(queued(number))
    queue.put(queued(99, waits=True))

    queue.take(0)

    assert queue._urgent
    assert subjects(queue.take(0)) == ["s99"]
    assert not queue._urgent


def test_ordinary_records_leave_room_for_the_others() -> None:
    queue = RecordQueue(8)
    ordinary = [queue.put(queued(n, RecordKind.FILTER_DECISION)) for n in range(8)]
    others = [queue.put(queued(n)) for n in range(3)]

    assert ordinary == [True] * 6 + [False] * 2
    assert others == [True, True, False]


def test_grant_is_never_ordinary() -> None:
    assert not queued(1, RecordKind.FILTER_DECISION, waits=True).ordinary


def test_letters_are_put_back_in_front_as_far_as_there_is_room() -> None:
    queue = RecordQueue(4)
    for number in (8, 9):
        queue.put(queued(number))

    assert queue.put_back([queued(n) for n in range(3)]) == 1
    assert subjects(queue.take(0)) == ["s1", "s2", "s8", "s9"]


def test_chosen_letters_are_taken_out() -> None:
    queue = RecordQueue(10)
    for number in range(4):
        queue.put(queued(number, waits=number % 2 == 0))

    chosen = queue.take_out(lambda item: item.waiter is not None)

    assert subjects(chosen) == ["s0", "s2"]
    assert not queue._urgent
    assert subjects(queue.take(0)) == ["s1", "s3"]


def test_age_of_the_oldest_is_known() -> None:
    queue = RecordQueue(10)
    assert queue.oldest_ns() is None

    queue.put(queued(7))
    queue.put(queued(8))

    assert queue.oldest_ns() == 7


# --- The writer step by step, in one thread: what it commits, tells, keeps and gives up

STATE = Record(RecordKind.NODE_STATE, "a", "node/n1", "eligible")
FILTER = Record(RecordKind.FILTER_DECISION, "a", "pod/p", "passed")
ROUND = Record(RecordKind.EVIDENCE_REPEATED, "a", "node/n1", "accepted")


@dataclass
class Heard:
    """An observer that remembers."""

    kinds: list[list[str]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    states: list[tuple[str, bool]] = field(default_factory=list)
    lost_records: list[int] = field(default_factory=list)
    closed: int = 0

    def committed(self, lines: Sequence[SealedLine], kinds: Sequence[str], seconds: float) -> None:
        assert len(lines) == len(kinds)
        assert 0 <= seconds < 60
        self.seconds.append(seconds)
        self.kinds.append(list(kinds))

    def lost(self, records: int) -> None:
        self.lost_records.append(records)

    def state(self, down: str, *, low: bool) -> None:
        self.states.append((down, low))

    def close(self) -> None:
        self.closed += 1


class Workbench:
    """A writer with everything around it; nothing runs by itself."""

    def __init__(self, folder: Path, *, rotate_bytes: int = 1 << 20, **settings: Any) -> None:
        self.settings = AuditSettings(**{"dir": folder, "reserve": 0, **settings})
        self.clock, self.disk, self.heard = FakeClock(), FaultyDisk(), Heard()
        self.queue, self.losses = RecordQueue(10), Losses()
        self.due: list[Record] = []
        self.asked_ns: list[int] = []
        self.counted: list[Record] = []
        self.answers: list[str | None] = []
        self.broken: Exception | None = None
        self.writer = Writer(
            self.queue,
            self._open,
            sealer=Sealer(LogIdentity("lab/c", "b", "i")),
            clock=self.clock,
            observer=self.heard,
            due=self._due,
            flush=self._flush,
            losses=self.losses,
            rotate_bytes=rotate_bytes,
        )

    def _open(self) -> Opened:
        if self.broken is not None:
            raise self.broken
        return open_files(self.settings, "lab/c", self.clock, self.disk)

    def _due(self, wall_ns: int) -> list[Record]:
        self.asked_ns.append(wall_ns)
        due, self.due = self.due, []
        return due

    def _flush(self) -> list[Record]:
        counted, self.counted = self.counted, []
        return counted

    def begin(self) -> "Workbench":
        self.writer._begin()
        self.heard.kinds.clear()
        self.heard.states.clear()
        return self

    def put(self, *records: Record) -> "Workbench":
        for record in records:
            assert self.queue.put(self.queued(record))
        return self

    def queued(
        self, record: Record, answer: Callable[[str | None], None] | None = None
    ) -> QueuedRecord:
        waiter = Waiter(answer) if answer else None
        return QueuedRecord(record, self.clock.wall_ns(), self.clock.boottime_ns(), waiter)

    def grant(self, record: Record = STATE) -> Waiter:
        queued = self.queued(record, self.answers.append)
        assert self.queue.put(queued)
        assert queued.waiter is not None
        return queued.waiter

    def step(self, seconds: float = 0.0) -> int:
        self.clock.advance(seconds)
        self.queue.wake()
        return self.writer._take_and_commit(0)

    def published(self) -> Published | None:
        return self.writer.published

    def refs(self, kind: str) -> list[Any]:
        return [r["refs"] for r in records_in(self.settings.dir) if r["kind"] == kind]


def test_the_log_begins_with_its_start_and_a_checkpoint(folder: Path) -> None:
    workbench = Workbench(folder)
    assert (workbench.writer.down, workbench.writer.low) == ("not open yet", False)
    assert workbench.published() is None
    workbench.writer.want_proof(1)
    workbench.writer._begin()
    assert workbench.heard.kinds == [["log.start"], ["checkpoint"]]
    assert workbench.heard.states == [("", False)]
    published = workbench.published()
    assert published is not None
    assert published.head.size == 1


def test_a_group_is_written_in_order_and_its_waiters_are_reported(folder: Path) -> None:
    workbench = Workbench(folder).begin().put(STATE, FILTER)
    workbench.grant()
    assert workbench.step() == 3
    assert workbench.heard.kinds == [["node.state", "filter.decision", "node.state"]]
    assert workbench.answers == [None]
    assert workbench.step() == 0


def test_a_grant_that_nobody_waits_for_any_more_is_not_written(folder: Path) -> None:
    workbench = Workbench(folder).begin()
    workbench.grant().abandoned = True
    workbench.grant().abandoned = False
    assert workbench.step() == 2
    assert workbench.heard.kinds == [["node.state"]]
    assert workbench.answers == [None]


def test_counters_are_asked_once_a_second(folder: Path) -> None:
    workbench = Workbench(folder).begin()
    workbench.step()
    assert workbench.asked_ns == [workbench.clock.wall_ns()]
    workbench.due = [ROUND]
    workbench.clock.boottime += 999_999_999
    workbench.step()
    assert len(workbench.asked_ns) == 1
    assert workbench.heard.kinds == []
    workbench.clock.boottime += 1
    workbench.step()
    assert workbench.heard.kinds == [["evidence.repeated"]]
    workbench.step(0.999)
    assert len(workbench.asked_ns) == 2


def test_counters_are_asked_a_second_after_the_boot(folder: Path) -> None:
    workbench = Workbench(folder).begin()
    workbench.clock.boottime = 999_999_999
    workbench.step()
    assert workbench.asked_ns == []
    workbench.clock.boottime += 1
    workbench.step()
    assert len(workbench.asked_ns) == 1


def test_a_stop_wakes_the_writer(folder: Path) -> None:
    workbench = Workbench(folder).begin()
    workbench.writer.stop()
    assert workbench.queue._urgent
    assert workbench.writer._stopping.is_set()


def test_losses_are_admitted_with_the_next_tick(folder: Path) -> None:
    workbench = Workbench(folder).begin()
    workbench.step()
    workbench.losses.add(3)
    workbench.losses.add(4)
    workbench.step(1)
    assert (workbench.refs("log.gap"), workbench.heard.lost_records) == ([{"lost": 7}], [7])
    record = records_in(folder)[-1]
    assert (record["actor"], record["subject"], record["decision"]) == (
        "controller",
        "log",
        "lost",
    )
    workbench.step(1)
    assert workbench.heard.lost_records == [7]


def test_a_log_that_cannot_be_opened_refuses_and_keeps(folder: Path) -> None:
    workbench = Workbench(folder).put(STATE)
    workbench.grant()
    workbench.broken = LogBrokenError("not ours")
    workbench.writer._begin()
    assert workbench.answers == ["not ours"]
    assert workbench.heard.states == [("not ours", False)]
    assert len(workbench.queue) == 1
    workbench.broken = None
    workbench.writer._begin()
    workbench.step()
    assert workbench.heard.kinds == [["log.start"], ["checkpoint"], ["node.state"]]
    assert [down for down, _ in workbench.heard.states] == ["not ours", ""]


def test_after_an_outage_the_first_record_says_why(folder: Path) -> None:
    workbench = Workbench(folder).begin().put(STATE)
    workbench.grant()
    workbench.disk.sync_errno = errno.EIO
    workbench.step()
    reason = workbench.writer.down
    assert "Input/output error" in reason
    assert workbench.answers == [reason]
    assert len(workbench.queue) == 1, "what nobody waits for is kept"
    workbench.disk.sync_errno = None
    workbench.writer._begin()
    workbench.step()
    assert workbench.writer.down == ""
    assert workbench.heard.kinds[-2:] == [["log.gap"], ["node.state"]]
    record = next(r for r in records_in(folder) if r["kind"] == "log.gap")
    assert (record["decision"], record["refs"]) == ("restored", {"cause": reason})
    assert (record["actor"], record["subject"]) == ("controller", "log")
    assert workbench.losses.take() == 0


def test_what_could_not_be_cut_off_at_once_is_cut_off_later(folder: Path) -> None:
    workbench = Workbench(folder).begin().put(STATE)
    [path] = log_files(folder)
    workbench.disk.room = 10
    path.rename(folder / "elsewhere")
    workbench.step()
    assert "No such file" in workbench.writer.down
    (folder / "elsewhere").rename(path)
    workbench.disk.room = None
    workbench.writer._begin()
    assert workbench.writer.down == ""
    workbench.step()
    assert [r["kind"] for r in records_in(folder)][-2:] == ["log.gap", "node.state"]


def test_an_end_tries_once_more(folder: Path) -> None:
    workbench = Workbench(folder).begin().put(STATE)
    workbench.disk.sync_errno = errno.EIO
    workbench.step()
    workbench.disk.sync_errno = None
    workbench.writer._finish()
    kinds = [r["kind"] for r in records_in(folder)]
    assert kinds[-4:] == ["log.gap", "node.state", "checkpoint", "log.stop"]


def test_a_fault_in_a_record_loses_its_group_and_not_the_log(folder: Path) -> None:
    odd: Any = 7
    workbench = Workbench(folder).begin().put(STATE, replace(STATE, codes=odd))
    workbench.grant()
    workbench.step()
    assert workbench.writer.down == "fault in the writer: TypeError"
    assert workbench.answers == [workbench.writer.down]
    assert (len(workbench.queue), workbench.losses.take()) == (0, 2)
    workbench.writer._begin()
    assert workbench.writer.down == ""


def test_what_does_not_fit_when_it_is_put_back_is_lost(folder: Path) -> None:
    workbench = Workbench(folder).begin().put(*[STATE] * 10)
    batch = workbench.queue.take(0)
    workbench.put(*[STATE] * 4)
    workbench.writer._go_down("down", batch, keep=True)
    assert (len(workbench.queue), workbench.losses.take()) == (10, 4)


def test_the_reserve_is_spent_on_what_counts(folder: Path) -> None:
    workbench = Workbench(folder, reserve=2 << 20).begin()
    full = (folder / "reserve").stat().st_size
    workbench.disk.full_while = lambda: (folder / "reserve").stat().st_size == full
    workbench.disk.reserve_errno = errno.ENOSPC
    workbench.put(FILTER, ROUND, STATE)
    workbench.step()
    assert workbench.heard.states == [("", True)]
    assert workbench.writer.low
    assert workbench.heard.kinds == [["node.state"]]
    assert workbench.losses.take() == 2
    assert (folder / "reserve").stat().st_size == 1 << 20
    workbench.grant(FILTER)
    workbench.step()
    assert workbench.heard.kinds[-1] == ["filter.decision"], "somebody waits for it"
    workbench.step(1)
    assert workbench.heard.states == [("", True)], "told once"

    workbench.disk.reserve_errno = None
    workbench.step(1)
    assert workbench.heard.states == [("", True), ("", False)]
    assert not workbench.writer.low


def test_a_reserve_that_could_not_be_had_is_no_shortage(folder: Path) -> None:
    workbench = Workbench(folder, reserve=1 << 20)
    workbench.disk.reserve_errno = errno.ENOSPC
    workbench.begin()
    workbench.step(1)
    assert not workbench.writer.low
    assert workbench.heard.states == []


def test_other_faults_of_the_disk_do_not_touch_the_reserve(folder: Path) -> None:
    workbench = Workbench(folder, reserve=1 << 20).begin()
    workbench.disk.room, workbench.disk.write_errno = 0, errno.EIO
    workbench.put(STATE).step()
    assert workbench.writer.down
    assert not workbench.writer.low
    assert (folder / "reserve").stat().st_size == 1 << 20


def test_quota_is_space_as_well(folder: Path) -> None:
    workbench = Workbench(folder, reserve=1 << 20).begin()
    full = (folder / "reserve").stat().st_size

    class Quota(FaultyDisk):
        def write(self, descriptor: int, data: memoryview) -> int:
            if (folder / "reserve").stat().st_size == full:
                raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
            return super().write(descriptor, data)

    workbench.writer._open.store._disk = Quota()
    workbench.put(STATE).step()
    assert (workbench.writer.down, workbench.writer.low) == ("", True)


def test_a_file_that_is_full_is_followed_by_another(folder: Path) -> None:
    workbench = Workbench(
        folder, rotate_bytes=2000, retention=Duration(20 * 365 * 86_400 * 10**9)
    ).begin()
    for _ in range(12):
        workbench.put(STATE).step(1)
        if len(log_files(folder)) > 1:
            break
    assert (workbench.heard.kinds[-1], workbench.heard.seconds[-1]) == (["log.rotate"], 0.0)
    first, second = log_files(folder)
    assert first.stat().st_size >= 2000
    [refs] = workbench.refs("log.rotate")
    assert (refs["from"], refs["deleted"]) == (first.name, [])
    assert set(refs) == {"from", "deleted", "checkpoint", "frontier", "key", "age"}
    published = workbench.published()
    assert published is not None
    assert published.note == refs["checkpoint"]
    workbench.clock.advance(20 * 365 * 86_400 + 1)
    for _ in range(12):
        workbench.put(STATE).step()
        if not first.exists():
            break
    assert not first.exists()
    assert second.exists()
    record = [r for r in records_in(folder) if r["kind"] == "log.rotate"][-1]
    assert record["refs"]["deleted"] == [first.name]
    assert (record["actor"], record["subject"], record["decision"]) == (
        "controller",
        "log",
        "rotated",
    )


def test_up_to_eight_deleted_files_are_named(folder: Path) -> None:
    workbench = Workbench(folder).begin()
    names = [f"audit-{number:020d}.jsonl" for number in range(9)]
    opened = workbench.writer._open
    workbench.writer._opened = replace(opened, expire=lambda: names[:8])
    assert workbench.writer._delete_expired() == tuple(names[:8])
    workbench.writer._opened = replace(opened, expire=lambda: names)
    deleted = workbench.writer._delete_expired()
    assert isinstance(deleted, dict)
    assert deleted["count"] == 9


def test_a_finished_file_is_kept_for_the_retention_to_the_second(folder: Path) -> None:
    workbench = Workbench(folder, rotate_bytes=1, retention=Duration(3600 * 10**9)).begin()
    workbench.clock.advance(1000)
    workbench.put(STATE).step()
    first, _ = log_files(folder)
    for seconds, gone in ((3599, []), (1, []), (1, [first.name])):
        workbench.clock.advance(seconds)
        assert workbench.writer._open.expire() == gone


@pytest.mark.parametrize("years", [-10, 10])
def test_a_wall_clock_that_jumps_makes_nothing_old(folder: Path, years: int) -> None:
    """Nor do the times of the files, which a copy or a backup changes."""
    retention = Duration.parse("2d")
    workbench = Workbench(folder, rotate_bytes=1, retention=retention).begin()
    workbench.put(STATE).step()
    first, _ = log_files(folder)
    for path in log_files(folder):
        os.utime(path, (1, 1))
    workbench.clock.wall += years * 365 * 86_400 * 10**9
    assert workbench.writer._open.expire() == []
    workbench.put(STATE).step()
    workbench.writer._finish()
    again = Workbench(folder, rotate_bytes=1 << 20, retention=retention)
    again.clock.wall = workbench.clock.wall
    again.begin()
    assert again.writer._open.expire() == []
    again.clock.advance(2 * 86_400 + 1)
    assert first.name in again.writer._open.expire()


def test_age_goes_on_from_process_to_process(folder: Path) -> None:
    ages = []
    for seconds in (100, 50):
        workbench = Workbench(folder).begin()
        workbench.clock.advance(seconds)
        workbench.put(STATE).step()
        workbench.writer._finish()
        ages.append(workbench.refs("log.stop")[-1]["age"])
    crashed = Workbench(folder).begin()
    assert crashed.refs("log.start")[-1]["age"] == 150
    crashed.clock.advance(7)
    crashed.put(STATE).step()
    crashed.writer._open.checkpoint_signer.demand()
    crashed.writer._certify_if_up()
    crashed.writer._open.close()
    assert ages == [100, 150]
    assert Workbench(folder).begin().writer._open.age.seconds() == 157


@pytest.mark.parametrize("age", [None, True, -1, "9", 1.5])
def test_a_file_whose_age_is_unknown_is_kept(folder: Path, age: object) -> None:
    """As an earlier version began it."""
    workbench = Workbench(folder, rotate_bytes=1, retention=Duration.parse("1d")).begin()
    workbench.clock.advance(10 * 86_400)
    refs = {} if age is None else {"age": age}
    lines = log(2, kind="log.rotate", refs=refs)
    for seq, text in enumerate(lines, start=1):
        (folder / file_name(seq)).write_bytes(text)
    assert workbench.writer._open.expire() == []


def test_a_rotation_that_fails_is_tried_again_an_eighth_later(folder: Path) -> None:
    workbench = Workbench(folder, rotate_bytes=8000).begin()
    size = workbench.writer._open.store.size
    workbench.writer._rotate_at = size
    workbench.disk.room = 0
    workbench.writer._rotate_if_due()
    workbench.disk.room = None
    assert workbench.writer._rotate_at == size + 1000
    assert workbench.writer.down == ""
    workbench.writer._rotate_at = size
    workbench.writer._rotate_if_due()
    assert workbench.writer._rotate_at == 8000
    assert len(log_files(folder)) == 2


class Patience(threading.Event):
    """Notes how long somebody would have waited, and is set after so many times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.waits: list[float | None] = []
        self._times = times

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        if len(self.waits) == self._times:
            self.set()
        return self.is_set()


def test_attempts_come_more_and_more_slowly(folder: Path) -> None:
    workbench = Workbench(folder)
    workbench.broken = OSError("no disk")
    workbench.writer._stopping = patience = Patience(8)
    workbench.writer.run()
    assert patience.waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert workbench.writer.attempted.is_set()
    workbench = Workbench(folder)
    workbench.writer._retry_seconds = 5.0
    workbench.writer._begin()
    assert workbench.writer._retry_seconds == 0.1


def test_the_end_says_all_that_is_left(folder: Path) -> None:
    workbench = Workbench(folder).begin().put(STATE)
    workbench.counted = [ROUND]
    workbench.losses.add(2)
    syncs = workbench.disk.syncs
    workbench.writer._finish()
    assert workbench.disk.syncs - syncs == 4
    assert workbench.heard.kinds == [
        ["node.state", "log.gap"],
        ["evidence.repeated"],
        ["checkpoint"],
        ["log.stop"],
    ]
    assert (workbench.writer.down, workbench.heard.closed) == ("closed", 1)
    assert workbench.heard.lost_records == [2, 0]
    record = records_in(folder)[-1]
    assert (record["actor"], record["subject"], record["decision"]) == (
        "controller",
        "log",
        "stopped",
    )
    assert workbench.writer.published is not None
    reopened = Workbench(folder)
    reopened.writer._begin()
    assert reopened.writer.down == "", "the lock was let go"


def test_an_end_without_a_log_counts_what_is_lost(folder: Path) -> None:
    workbench = Workbench(folder).put(STATE)
    workbench.broken = OSError("no disk")
    workbench.counted = [ROUND, ROUND]
    workbench.losses.add(4)
    workbench.writer._begin()
    workbench.grant()
    workbench.writer._finish()
    # Two counters, four from before and `log.stop`; then the records that still waited.
    assert sum(workbench.heard.lost_records) >= 2 + 4 + 1
    assert workbench.answers == ["no disk"]
    assert (workbench.writer.down, workbench.heard.closed) == ("no disk", 1)


# --- The end of the writer, in one thread: who comes when nothing is written any more


class LateGrant:
    """An observer that sends one more grant when it sees the last record."""

    def __init__(self, queue: RecordQueue) -> None:
        self.queue = queue
        self.answers: list[str | None] = []
        self.lost_records = 0

    def committed(self, lines: Sequence[SealedLine], kinds: Sequence[str], seconds: float) -> None:
        del lines, seconds
        if RecordKind.LOG_STOP in kinds:
            self.queue.put(QueuedRecord(STATE, 0, 0, Waiter(self.answers.append)))
            self.queue.put(QueuedRecord(STATE, 0, 0))

    def lost(self, records: int) -> None:
        self.lost_records += records

    def state(self, down: str, *, low: bool) -> None:
        pass

    def close(self) -> None:
        pass


def test_grant_that_comes_after_the_last_record_is_refused(tmp_path: Path) -> None:
    clock, queue = FakeClock(), RecordQueue(10)
    observer = LateGrant(queue)
    settings = AuditSettings(dir=tmp_path / "audit", reserve=0)
    writer = Writer(
        queue,
        lambda: open_files(settings, "lab/c", clock, Disk()),
        sealer=Sealer(LogIdentity("lab/c", "b", "i")),
        clock=clock,
        observer=observer,
        due=lambda _now: [],
        flush=list,
        losses=Losses(),
        rotate_bytes=1 << 20,
    )
    writer.stop()

    writer.run()

    assert observer.answers == ["closed"]
    assert observer.lost_records == 2
