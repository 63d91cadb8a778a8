"""Opens the audit log of a replica.

Opening reads the last file again: the chain, the tree over it, the key in force. Where the stored
hashes of older files are gone, those files are read too. Where those are past retention, the tree
goes on, and proofs from before are no longer possible.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

from controller.audit.age import REF, LogAge, stated_age
from controller.audit.checkpoints import ACTOR, CheckpointSigner, key_record
from controller.audit.evidence import EvidenceStore
from controller.audit.files import Disk, FileStore, LogBrokenError, Reserve
from controller.audit.held_evidence import HeldEvidence
from controller.audit.key import KeyChanges, LogKeyError, LogKeys, log_keys
from controller.audit.log import Copies, DurableLog, Reporting
from controller.audit.sealing import LogIdentity, SealedLine
from controller.audit.tree import CheckpointRecord, LogState, Replay, TreeFile
from controller.audit.writer import Opened
from controller.record import Json, Record
from gpuwarden.audit.archived_evidence import CITED_FOLDER, FOLDER
from gpuwarden.audit.chain import Broken, ChainVerifier, Head
from gpuwarden.audit.checkpoint import (
    MAX_CHECKPOINT,
    open_checkpoint,
    sign_change,
    unverified_checkpoint,
)
from gpuwarden.audit.files import PREV_LOG, lines_of, log_files
from gpuwarden.audit.merkle import Frontier
from gpuwarden.audit.new_log import is_half_begun
from gpuwarden.audit.note import NoteError
from gpuwarden.audit.reading import record_of
from gpuwarden.audit.record import RecordKind
from gpuwarden.clock import Clock
from gpuwarden.moment import NS_PER_S
from gpuwarden.regular_file import open_to_read
from gpuwarden.settings.controller import AuditSettings
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

STANDARD_OUTPUT = 1


def audit_log(
    settings: AuditSettings,
    identity: LogIdentity,
    clock: Clock,
    instruments: Instruments,
    *,
    copies_to: int | None = STANDARD_OUTPUT,
    also_copy: Callable[[Sequence[SealedLine]], None] = lambda _lines: None,
) -> DurableLog:
    """Make the log, not yet opened; `copies_to` is the descriptor for the collector's copies.

    `also_copy` takes each durable group, on the log's thread, and returns at once.
    """
    copies = partial(Copies, copies_to) if copies_to is not None else None
    age = LogAge(clock)
    evidence, cited = (
        EvidenceStore(
            settings.dir,
            name=name,
            age=age.seconds,
            limit_bytes=settings.evidence_bytes // 2,
            retention=timedelta(seconds=settings.evidence_retention.seconds),
            kept=instruments.counter(names.AUDIT_EVIDENCE_KEPT).inc,
            lost=instruments.counter(names.AUDIT_EVIDENCE_LOST).inc,
        )
        for name in (FOLDER, CITED_FOLDER)
    )

    def close_evidence(timeout: float) -> None:
        evidence.close(timeout)
        cited.close(timeout)

    return DurableLog(
        partial(open_files, settings, identity.origin, clock, Disk(), age),
        identity,
        clock,
        Reporting(instruments, copies, also_copy, close_evidence),
        keep=evidence.put,
        keep_cited=cited.put,
        held=HeldEvidence() if settings.evidence_bytes else None,
        rotate_bytes=settings.rotate_bytes,
    )


def open_files(
    settings: AuditSettings, origin: str, clock: Clock, disk: Disk, age: LogAge | None = None
) -> Opened:
    """Open the folder's log; raises OSError, LogBrokenError. `age` begins with it."""
    opening = _Opening(settings, origin, disk, age or LogAge(clock))
    try:
        return opening.opened(clock)
    except BaseException:
        opening.close()
        raise


