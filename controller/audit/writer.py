"""The thread that writes the log: takes records from a bounded queue, commits them in groups.

It survives a disk that fails. States: writing; low (space ran out: ordinary records are dropped,
the reserve is spent on the rest); down (nothing can be made durable: grants are refused at once,
records without a waiter are kept as far as there is room). After every outage the first record
is a `log.gap` that says how much was lost.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from errno import EDQUOT, ENOSPC
from functools import partial
from typing import Protocol, cast

from controller.audit.age import REF, LogAge
from controller.audit.checkpoints import ACTOR, CheckpointSigner, Draft, Published
from controller.audit.files import FileStore, LogBrokenError, Reserve
from controller.audit.sealing import SealedLine, Sealer, summarised
from controller.record import Json, Record
from gpuwarden.audit.record import RecordKind
from gpuwarden.clock import Clock
from gpuwarden.moment import NS_PER_S

# --- queue

GROUP_RECORDS = 64
"""Records that are made durable together at most."""
GROUP_SECONDS = 0.005
"""Longest time that a record without a waiter is held back to gather a group."""

ORDINARY = frozenset({RecordKind.FILTER_DECISION, RecordKind.EVIDENCE_REPEATED})
"""Kinds that go first when room runs out."""


class Waiter:
    """The waiting side of a grant; `answer` is called once, from the writer's thread.

    It is called with None when the record is durable, or with the reason why it is not.
    """

    def __init__(self, answer: Callable[[str | None], None]) -> None:
        self.answer = answer
        self.abandoned = False
        """Set by the waiter when it has given up: the record must not be written any more."""


@dataclass(frozen=True, slots=True)
class QueuedRecord:
    """A record on its way into the log."""

    record: Record
    wall_ns: int
    sent_ns: int
    """CLOCK_BOOTTIME, for the lag."""
    waiter: Waiter | None = None

    @property
    def ordinary(self) -> bool:
        """Whether it may be dropped first."""
        return self.waiter is None and self.record.kind in ORDINARY


class RecordQueue:
    """The bounded queue between those who report events and the thread that writes them.

    First in, first out. Nobody waits here but the writer. Ordinary records may fill three quarters;
    the rest is kept for grants, refusals and revocations. Any thread may call any method.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._ordinary_limit = limit * 3 // 4
        self._records: deque[QueuedRecord] = deque()
        self._urgent = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._records)

    def put(self, queued: QueuedRecord) -> bool:
        """Take the queued; False when there is no room for it."""
        with self._changed:
            limit = self._ordinary_limit if queued.ordinary else self._limit
            if len(self._records) >= limit:
                return False
            self._records.append(queued)
            self._urgent |= queued.waiter is not None
            if self._urgent or len(self._records) in {1, GROUP_RECORDS}:
                self._changed.notify()
            return True

    def wake(self) -> None:
        """End the writer's present wait."""
        with self._changed:
            self._urgent = True
            self._changed.notify()

    def take(self, timeout: float) -> list[QueuedRecord]:
        """Return the next group, oldest first; empty after `timeout` seconds or a `wake`.

        A waiting grant is taken at once, with what is there; other records wait up to
        GROUP_SECONDS for company.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._records or self._urgent, timeout)
            self._changed.wait_for(
                lambda: self._urgent or not 0 < len(self._records) < GROUP_RECORDS, GROUP_SECONDS
            )
            count = min(len(self._records), GROUP_RECORDS)
            group = [self._records.popleft() for _ in range(count)]
            self._urgent = any(queued.waiter for queued in self._records)
            return group

    def put_back(self, batch: Iterable[QueuedRecord]) -> int:
        """Put unwritten batch without waiters back in front; returns how many had no room."""
        lost = 0
        with self._changed:
            for queued in reversed(list(batch)):
                if len(self._records) >= self._limit:
                    lost += 1
                else:
                    self._records.appendleft(queued)
        return lost

    def take_out(self, choose: Callable[[QueuedRecord], bool]) -> list[QueuedRecord]:
        """Remove and return the batch that `choose` picks."""
        with self._changed:
            chosen = [queued for queued in self._records if choose(queued)]
            self._records = deque(queued for queued in self._records if not choose(queued))
            self._urgent = any(queued.waiter for queued in self._records)
        return chosen

    def oldest_ns(self) -> int | None:
        """When the oldest waiting queued was sent."""
        with self._changed:
            return self._records[0].sent_ns if self._records else None


# --- writer

TICK_SECONDS = 1.0
FIRST_RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 5.0
DELETED_NAMES = 8


@dataclass(frozen=True, slots=True)
class Opened:
    """A store that has just been opened."""

    store: FileStore
    space: Reserve
    checkpoint_signer: CheckpointSigner
    first: tuple[Record, ...]
    """Records that this opening begins with; the last is `log.start`."""
    age: LogAge
    expire: Callable[[], list[str]]
    """Deletes finished files that are too old; returns their names."""
    close: Callable[[], None]
    """Lets all of it go."""


class Observer(Protocol):
    """Takes note of commits, losses and states, on the writer's thread.

    The writer must not know metrics and logs; `log.Reporting` implements this.
    """

    def committed(self, lines: Sequence[SealedLine], kinds: Sequence[str], seconds: float) -> None:
        """Take note that a group is durable."""

    def lost(self, records: int) -> None:
        """Take note that records could not be kept."""

    def state(self, down: str, *, low: bool) -> None:
        """Take note of a new state; `down` says why nothing can be written, or is empty."""

    def close(self) -> None:
        """Take note that nothing follows."""


class Losses:
    """Counts records that could not be kept, until a `log.gap` record says so."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def add(self, records: int) -> None:
        """Count some."""
        with self._lock:
            self._count += records

    def take(self) -> int:
        """Return the count and start from zero."""
        with self._lock:
            count, self._count = self._count, 0
        return count


