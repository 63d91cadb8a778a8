"""Writer.

Holds: mailbox, reserve, sealing, rounds, notary, writer.
"""

import os
import re
import threading
import time
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from errno import EDQUOT, ENOSPC
from functools import partial
from json.encoder import encode_basestring
from pathlib import Path
from typing import Final, Protocol, cast

from controller.audit.files import Disk, LogBrokenError, NoNodeError, TreeNodes
from controller.audit.reading import LogState
from controller.record import Json, Record
from gpuwarden.audit.chain import Head
from gpuwarden.audit.checkpoint import CHECKPOINT_RECORDS, Checkpoint, TreeHead, log_id
from gpuwarden.audit.merkle import (
    ProofError,
    consistency_proof,
    leaf_hash,
    root_at,
    verify_consistency,
)
from gpuwarden.audit.note import Signer
from gpuwarden.audit.record import FORMAT, MAX_RECORD_BYTES, RecordKind, format_timestamp
from gpuwarden.clock import Clock
from gpuwarden.evidence.canonical import CanonicalValue, canonical_json, sha256_hex
from gpuwarden.evidence.errors import CanonicalError

# --- mailbox
# The bounded queue between those who report events and the thread that writes them.
#
# Nobody waits here but the writer. Ordinary records may fill three quarters; the rest is
# kept for grants, refusals and revocations.

GROUP_RECORDS = 64
"""Records that are made durable together at most."""
GROUP_SECONDS = 0.005
"""Longest time that a record without a waiter is held back to gather a group."""

ORDINARY = frozenset({RecordKind.FILTER_DECISION, RecordKind.EVIDENCE_ROUND})
"""Kinds that go first when room runs out."""


class Ticket:
    """The waiting side of a grant: told once, from the writer's thread, how it went."""

    def __init__(self, tell: Callable[[str | None], None]) -> None:
        self._tell = tell
        self.abandoned = False
        """Set by the waiter when it has given up: the record must not be written any more."""

    def settle(self, failure: str | None) -> None:
        """Tell the waiter that the record is durable (None), or why it is not."""
        self._tell(failure)


@dataclass(frozen=True, slots=True)
class Letter:
    """A record on its way into the log."""

    record: Record
    wall_ns: int
    sent_ns: int
    """CLOCK_BOOTTIME, for the lag."""
    ticket: Ticket | None = None

    @property
    def ordinary(self) -> bool:
        """Whether it may be dropped first."""
        return self.ticket is None and self.record.kind in ORDINARY