class _Opening:
    """The parts that have to be let go again if one of them cannot be had."""

    def __init__(self, settings: AuditSettings, origin: str, disk: Disk, age: LogAge) -> None:
        self._settings = settings
        self._origin = origin
        self._disk = disk
        self._age = age
        self._closing: list[Callable[[], None]] = []

    def opened(self, clock: Clock) -> Opened:
        folder = self._settings.dir
        refuse_half_begun(folder)
        tree = TreeFile(folder, self._disk)
        self._closing.append(tree.close)
        store, state = self._store(tree)
        refuse_half_begun(folder)  # it may have been moved since, and no key is made yet
        keys = log_keys(self._settings.key, folder, self._origin)
        changes = KeyChanges(folder)
        self._age.begin(state.age)
        first = [*self._key_change(state, keys, changes), self._start(store, state, keys)]

        return Opened(
            store,
            Reserve(folder, self._settings.reserve, self._disk),
            CheckpointSigner(state, tree, keys.current, changes.statements, clock),
            tuple(first),
            self._age,
            partial(store.delete_finished, self._expired),
            self.close,
        )

    def _expired(self, line: bytes) -> bool:
        """Whether what lies before the record in `line` is past retention."""
        record, age = record_of(line), self._age.seconds()
        began = stated_age(record.refs) if record is not None else None
        if began is None or age is None:
            return False
        return (age - began) * NS_PER_S > self._settings.retention.ns

    def _store(self, tree: TreeFile) -> tuple[FileStore, LogState]:
        replay = Replay(tree)
        store = FileStore(self._settings.dir, self._origin, self._disk, replay.take)
        self._closing.append(store.close)
        state = replay.state
        if store.head.seq == 0:
            state = LogState(Frontier())
            tree.begin(state.frontier)
        elif state is None or tree.lost:
            state = rebuilt(self._settings.dir, tree)
        return store, state

    def _key_change(self, state: LogState, keys: LogKeys, changes: KeyChanges) -> list[Record]:
        """The record of a new key, which the old key must state too; otherwise LogKeyError."""
        current = keys.current
        if state.key in {None, current.key}:
            return []
        former = keys.of(state.key)
        if former is None:
            raise LogKeyError(
                f"the log is signed by {state.key}, and audit.key holds {current.key};"
                " put the former key behind the new one in its file"
            )
        statement = sign_change(former, current)
        changes.add(statement)
        return [key_record(statement, current)]

    def _start(self, store: FileStore, state: LogState, keys: LogKeys) -> Record:
        refs: dict[str, Json] = {
            "after": str(store.head),
            "file": store.file,
            "key": str(keys.current.key),
            REF: self._age.seconds(),
        }
        if store.healed is not None:
            refs["healed"] = asdict(store.healed)
            logger("audit").warning(Event.AUDIT_HEALED, **asdict(store.healed))
        unsigned = unsigned_end(state, store.head, keys)
        if unsigned is not None:
            refs["unsigned"] = asdict(unsigned)
            report_unsigned(unsigned)
        note = prev_log(self._settings.dir, keys) if store.head.seq == 0 else None
        if note is not None:
            refs["prevLog"] = note
            state.prev = unverified_checkpoint(note).head
        logger("audit").info(Event.AUDIT_OPENED, head=str(store.head), file=store.file)
        return Record(RecordKind.LOG_START, ACTOR, "log", "started", refs=refs)

    def close(self) -> None:
        """Let everything go."""
        while self._closing:
            self._closing.pop()()


def refuse_half_begun(folder: Path) -> None:
    """Raise LogBrokenError where `gpuwarden audit begin-new` was ended before it was done."""
    if is_half_begun(folder):
        raise LogBrokenError(
            f"a new log in place of {folder} was not begun to its end;"
            f" run gpuwarden audit begin-new {folder}"
        )


def rebuilt(folder: Path, tree: TreeFile) -> LogState:
    """The state of a log whose files are all read again; raises LogBrokenError."""
    replay, verifier = Replay(tree), ChainVerifier()
    verifier.accepted = replay.take
    for line in lines_of(log_files(folder)):
        verifier.feed(line)
    result = verifier.finish()
    if isinstance(result, Broken):
        raise LogBrokenError(f"{folder} is broken at record {result.seq}: {result.what}")
    if replay.state is None:
        raise LogBrokenError(f"{folder} does not say what came before record {result.first_seq}")
    return replay.state


@dataclass(frozen=True, slots=True)
class Unsigned:
    """The records at the end of a log that no checkpoint of its keys covers."""

    first: int
    last: int
    appended: bool
    """Whether some lie behind the end of a closed log, where no crash puts any."""


def unsigned_end(state: LogState, head: Head, keys: LogKeys) -> Unsigned | None:
    """What a crash leaves behind the last checkpoint, or somebody who appends a record that fits.

    None where there is nothing but the `log.stop` of a log that was closed in order.
    """
    signed = next((one.seq for one in reversed(state.checkpoints) if _holds(one, keys)), None)
    after = state.before if signed is None else signed
    stops = [seq for seq in state.stops if seq > after]
    if after == head.seq or (after + 1 == head.seq and stops):
        return None
    return Unsigned(after + 1, head.seq, any(seq < head.seq for seq in stops))


def _holds(claimed: CheckpointRecord, keys: LogKeys) -> bool:
    for signer in (keys.current, *keys.former):
        with suppress(NoteError):
            return open_checkpoint(claimed.note, signer.key).head == claimed.head
    return False


def report_unsigned(unsigned: Unsigned) -> None:
    """Log it: as an error where no crash can be the cause."""
    log = logger("audit")
    if unsigned.appended:
        log.error(Event.AUDIT_APPENDED, first=unsigned.first, last=unsigned.last)
    else:
        log.warning(Event.AUDIT_UNSIGNED, first=unsigned.first, last=unsigned.last)


def prev_log(folder: Path, keys: LogKeys) -> str | None:
    """The checkpoint where a lost log ended, if an operator has put it there.

    Raises LogKeyError unless one of this log's keys has signed it.
    """
    try:
        # A checkpoint is bounded in characters, of which some have several bytes.
        with open_to_read(folder / PREV_LOG) as file:
            note = file.read(2 * MAX_CHECKPOINT).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    for signer in (keys.current, *keys.former):
        with suppress(NoteError):
            open_checkpoint(note, signer.key)
            return note
    raise LogKeyError(f"{folder / PREV_LOG} is no checkpoint that this log's key has signed")
