"""The store of the records: its interface, a snapshot of it, and how one record is changed.

The ledger stays right under any number of replicas because a write is atomic per GPU
(`LedgerStore.compare_and_set`), and under lost answers because nothing is concluded from an error:
what was written is read again (`change_record`). Must not know what a change means.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeVar

from controller.fleet.directory import FOREVER_NS
from controller.fleet.sharded_map import ShardedMap
from controller.ledger.record import GpuRecord, Holder, key_of
from gpuwarden.reasons import ReasonCode, Refusal

T = TypeVar("T")
Index = ShardedMap[tuple[str, ...]]
_MIG: Final = key_of("MIG-")


class LedgerUnavailableError(Exception):
    """The store did not answer: a write may have been done or not, a read says nothing."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A record as it is stored."""

    record: GpuRecord
    revision: str
    """Opaque; another one after every write, and never the same again for this GPU."""
    made_at: str = field(default="", compare=False)
    """RFC 3339, when the record was made, where the store says so: for people alone."""


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """All records at one moment; a GPU without one is held by nobody."""

    entries: ShardedMap[Entry] = field(default_factory=ShardedMap)
    """By `key_of(gpu)`."""
    by_reservation: Index = field(default_factory=ShardedMap)
    """Reservation -> keys of the GPUs that it holds now, sorted."""
    by_pod: Index = field(default_factory=ShardedMap)
    """Pod UID -> keys of the GPUs that it holds now, sorted."""
    mig_on: Index = field(default_factory=ShardedMap)
    """Node -> keys of the MIG devices that are held on it, sorted."""
    held_in: ShardedMap[int] = field(default_factory=ShardedMap)
    """Namespace -> how many GPUs its pods hold; one that several share counts for each."""
    fresh_until_ns: int = FOREVER_NS
    """Controller CLOCK_BOOTTIME from which the snapshot is too old to grant anything by."""

    @staticmethod
    def of(entries: Iterable[Entry], *, fresh_until_ns: int = FOREVER_NS) -> "LedgerSnapshot":
        """A snapshot of the given entries."""
        by_key = {x.record.key: x for x in entries}
        held: dict[str, list[str]] = {}
        pods: dict[str, list[str]] = {}
        split: dict[str, list[str]] = {}
        counts = Counter[str]()
        for key in sorted(by_key):
            counts.update(_namespaces(by_key[key]))
            for reservation in _reservations(by_key[key]):
                held.setdefault(reservation, []).append(key)
            for uid in _pods(by_key[key]):
                pods.setdefault(uid, []).append(key)
            for node in _mig_nodes(by_key[key]):
                split.setdefault(node, []).append(key)
        return LedgerSnapshot(
            ShardedMap(by_key),
            ShardedMap({x: tuple(keys) for x, keys in held.items()}),
            ShardedMap({x: tuple(keys) for x, keys in pods.items()}),
            ShardedMap({x: tuple(keys) for x, keys in split.items()}),
            ShardedMap(counts),
            fresh_until_ns,
        )

    def get(self, gpu: str) -> Entry | None:
        """The entry of one GPU."""
        return self.entries.get(key_of(gpu))

    def holding(self, reservation: str) -> tuple[Entry, ...]:
        """The entries in which a reservation has a part, in claiming order."""
        return tuple(self.entries[x] for x in self.by_reservation.get(reservation, ()))

    def parts_of(self, pod_uid: str) -> tuple[tuple[Entry, Holder], ...]:
        """What one pod holds, in claiming order."""
        found = (self.entries[x] for x in self.by_pod.get(pod_uid, ()))
        return tuple((x, y) for x in found for y in x.record.holders if y.pod.uid == pod_uid)

    def parts_on(self, node: str) -> frozenset[str]:
        """UUIDs of the MIG devices that are held on a node."""
        return frozenset(self.entries[x].record.gpu for x in self.mig_on.get(node, ()))

    def with_entry(self, key: str, entry: Entry | None) -> "LedgerSnapshot":
        """A copy in which `entry` is the GPU's, or the GPU has none."""
        before = self.entries.get(key)
        if before == entry:
            return self
        return replace(
            self,
            entries=self.entries.without(key) if entry is None else self.entries.put(key, entry),
            by_reservation=_indexed(
                self.by_reservation, key, _reservations(before), _reservations(entry)
            ),
            by_pod=_indexed(self.by_pod, key, _pods(before), _pods(entry)),
            mig_on=_indexed(self.mig_on, key, _mig_nodes(before), _mig_nodes(entry)),
            held_in=_counted(self.held_in, _namespaces(before), _namespaces(entry)),
        )