class Mailbox:
    """First in, first out; every method may be called from any thread."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._ordinary_limit = limit * 3 // 4
        self._letters: deque[Letter] = deque()
        self._urgent = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._letters)

    def put(self, letter: Letter) -> bool:
        """Take the letter; False when there is no room for it."""
        with self._changed:
            limit = self._ordinary_limit if letter.ordinary else self._limit
            if len(self._letters) >= limit:
                return False
            self._letters.append(letter)
            self._urgent |= letter.ticket is not None
            if self._urgent or len(self._letters) in {1, GROUP_RECORDS}:
                self._changed.notify()
            return True

    def wake(self) -> None:
        """End the writer's present wait."""
        with self._changed:
            self._urgent = True
            self._changed.notify()

    def take(self, timeout: float) -> list[Letter]:
        """Return the next group, oldest first; empty after `timeout` seconds or a `wake`.

        A waiting grant is taken at once, with what is there; other records wait up to
        GROUP_SECONDS for company.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._letters or self._urgent, timeout)
            self._changed.wait_for(
                lambda: self._urgent or not 0 < len(self._letters) < GROUP_RECORDS, GROUP_SECONDS
            )
            count = min(len(self._letters), GROUP_RECORDS)
            group = [self._letters.popleft() for _ in range(count)]
            self._urgent = any(letter.ticket for letter in self._letters)
            return group

    def put_back(self, letters: Iterable[Letter]) -> int:
        """Put unwritten letters without waiters back in front; returns how many had no room."""
        lost = 0
        with self._changed:
            for letter in reversed(list(letters)):
                if len(self._letters) >= self._limit:
                    lost += 1
                else:
                    self._letters.appendleft(letter)
        return lost

    def take_out(self, choose: Callable[[Letter], bool]) -> list[Letter]:
        """Remove and return the letters that `choose` picks."""
        with self._changed:
            chosen = [letter for letter in self._letters if choose(letter)]
            self._letters = deque(letter for letter in self._letters if not choose(letter))
            self._urgent = any(letter.ticket for letter in self._letters)
        return chosen

    def oldest_ns(self) -> int | None:
        """When the oldest waiting letter was sent."""
        with self._changed:
            return self._letters[0].sent_ns if self._letters else None


# --- reserve
# Disk space kept for grants: a file of nothing beside the log that shrinks when space runs out.
#
# Other programs can fill the volume at any time, so a limit on ourselves reserves
# nothing; blocks that are allocated do.

STEP_BYTES = 1 << 20
"""What one shortage releases."""
NAME = "reserve"


class Reserve:
    """Holds `size` bytes of the folder's file system; only the writer's thread calls it."""

    def __init__(self, folder: Path, size: int, disk: Disk) -> None:
        self._path = folder / NAME
        self._size = size
        self._disk = disk
        self._held = 0

    @property
    def complete(self) -> bool:
        """Whether everything that was asked for is held."""
        return self._held >= self._size

    def fill(self) -> None:
        """Take up what is missing, if the file system has more than that to spare."""
        if self.complete:
            return
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        with suppress(OSError):
            descriptor = os.open(self._path, flags, 0o600)
            try:
                self._fill(descriptor)
            finally:
                os.close(descriptor)

    def _fill(self, descriptor: int) -> None:
        self._held = min(os.fstat(descriptor).st_blocks * 512, self._size)
        space = os.fstatvfs(descriptor)
        if space.f_bavail * space.f_frsize <= 2 * (self._size - self._held):
            return
        try:
            self._disk.reserve(descriptor, self._size)
        except OSError:
            os.ftruncate(descriptor, self._held)
            raise
        self._held = self._size

    def release(self) -> bool:
        """Give back one step; False when nothing is left."""
        if self._held == 0:
            return False
        self._held = max(0, self._held - STEP_BYTES)
        try:
            os.truncate(self._path, self._held)
        except OSError:
            self._held = 0
            return False
        return True


# --- sealing
# Turns a record into the line that follows a given head: fields, chain, size. Pure.

_MAX_NAME = 300
"""Bytes of a name as it stands in the line, quotes included."""
_MAX_WORD = 64
_MAX_CODES = 16
_MAX_SAMPLE = 256
_SAMPLE = 3
"""Items of a summarised list that are kept for people."""


_SPECIAL = re.compile(r"[^ !#-\[\]-~]")
"""What needs more than one byte in JSON."""


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """What is the same in every record that this process writes."""

    origin: str
    boot: str
    instance: str


@dataclass(frozen=True, slots=True)
class SealedLine:
    """A line without its LF, and the head after it."""

    line: bytes
    head: Head


class Sealer:
    """Seals records for one process; keys are written in their RFC 8785 order."""

    def __init__(self, identity: LogIdentity) -> None:
        self._boot = _text(identity.boot)
        self._instance = _text(identity.instance)
        self._origin = _text(identity.origin)

    def seal(self, record: Record, wall_ns: int, after: Head) -> SealedLine:
        """Give the record its place behind `after`; summarises what is too long, never fails."""
        before_refs = (
            f'{{"actor":{_text(record.actor)},"boot":{self._boot}'
            f',"codes":[{_codes(record.codes)}]'
            f',"decision":{_text(record.decision, _MAX_WORD)},"instance":{self._instance}'
            f',"kind":{_text(record.kind)},"origin":{self._origin},"prev":"{after.digest}","refs":'
        ).encode()
        seq = after.seq + 1
        after_refs = (
            f',"seq":{seq},"subject":{_text(record.subject)}'
            f',"ts":"{format_timestamp(wall_ns)}","v":"{FORMAT}"}}'
        ).encode()
        room = MAX_RECORD_BYTES - len(before_refs) - len(after_refs)
        line = before_refs + encode_refs(record.refs, room) + after_refs
        return SealedLine(line, Head(seq, sha256_hex(line)))


def encode_refs(refs: Mapping[str, Json], room: int) -> bytes:
    """Encode refs into at most `room` bytes: longest lists become count, digest and a sample.

    If that is not enough, everything becomes one digest. Values that have no canonical
    form are a fault of the caller and are said to be, because the record must not be lost.
    """
    try:
        encoded = canonical_json(cast("CanonicalValue", refs))
    except (CanonicalError, UnicodeError) as error:
        return canonical_json({"unencodable": type(error).__name__})
    if len(encoded) <= room:
        return encoded
    excess = len(encoded) - room
    shorter: dict[str, Json] = dict(refs)
    sizes = {key: len(canonical_json(cast("CanonicalValue", refs[key]))) for key in refs}
    for key in sorted(sizes, key=lambda name: -sizes[name]):
        shorter[key] = summarised(refs[key])
        excess -= sizes[key] - len(canonical_json(cast("CanonicalValue", shorter[key])))
        if excess <= 0:
            return canonical_json(cast("CanonicalValue", shorter))
    return canonical_json({"bytes": len(encoded), "digest": sha256_hex(encoded)})


def summarised(value: Json, *, keep: int = 0) -> Json:
    """Count, digest and first items of a list, or count and digest of anything else that is long.

    A list of at most `keep` items stays as it is. The digest is SHA-256 over the
    canonical form of the whole value.
    """
    if isinstance(value, list | tuple) and len(value) <= keep:
        return value
    encoded = canonical_json(cast("CanonicalValue", value))
    summary: dict[str, Json] = {"digest": sha256_hex(encoded)}
    match value:
        case list() | tuple():
            summary["count"] = len(value)
            sample = list(value[:_SAMPLE])
            if len(canonical_json(cast("CanonicalValue", sample))) <= _MAX_SAMPLE:
                summary["first"] = sample
        case Mapping():
            summary["count"] = len(value)
        case _:
            summary["bytes"] = len(encoded)
    return summary if len(canonical_json(summary)) < len(encoded) else value


def _codes(codes: tuple[str, ...]) -> str:
    if len(codes) > _MAX_CODES:
        codes = (*codes[: _MAX_CODES - 1], f"+{len(codes) - _MAX_CODES + 1}")
    return ",".join(_text(code, _MAX_WORD) for code in codes)


def _text(text: str, limit: int = _MAX_NAME) -> str:
    """Quote a name of bounded length; what is not Unicode is written as escapes."""
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    quoted = encode_basestring(text)
    if len(quoted.encode()) <= limit:
        return quoted
    digest = sha256_hex(text.encode())[:16]
    plain = _SPECIAL.sub("?", text[: limit - len(digest) - 3])
    return f'"{plain}~{digest}"'


# --- rounds
# Counts what repeats, so that the volume of the log stays bounded. Pure.
#
# An unchanged accepted round of a node, and a refusal that repeats the one before, become
# one `evidence.round` record per node, decision, codes and hour; so do states that a peer can
# bring about as often as it likes, or one node could fill the log of all. An acceptance that
# goes into the log, or a release, ends the counting for that node: the next one is news again.

HOUR_NS = 3_600_000_000_000
MAX_OPEN = 100_000
"""Counters that may be open at once; beyond it events are counted together, by first code."""
OVERFLOW_SUBJECT = "*"

_GPU_UNHEALTHY: Final = "gpu-unhealthy"
_RELEASED: Final = "released"
_AT_WILL: Final = frozenset(
    {"revoked", "quarantined", "claim-repelled", "bad-news", _GPU_UNHEALTHY}
)
"""Decisions of `node.state` that a peer can bring about again and again."""

_Key = tuple[str, str, tuple[str, ...]]


@dataclass(slots=True)
class _Open:
    last: Record
    count: int
    since_ns: int
    until_ns: int


class Rounds:
    """Open counters, taken out when their hour is over."""

    def __init__(self, max_open: int = MAX_OPEN) -> None:
        self._max_open = max_open
        self._open: dict[_Key, _Open] = {}
        self._repeating: dict[str, set[_Key]] = {}
        self._ended: list[_Open] = []
        self._oldest_ns: int | None = None

    def absorb(self, record: Record, wall_ns: int) -> bool:
        """Count the record and return True, or return False: it goes into the log itself.

        Every `evidence.round` is counted. A refusal, or a state out of `_AT_WILL`, is counted
        if the same one of the same subject went into the log within the hour.
        """
        match record.kind:
            case RecordKind.EVIDENCE_ROUND:
                self._count(record, wall_ns, 1)
                return True
            case RecordKind.EVIDENCE_REFUSED:
                return self._absorb_repeat(record, wall_ns)
            case RecordKind.NODE_STATE if record.decision in _AT_WILL:
                return self._absorb_repeat(record, wall_ns)
            case RecordKind.EVIDENCE_ACCEPTED:
                self._end(record.subject)
            case RecordKind.NODE_STATE if record.decision == _RELEASED:
                self._end(record.subject)
        return False

    def due(self, wall_ns: int) -> list[Record]:
        """Take out the counters that have ended or that an hour has passed for, as records."""
        over: list[_Key] = []
        if self._oldest_ns is not None and not 0 <= wall_ns - self._oldest_ns < HOUR_NS:
            over = [
                key
                for key, counter in self._open.items()
                # A wall clock set back ends the counter too: its hour can no longer be told.
                if not 0 <= wall_ns - counter.since_ns < HOUR_NS
            ]
        return self._take(over)

    def flush(self) -> list[Record]:
        """Take out all counters, as records."""
        return self._take(list(self._open))

    def _end(self, subject: str) -> None:
        for key in self._repeating.pop(subject, set()):
            self._ended.append(self._open.pop(key))

    def _absorb_repeat(self, record: Record, wall_ns: int) -> bool:
        key = _key(record)
        known = key in self._open
        if not known and len(self._open) >= self._max_open:
            self._count(record, wall_ns, 1)
            return True
        self._repeating.setdefault(record.subject, set()).add(key)
        self._count(record, wall_ns, 1 if known else 0)
        return known

    def _count(self, record: Record, wall_ns: int, by: int) -> None:
        key = _key(record)
        if key not in self._open and len(self._open) >= self._max_open:
            record = replace(record, subject=OVERFLOW_SUBJECT, codes=record.codes[:1])
            key = _key(record)
        counter = self._open.get(key)
        if counter is None:
            self._open[key] = _Open(record, by, wall_ns, wall_ns)
            self._oldest_ns = wall_ns if self._oldest_ns is None else min(self._oldest_ns, wall_ns)
            return
        counter.last, counter.until_ns = record, wall_ns
        counter.count += by

    def _take(self, keys: list[_Key]) -> list[Record]:
        taken = [*self._ended, *(self._open.pop(key) for key in keys)]
        self._ended = []
        for key in keys:
            self._forget_repeat(key)
        if keys:
            self._oldest_ns = min((rest.since_ns for rest in self._open.values()), default=None)
        return [_summary(counter) for counter in taken if counter.count]

    def _forget_repeat(self, key: _Key) -> None:
        keys = self._repeating.get(key[0])
        if keys is not None:
            keys.discard(key)
            if not keys:
                del self._repeating[key[0]]


def _key(record: Record) -> _Key:
    """A GPU that goes bad is one that the node is known to have, so there are few."""
    gpu = (str(record.refs.get("gpu")),) if record.decision == _GPU_UNHEALTHY else ()
    return record.subject, record.decision, record.codes + gpu


def _summary(counter: _Open) -> Record:
    kind = counter.last.kind
    return replace(
        counter.last,
        kind=kind if kind is RecordKind.NODE_STATE else RecordKind.EVIDENCE_ROUND,
        refs={
            "count": counter.count,
            "since": format_timestamp(counter.since_ns),
            "until": format_timestamp(counter.until_ns),
            "last": counter.last.refs,
        },
    )


# --- notary
# Says, signed, what the log has come to: the tree over its records, checkpoints, proofs.
#
# The writer makes a `Draft` of the lines it is about to append and commits it once they
# are durable; so nothing is ever signed that a crash could take back. What is published
# is a value that any thread may read; proofs that somebody wants are made by the
# writer's thread, because they read the disk.

CHECKPOINT_NS = 10_000_000_000
ACTOR = "controller"
PUBLISH_NS = 1_000_000_000
"""Least distance of two checkpoints that are shown: proofs cost time, and witnesses come slowly."""
KNOWN_NS = 120_000_000_000
"""How long proofs are kept ready from a checkpoint that was shown or a size that was asked for:
longer than a witness is silent between two challenges."""
MAX_WANTED = 256

Proof = tuple[str, ...]
"""Hashes in base64, as they travel."""


class BootClock(Protocol):
    """CLOCK_BOOTTIME."""

    def boottime_ns(self) -> int:
        """Nanoseconds."""


@dataclass(frozen=True, slots=True)
class Published:
    """The last checkpoint and what proves that it continues earlier ones."""

    note: str
    head: TreeHead
    log: str
    """Id of the log."""
    key: str
    """Verifier key."""
    key_changes: tuple[str, ...]
    proofs: Mapping[int, Proof]
    """By the size of the earlier checkpoint."""
    unprovable: frozenset[int]
    """Earlier sizes for which there is no proof, and will be none."""


@dataclass(frozen=True, slots=True)
class Signed:
    """A checkpoint that is not published yet."""

    note: str
    head: TreeHead

    def record(self) -> Record:
        """Its record."""
        refs = {"checkpoint": self.note}
        return Record(RecordKind.CHECKPOINT, ACTOR, "log", "signed", refs=refs)


class Draft:
    """A tree grown on trial by lines that are not durable yet."""

    def __init__(self, state: LogState) -> None:
        self.frontier = state.frontier.copy()
        self.log = state.log
        self.hashes = bytearray()
        self.records = 0

    def take(self, line: bytes) -> None:
        """Let the tree grow by a record's line without its LF."""
        leaf = leaf_hash(line)
        self.log = self.log or log_id(leaf)
        self.hashes += self.frontier.append(leaf)
        self.records += 1


