"""The end of the writer, in one thread: who comes when nothing is written any more."""

from collections.abc import Sequence
from pathlib import Path

from controller.audit.files import Disk
from controller.audit.opening import open_files
from controller.audit.sealing import LogIdentity, SealedLine, Sealer
from controller.audit.writer import Losses, QueuedRecord, RecordQueue, Waiter, Writer
from controller.record import Record
from gpuwarden.audit.record import RecordKind
from gpuwarden.settings.controller import AuditSettings
from tests.fakes.clock import FakeClock

STATE = Record(RecordKind.NODE_STATE, "a", "node/n1", "eligible")


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