class Writer:
    """Body of the writer's thread; `down` and `low` may be read from any."""

    def __init__(
        self,
        queue: RecordQueue,
        open_store: Callable[[], Opened],
        *,
        sealer: Sealer,
        clock: Clock,
        observer: Observer,
        due: Callable[[int], list[Record]],
        flush: Callable[[], list[Record]],
        losses: Losses,
        rotate_bytes: int,
    ) -> None:
        """`due` takes out the counters whose hour is over, `flush` all of them, at the end."""
        self.down = "not open yet"
        self.low = False
        self.attempted = threading.Event()
        """Set once the first attempt to open the log has ended."""
        self._queue = queue
        self._open_store = open_store
        self._sealer = sealer
        self._clock = clock
        self._observer = observer
        self._due = due
        self._flush = flush
        self._losses = losses
        self._rotate_bytes = rotate_bytes
        self._rotate_at = rotate_bytes
        self._opened: Opened | None = None
        self._started = False
        self._stopping = threading.Event()
        self._retry_seconds = FIRST_RETRY_SECONDS
        self._ticked_ns = 0

    @property
    def published(self) -> Published | None:
        """The last checkpoint; may be read from any thread."""
        return self._opened.checkpoint_signer.published if self._opened else None

    def want_proof(self, size: int) -> None:
        """Ask for a proof from the checkpoint of this size; may be called from any thread."""
        if self._opened is not None:
            self._opened.checkpoint_signer.want(size)

    def stop(self) -> None:
        """Let `run` write what waits, and end."""
        self._stopping.set()
        self._queue.wake()

    def run(self) -> None:
        """Write until stopped. No error of the disk, nor of a record, ends it."""
        self._begin()
        self.attempted.set()
        while not self._stopping.is_set():
            if self.down:
                self._stopping.wait(self._retry_seconds)
                self._retry_seconds = min(2 * self._retry_seconds, LAST_RETRY_SECONDS)
                self._begin()
            else:
                self._take_and_commit(TICK_SECONDS)
        self._finish()

    def _begin(self) -> None:
        self._attempt(self._restore)
        self._certify_if_up()

    def _take_and_commit(self, timeout: float) -> int:
        batch = self._queue.take(timeout)
        self._attempt(partial(self._commit, batch), batch)
        self._certify_if_up()
        return len(batch)

    def _certify_if_up(self) -> None:
        if not self.down:
            self._attempt(self._certify)

    def _attempt(self, work: Callable[[], None], batch: Sequence[QueuedRecord] = ()) -> None:
        """Do `work`; whatever goes wrong, the waiters of the batch get an answer."""
        try:
            work()
        except (OSError, LogBrokenError) as error:
            self._go_down(str(error), batch, keep=True)
        except Exception as error:  # noqa: BLE001 -- a fault in one record must not end the log
            self._go_down(f"fault in the writer: {type(error).__name__}", batch, keep=False)

    def _restore(self) -> None:
        """Open the log, or cut off what is not durable; the first record says what happened."""
        if self._opened is None:
            self._opened = self._open_store()
        else:
            self._opened.store.recover()
        self._opened.space.fill()
        first = self._opened.first
        if self._started:
            refs: dict[str, Json] = {"cause": self.down}
            first = (Record(RecordKind.LOG_GAP, ACTOR, "log", "restored", refs=refs),)
        self._append([self._queued(record) for record in first])
        self._started = True
        self.down = ""
        self._retry_seconds = FIRST_RETRY_SECONDS
        self._report_state()

    def _commit(self, batch: Sequence[QueuedRecord]) -> None:
        wanted = [
            queued for queued in batch if queued.waiter is None or not queued.waiter.abandoned
        ]
        self._append([*wanted, *self._take_own_records()])
        self._rotate_if_due()

    def _take_own_records(self) -> list[QueuedRecord]:
        """Take out the counters that are due and the count of losses; once per tick."""
        now = self._clock.boottime_ns()
        if now - self._ticked_ns < TICK_SECONDS * NS_PER_S:
            return []
        self._ticked_ns = now
        if self.low:
            self._open.space.fill()
            self._note_space(low=not self._open.space.complete)
        return [self._queued(r) for r in [*self._due(self._clock.wall_ns()), *self._take_gap()]]

    def _take_gap(self) -> list[Record]:
        lost = self._losses.take()
        if not lost:
            return []
        self._observer.lost(lost)
        return [Record(RecordKind.LOG_GAP, ACTOR, "log", "lost", refs={"lost": lost})]

    def _append(self, batch: Sequence[QueuedRecord]) -> None:
        """Make the batch durable and answer its waiters, with the reserve where space is out."""
        started = time.perf_counter()
        while batch := self._drop_if_low(batch):
            draft = self._open.checkpoint_signer.draft()
            lines = self._seal(batch, draft)
            try:
                self._open.store.append(b"".join(x.line + b"\n" for x in lines), lines[-1].head)
            except OSError as error:
                self._open.store.recover()
                if error.errno not in {ENOSPC, EDQUOT} or not self._open.space.release():
                    raise
                self._note_space(low=True)
                continue
            self._open.checkpoint_signer.commit(draft)
            kinds = [queued.record.kind.value for queued in batch]
            self._observer.committed(lines, kinds, time.perf_counter() - started)
            for queued in batch:
                if queued.waiter is not None:
                    queued.waiter.answer(None)
            return

    def _drop_if_low(self, batch: Sequence[QueuedRecord]) -> Sequence[QueuedRecord]:
        if not self.low:
            return batch
        kept = [queued for queued in batch if not queued.ordinary]
        self._losses.add(len(batch) - len(kept))
        return kept

    def _seal(self, batch: Sequence[QueuedRecord], draft: Draft) -> list[SealedLine]:
        lines: list[SealedLine] = []
        head = self._open.store.head
        for queued in batch:
            lines.append(self._sealer.seal(queued.record, queued.wall_ns, head))
            draft.take(lines[-1].line)
            head = lines[-1].head
        return lines

    def _certify(self) -> None:
        """Sign a checkpoint, if one is due, over what is durable; it counts once it is too."""
        checkpoint_signer = self._open.checkpoint_signer
        if checkpoint_signer.due():
            signed = checkpoint_signer.sign()
            self._append([self._queued(signed.record(self._open.age.seconds()))])
            checkpoint_signer.publish(signed)
        checkpoint_signer.tick()

    def _rotate_if_due(self) -> None:
        store = self._open.store
        if store.size < self._rotate_at:
            return
        checkpoint_signer = self._open.checkpoint_signer
        signed, draft = checkpoint_signer.sign(), checkpoint_signer.draft()
        refs = {
            "from": store.file,
            "deleted": self._delete_expired(),
            REF: self._open.age.seconds(),
            **checkpoint_signer.carried(signed),
        }
        rotated = Record(RecordKind.LOG_ROTATE, ACTOR, "log", "rotated", refs=refs)
        line = self._sealer.seal(rotated, self._clock.wall_ns(), store.head)
        draft.take(line.line)
        checkpoint_signer.save(durable=True)
        try:
            store.rotate(line.line + b"\n", line.head)
        except OSError:
            # The old file stays in use; the next attempt follows when it has grown some more.
            self._rotate_at = store.size + self._rotate_bytes // 8
            return
        self._rotate_at = self._rotate_bytes
        checkpoint_signer.commit(draft)
        checkpoint_signer.publish(signed)
        self._observer.committed([line], [RecordKind.LOG_ROTATE.value], 0.0)

    def _delete_expired(self) -> Json:
        """Delete the files that are too old; returns their names, shortened where they are many."""
        return summarised(tuple(self._open.expire()), keep=DELETED_NAMES)

    def _go_down(self, reason: str, batch: Sequence[QueuedRecord], *, keep: bool) -> None:
        """Refuse the waiting grants, keep the other records if they may be tried again."""
        self.down = reason
        self._report_state()
        waiting = self._queue.take_out(lambda queued: queued.waiter is not None)
        for queued in (*batch, *waiting):
            if queued.waiter is not None:
                queued.waiter.answer(reason)
        notes = [queued for queued in batch if queued.waiter is None]
        self._losses.add(self._queue.put_back(notes) if keep else len(notes))

    def _finish(self) -> None:
        if self.down:
            self._attempt(self._restore)
        while not self.down and self._take_and_commit(0):
            pass
        last = [self._queued(record) for record in (*self._flush(), *self._take_gap())]
        self._append_at_the_end(last)
        if not self.down:
            self._open.checkpoint_signer.demand()
        self._certify_if_up()
        self._append_at_the_end([self._queued(self._stop_record())])
        self.down = self.down or "closed"
        self._give_up(self._queue.take_out(lambda _queued: True))
        if self._opened is not None:
            self._opened.checkpoint_signer.save(durable=False)
            self._opened.close()
        self._observer.close()

    def _stop_record(self) -> Record:
        age = self._opened.age.seconds() if self._opened is not None else None
        return Record(RecordKind.LOG_STOP, ACTOR, "log", "stopped", refs={REF: age})

    def _append_at_the_end(self, batch: Sequence[QueuedRecord]) -> None:
        if self.down:
            self._losses.add(len(batch))
        else:
            self._attempt(partial(self._append, batch), batch)

    def _give_up(self, batch: Sequence[QueuedRecord]) -> None:
        for queued in batch:
            if queued.waiter is not None:
                queued.waiter.answer(self.down)
        self._observer.lost(len(batch) + self._losses.take())

    @property
    def _open(self) -> Opened:
        return cast("Opened", self._opened)  # what is not down has been opened

    def _note_space(self, *, low: bool) -> None:
        if low is not self.low:
            self.low = low
            self._report_state()

    def _report_state(self) -> None:
        self._observer.state(self.down, low=self.low)

    def _queued(self, record: Record) -> QueuedRecord:
        return QueuedRecord(record, self._clock.wall_ns(), self._clock.boottime_ns())