class Notary:
    """One for an open log. `published` and `want` from any thread, the rest from the writer's."""

    def __init__(
        self,
        state: LogState,
        tree: TreeNodes,
        signer: Signer,
        key_changes: tuple[str, ...],
        clock: BootClock,
    ) -> None:
        self.state = state
        self.signer = signer
        self._tree = tree
        self._key_changes = key_changes
        self._clock = clock
        self._records = 0
        self._signed_ns: int | None = None
        self._demanded = False
        self._fresh: Signed | None = None
        """Durable, and not shown yet."""
        self._published_ns = -PUBLISH_NS
        self._wants: deque[int] = deque(maxlen=MAX_WANTED)
        now = clock.boottime_ns()
        self._known = {head.size: now for head in state.heads}
        """Sizes for which proofs are kept ready -> since when."""
        self.published: Published | None = None
        if state.note:
            self._publish(Signed(state.note, state.heads[-1]))
            self._published_ns = now - PUBLISH_NS

    def want(self, size: int) -> None:
        """Ask for a proof from the checkpoint of this size; it is published soon."""
        self._wants.append(size)

    def due(self) -> bool:
        """Whether a checkpoint is due."""
        if not self._records:
            return False
        if self._demanded or self._signed_ns is None or self._records >= CHECKPOINT_RECORDS:
            return True
        return self._clock.boottime_ns() - self._signed_ns >= CHECKPOINT_NS

    def demand(self) -> None:
        """Let a checkpoint be due as soon as there is anything to sign."""
        self._demanded = True

    def draft(self) -> Draft:
        """A trial of what comes next."""
        return Draft(self.state)

    def commit(self, draft: Draft) -> None:
        """The lines of the draft are durable."""
        self.state.frontier, self.state.log = draft.frontier, draft.log
        self._records += draft.records
        self._tree.append(bytes(draft.hashes))

    def sign(self) -> Signed:
        """A checkpoint over all that is durable. Its record is to be the next one."""
        state = self.state
        head = TreeHead(state.frontier.size, state.frontier.root())
        checkpoint = Checkpoint(self.signer.key.name, state.log, head, state.prev)
        return Signed(checkpoint.signed(self.signer), head)

    def carried(self, signed: Signed) -> dict[str, Json]:
        """What the first record of a further file says, so that the file stands for itself."""
        peaks = tuple(b64encode(peak).decode() for peak in self.state.frontier.peaks)
        return {"checkpoint": signed.note, "frontier": peaks, "key": str(self.signer.key)}

    def publish(self, signed: Signed) -> None:
        """The checkpoint's record is durable: show it, now or with the next `tick`."""
        self._records, self._demanded = 0, False
        self._signed_ns = self._clock.boottime_ns()
        self._fresh = signed
        self.tick()

    def save(self, *, durable: bool) -> None:
        """Write what the tree still holds in memory."""
        self._tree.flush(durable=durable)

    def tick(self) -> None:
        """Show a checkpoint that waits, make the proofs that were asked for; not all the time."""
        shown = self.published
        waiting = self._fresh or (self._wants and shown and Signed(shown.note, shown.head))
        if waiting and self._clock.boottime_ns() - self._published_ns >= PUBLISH_NS:
            self._publish(waiting)

    def _publish(self, signed: Signed) -> None:
        self._tree.flush()
        now, head = self._clock.boottime_ns(), signed.head
        wanted = {self._wants.popleft(): now for _ in range(len(self._wants))}
        known = self._known | wanted | {head.size: now}
        recent = [size for size, since in known.items() if now - since < KNOWN_NS]
        self._known = {size: known[size] for size in recent[-MAX_WANTED:]}
        proofs = {size: self._proof(size, head) for size in self._known if size <= head.size}
        self._fresh, self._published_ns = None, now
        self.published = Published(
            note=signed.note,
            head=head,
            log=self.state.log,
            key=str(self.signer.key),
            key_changes=self._key_changes,
            proofs={size: proof for size, proof in proofs.items() if proof is not None},
            unprovable=frozenset(size for size, proof in proofs.items() if proof is None),
        )

    def _proof(self, size: int, head: TreeHead) -> Proof | None:
        """A proof that has been checked, or None: a damaged tree must not accuse the log."""
        node = self._tree.node
        try:
            proof = consistency_proof(size, head.size, node)
            verify_consistency(size, root_at(size, node), head.size, head.root, proof)
        except (NoNodeError, ProofError):
            return None
        return tuple(b64encode(one).decode() for one in proof)