class LedgerStore(Protocol):
    """Keeps the records; every implementation passes the same contract tests."""

    async def load(self) -> LedgerSnapshot:
        """Read everything, later what has changed; raises LedgerUnavailableError.

        Called before the first decision, and again and again so that changes made by others
        are seen and the snapshot stays fresh.
        """

    def snapshot(self) -> LedgerSnapshot:
        """What is known now, own writes and reads included; must not wait."""

    async def read(self, gpu: str) -> Entry | None:
        """The entry as it is no earlier than now, past any cache; raises LedgerUnavailableError.

        `snapshot` knows it afterwards.
        """

    async def compare_and_set(self, old: Entry | None, new: GpuRecord) -> bool:
        """Replace `old` by `new`, create where `old` is None, remove where `new` is closed.

        False if the GPU's record is not `old` any more (or exists): nothing was written, and
        `snapshot` knows afterwards what is there. Raises LedgerUnavailableError: it may have
        been written, or be written yet (a creation only), or not. ValueError: see
        `demand_successor`.
        """


def demand_successor(old: Entry | None, new: GpuRecord) -> None:
    """Raise ValueError unless `new` may follow `old` in a store: a fault of the caller."""
    new.demand_valid()
    if old is None:
        if new.is_closed:
            raise ValueError(f"{new.gpu}: a record is not made closed")
    elif (old.record.gpu, old.record.node) != (new.gpu, new.node):
        raise ValueError(f"records of two GPUs or nodes: {old.record.gpu} and {new.gpu}")
    elif new.version <= old.record.version:
        raise ValueError(f"{new.gpu}: version {new.version} after {old.record.version}")


# --- a change of one record

MOST_TRIES: Final = 8
"""Writes of one record, before whoever wants to change it gives up."""
MOST_LOST: Final = 2
"""Answers in a row that may get lost before."""


@dataclass(frozen=True, slots=True)
class Written:
    """A record was replaced, created or removed."""

    before: GpuRecord | None
    record: GpuRecord


async def change_record(
    store: LedgerStore,
    gpu: str,
    decide: Callable[[GpuRecord | None], Awaitable[GpuRecord | T]],
    wrote: Callable[[str], object] = lambda _result: None,
) -> Written | T | Refusal:
    """Write what `decide` makes of the record of `gpu`; decide again where another was faster.

    1. `decide` gets the record as the snapshot has it; read it before where that may be too old.
       Whatever it returns that is no record is the answer, and nothing is written.
    2. The record is written by compare-and-set, and `wrote` is called with `written`.
    3. `overtaken`: another was faster. The snapshot has its record now: decide again.
    4. `failed`: the answer got lost, and the write may have been done. The record is read past any
       copy: decide again. After MOST_LOST in a row, or where nothing can be read either,
       LedgerUnavailableError is raised.
    5. After MOST_TRIES writes: LEDGER_CONFLICT.
    """
    lost = 0
    for _ in range(MOST_TRIES):
        entry = store.snapshot().get(gpu)
        before = None if entry is None else entry.record
        decided = await decide(before)
        if not isinstance(decided, GpuRecord):
            return decided
        try:
            if await store.compare_and_set(entry, decided):
                wrote("written")
                return Written(before, decided)
            wrote("overtaken")
            lost = 0
        except LedgerUnavailableError:
            wrote("failed")
            lost += 1
            if lost > MOST_LOST:
                raise
            await store.read(gpu)
    text = f"{gpu}: others changed its record {MOST_TRIES} times in a row"
    return Refusal(ReasonCode.LEDGER_CONFLICT, text)


def _reservations(entry: Entry | None) -> frozenset[str]:
    return frozenset(x.reservation for x in entry.record.holders) if entry else frozenset()


def _pods(entry: Entry | None) -> frozenset[str]:
    uids = (x.pod.uid for x in entry.record.holders) if entry else ()
    return frozenset(x for x in uids if x is not None)


def _namespaces(entry: Entry | None) -> Counter[str]:
    return Counter(x.pod.namespace for x in entry.record.holders) if entry else Counter()


def _counted(held: ShardedMap[int], before: Counter[str], now: Counter[str]) -> ShardedMap[int]:
    for namespace in before.keys() | now.keys():
        count = held.get(namespace, 0) + now[namespace] - before[namespace]
        if count != held.get(namespace, 0):
            held = held.put(namespace, count) if count else held.without(namespace)
    return held


def _mig_nodes(entry: Entry | None) -> frozenset[str]:
    is_mig = entry is not None and entry.record.key.startswith(_MIG)
    return frozenset((entry.record.node,)) if entry is not None and is_mig else frozenset()


def _indexed(index: Index, key: str, old: frozenset[str], new: frozenset[str]) -> Index:
    for name in old - new:
        kept = tuple(x for x in index.get(name, ()) if x != key)
        index = index.put(name, kept) if kept else index.without(name)
    for name in new - old:
        index = index.put(name, tuple(sorted((*index.get(name, ()), key))))
    return index