def key_record(statement: str, signer: Signer) -> Record:
    """A `log.key` record."""
    refs = {"key": str(signer.key), "statement": statement}
    return Record(RecordKind.LOG_KEY, ACTOR, "log", "changed", refs=refs)


# --- writer
# The thread that writes the log: groups, commits, survives a disk that fails.
#
# States: writing; low (space ran out: ordinary records are dropped, the reserve is spent
# on the rest); down (nothing can be made durable: grants are refused at once, records
# without a waiter are kept as far as there is room). After every outage the first record
# is a `log.gap` that says how much was lost.

TICK_SECONDS = 1.0
FIRST_RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 5.0
DELETED_NAMES = 8


class Store(Protocol):
    """Where lines become durable; `FileStore`. Errors: OSError, LogBrokenError."""

    head: Head

    @property
    def size(self) -> int:
        """Durable bytes of the current file."""

    @property
    def file(self) -> str:
        """Name of the current file."""

    def append(self, lines: bytes, head: Head) -> None:
        """Make whole lines durable."""

    def recover(self) -> None:
        """Forget what is not durable after a failed append."""

    def rotate(self, first_line: bytes, head: Head) -> None:
        """Begin a new file with this line; after an error the old one stays in use."""


class Space(Protocol):
    """Disk space kept for grants; `Reserve`."""

    @property
    def complete(self) -> bool:
        """Whether everything that was asked for is held."""

    def fill(self) -> None:
        """Take up what is missing."""

    def release(self) -> bool:
        """Give back one step; False when nothing is left."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A store that has just been opened."""

    store: Store
    space: Space
    notary: Notary
    first: tuple[Record, ...]
    """Records that this opening begins with; the last is `log.start`."""
    expire: Callable[[], list[str]]
    """Deletes finished files that are too old; returns their names."""
    close: Callable[[], None]
    """Lets all of it go."""


class Observer(Protocol):
    """Who hears how it goes, on the writer's thread."""

    def committed(self, lines: Sequence[SealedLine], kinds: Sequence[str], seconds: float) -> None:
        """Take note that a group is durable."""

    def lost(self, records: int) -> None:
        """Take note that records could not be kept."""

    def state(self, down: str, *, low: bool) -> None:
        """Take note of a new state; `down` says why nothing can be written, or is empty."""

    def close(self) -> None:
        """Take note that nothing follows."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where records come from besides the mailbox."""

    due: Callable[[int], list[Record]]
    """Counters whose hour is over."""
    flush: Callable[[], list[Record]]
    """All counters, at the end."""


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
        mailbox: Mailbox,
        open_store: Callable[[], Opened],
        *,
        sealer: Sealer,
        clock: Clock,
        observer: Observer,
        sources: Sources,
        losses: Losses,
        rotate_bytes: int,
    ) -> None:
        self.down = "not open yet"
        self.low = False
        self.attempted = threading.Event()
        """Set once the first attempt to open the log has ended."""
        self._mailbox = mailbox
        self._open_store = open_store
        self._sealer = sealer
        self._clock = clock
        self._observer = observer
        self._sources = sources
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
        return self._opened.notary.published if self._opened else None

    def want_proof(self, size: int) -> None:
        """Ask for a proof from the checkpoint of this size; may be called from any thread."""
        if self._opened is not None:
            self._opened.notary.want(size)

    def stop(self) -> None:
        """Let `run` write what waits, and end."""
        self._stopping.set()
        self._mailbox.wake()

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
        self._guarded(self._restore)
        self._certify_if_up()

    def _take_and_commit(self, timeout: float) -> int:
        letters = self._mailbox.take(timeout)
        self._guarded(partial(self._commit, letters), letters)
        self._certify_if_up()
        return len(letters)

    def _certify_if_up(self) -> None:
        if not self.down:
            self._guarded(self._certify)

    def _guarded(self, work: Callable[[], None], letters: Sequence[Letter] = ()) -> None:
        """Do `work`; whatever goes wrong, the waiters among its letters are told."""
        try:
            work()
        except (OSError, LogBrokenError) as error:
            self._go_down(str(error), letters, keep=True)
        except Exception as error:  # noqa: BLE001 -- a fault in one record must not end the log
            self._go_down(f"fault in the writer: {type(error).__name__}", letters, keep=False)

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
        self._append([self._letter(record) for record in first])
        self._started = True
        self.down = ""
        self._retry_seconds = FIRST_RETRY_SECONDS
        self._tell()

    def _commit(self, letters: Sequence[Letter]) -> None:
        wanted = [
            letter for letter in letters if letter.ticket is None or not letter.ticket.abandoned
        ]
        self._append([*wanted, *self._own_records()])
        self._rotate_if_due()

    def _own_records(self) -> list[Letter]:
        """Counters that are due and losses to admit; looked at once per tick."""
        now = self._clock.boottime_ns()
        if now - self._ticked_ns < TICK_SECONDS * 1e9:
            return []
        self._ticked_ns = now
        if self.low:
            self._open.space.fill()
            self._note_space(low=not self._open.space.complete)
        return [self._letter(r) for r in [*self._sources.due(self._clock.wall_ns()), *self._gap()]]

    def _gap(self) -> list[Record]:
        lost = self._losses.take()
        if not lost:
            return []
        self._observer.lost(lost)
        return [Record(RecordKind.LOG_GAP, ACTOR, "log", "lost", refs={"lost": lost})]

    def _append(self, letters: Sequence[Letter]) -> None:
        """Make the letters durable and tell their waiters, with the reserve where space is out."""
        started = time.perf_counter()
        while letters := self._affordable(letters):
            draft = self._open.notary.draft()
            lines = self._seal(letters, draft)
            try:
                self._open.store.append(b"".join(x.line + b"\n" for x in lines), lines[-1].head)
            except OSError as error:
                self._open.store.recover()
                if error.errno not in {ENOSPC, EDQUOT} or not self._open.space.release():
                    raise
                self._note_space(low=True)
                continue
            self._open.notary.commit(draft)
            kinds = [letter.record.kind.value for letter in letters]
            self._observer.committed(lines, kinds, time.perf_counter() - started)
            for letter in letters:
                if letter.ticket is not None:
                    letter.ticket.settle(None)
            return

    def _affordable(self, letters: Sequence[Letter]) -> Sequence[Letter]:
        if not self.low:
            return letters
        kept = [letter for letter in letters if not letter.ordinary]
        self._losses.add(len(letters) - len(kept))
        return kept

    def _seal(self, letters: Sequence[Letter], draft: Draft) -> list[SealedLine]:
        lines: list[SealedLine] = []
        head = self._open.store.head
        for letter in letters:
            lines.append(self._sealer.seal(letter.record, letter.wall_ns, head))
            draft.take(lines[-1].line)
            head = lines[-1].head
        return lines

    def _certify(self) -> None:
        """Sign a checkpoint, if one is due, over what is durable; it counts once it is too."""
        notary = self._open.notary
        if notary.due():
            signed = notary.sign()
            self._append([self._letter(signed.record())])
            notary.publish(signed)
        notary.tick()

    def _rotate_if_due(self) -> None:
        store = self._open.store
        if store.size < self._rotate_at:
            return
        notary = self._open.notary
        signed, draft = notary.sign(), notary.draft()
        refs = {"from": store.file, "deleted": self._deleted(), **notary.carried(signed)}
        rotated = Record(RecordKind.LOG_ROTATE, ACTOR, "log", "rotated", refs=refs)
        line = self._sealer.seal(rotated, self._clock.wall_ns(), store.head)
        draft.take(line.line)
        notary.save(durable=True)
        try:
            store.rotate(line.line + b"\n", line.head)
        except OSError:
            # The old file is as good; the next attempt comes when it has grown some more.
            self._rotate_at = store.size + self._rotate_bytes // 8
            return
        self._rotate_at = self._rotate_bytes
        notary.commit(draft)
        notary.publish(signed)
        self._observer.committed([line], [RecordKind.LOG_ROTATE.value], 0.0)

    def _deleted(self) -> Json:
        """Names of the files that have just been deleted; short, whatever their number."""
        return summarised(tuple(self._open.expire()), keep=DELETED_NAMES)

    def _go_down(self, reason: str, letters: Sequence[Letter], *, keep: bool) -> None:
        """Refuse the waiting grants, keep the other records if they may be tried again."""
        self.down = reason
        self._tell()
        waiting = self._mailbox.take_out(lambda letter: letter.ticket is not None)
        for letter in (*letters, *waiting):
            if letter.ticket is not None:
                letter.ticket.settle(reason)
        notes = [letter for letter in letters if letter.ticket is None]
        self._losses.add(self._mailbox.put_back(notes) if keep else len(notes))

    def _finish(self) -> None:
        if self.down:
            self._guarded(self._restore)
        while not self.down and self._take_and_commit(0):
            pass
        last = [self._letter(record) for record in (*self._sources.flush(), *self._gap())]
        self._append_at_the_end(last)
        if not self.down:
            self._open.notary.demand()
        self._certify_if_up()
        self._append_at_the_end(
            [self._letter(Record(RecordKind.LOG_STOP, ACTOR, "log", "stopped"))]
        )
        self.down = self.down or "closed"
        self._give_up(self._mailbox.take_out(lambda _letter: True))
        if self._opened is not None:
            self._opened.notary.save(durable=False)
            self._opened.close()
        self._observer.close()

    def _append_at_the_end(self, letters: Sequence[Letter]) -> None:
        if self.down:
            self._losses.add(len(letters))
        else:
            self._guarded(partial(self._append, letters), letters)

    def _give_up(self, letters: Sequence[Letter]) -> None:
        for letter in letters:
            if letter.ticket is not None:
                letter.ticket.settle(self.down)
        self._observer.lost(len(letters) + self._losses.take())

    @property
    def _open(self) -> Opened:
        return cast("Opened", self._opened)  # what is not down has been opened

    def _note_space(self, *, low: bool) -> None:
        if low is not self.low:
            self.low = low
            self._tell()

    def _tell(self) -> None:
        self._observer.state(self.down, low=self.low)

    def _letter(self, record: Record) -> Letter:
        return Letter(record, self._clock.wall_ns(), self._clock.boottime_ns())
