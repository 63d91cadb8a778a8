"""GPUReservation, the custom resource of one GPU's reservation record, and its store.

The schema is in deploy/; what the API server could not have stored by it is refused here, not
repaired. The record is the `spec`; `status` is a summary for people that nothing reads back.
"""

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import msgspec

from controller.kube.api.cache import DEFAULT_PACE, ListWatch, Pace
from controller.kube.api.client import ApiClient
from controller.kube.api.resources import GROUP, RESERVATIONS, Kind, Metadata
from controller.kube.api.resources import Entry as Known
from controller.kube.objects.store import FIRST_READ_SECONDS, LATE_WATCH_SECONDS, ObjectStore
from controller.ledger.record import (
    GpuRecord,
    Holder,
    HolderState,
    Origin,
    PodRef,
    ShareGroup,
    key_of,
)
from controller.ledger.store import Entry, LedgerSnapshot, LedgerUnavailableError, demand_successor
from gpuwarden.clock import Clock
from gpuwarden.telemetry import names
from gpuwarden.telemetry.metrics import Instruments

API_VERSION: Final = f"{GROUP}/{RESERVATIONS.version}"
KIND: Final = "GPUReservation"
FINALIZER: Final = f"{GROUP}/reservation"
"""Holds an object that somebody deletes, or whose definition goes: one `kubectl delete` does not
free a GPU in use. The final write of a record's life marks its holders as ended and takes the
finalizer off, so an object that vanished otherwise is known to have been removed by force."""


@dataclass(frozen=True, slots=True)
class KeptReservation:
    """What is known of one object."""

    entry: Entry
    finalizers: tuple[str, ...]
    is_deleted: bool
    """Somebody has asked for its deletion; a finalizer holds it."""
    status: dict[str, Any] | None
    """As it is shown."""


class _Part(
    msgspec.Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """Parent of the structs below: what is not set is not there."""


class _Pod(_Part):
    namespace: str
    name: str | None = None
    uid: str | None = None
    owner: str | None = None


class _Holder(_Part):
    reservation: str
    pod: _Pod
    gpus: list[str]
    origin: Origin
    call: str
    state: HolderState
    answers: int
    restored: bool = False


class _Share(_Part):
    namespace: str
    owner: str
    entry: str


class _Spec(_Part):
    gpu: str
    node: str
    version: int
    holders: list[_Holder]
    share: _Share | None = None


class _Metadata(Metadata, rename="camel", gc=False):
    creation_timestamp: str | None = None
    finalizers: list[str] | None = None
    deletion_timestamp: str | None = None


class _Object(msgspec.Struct, gc=False):
    metadata: _Metadata
    spec: _Spec
    status: dict[str, Any] | None = None


_DECODER: Final = msgspec.json.Decoder(_Object)


def reservation_object(record: GpuRecord) -> dict[str, Any]:
    """The whole object, to be created."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": record.key,
            "finalizers": [FINALIZER],
            "labels": {"app.kubernetes.io/managed-by": "gpuwarden"},
        },
        "spec": reservation_spec(record),
    }


def reservation_spec(record: GpuRecord) -> dict[str, Any]:
    """The spec of a record."""
    share = record.share
    spec: dict[str, Any] = msgspec.to_builtins(
        _Spec(
            record.gpu,
            record.node,
            record.version,
            [_holder(x) for x in record.holders],
            None if share is None else _Share(share.namespace, share.owner, share.entry),
        )
    )
    return spec


def reservation_status(record: GpuRecord) -> dict[str, Any]:
    """What `kubectl get` shows of a record: the least advanced holder first."""
    first = min(record.holders, key=lambda x: (_ORDER.index(x.state), x.reservation))
    return {
        "state": first.state.value,
        "holders": len(record.holders),
        "pod": f"{first.pod.namespace}/{first.pod.name or ''}",
        "observedVersion": record.version,
    }


def read_reservation(body: bytes) -> tuple[Metadata, KeptReservation]:
    """Metadata and record of an object; raises msgspec.MsgspecError or ValueError."""
    found = _DECODER.decode(body)
    meta, spec = found.metadata, found.spec
    record = GpuRecord(
        spec.gpu,
        spec.node,
        tuple(sorted((_read_holder(x) for x in spec.holders), key=lambda x: x.reservation)),
        None
        if spec.share is None
        else ShareGroup(spec.share.namespace, spec.share.owner, spec.share.entry),
        spec.version,
    )
    record.demand_valid()
    if meta.name != key_of(record.gpu):
        raise ValueError("spec.gpu is not what the object is named after")
    entry = Entry(record, f"{meta.uid}/{record.version}", meta.creation_timestamp or "")
    kept = KeptReservation(
        entry,
        tuple(meta.finalizers or ()),
        is_deleted=meta.deletion_timestamp is not None,
        status=found.status,
    )
    return meta, kept


def object_uid(entry: Entry) -> str:
    """UID of the object that an entry was read from."""
    return entry.revision.partition("/")[0]


RESERVATION_KIND: Final = Kind(RESERVATIONS, read_reservation)
_ORDER: Final = tuple(HolderState)


def _holder(holder: Holder) -> _Holder:
    pod = holder.pod
    return _Holder(
        holder.reservation,
        _Pod(pod.namespace, pod.name, pod.uid, pod.owner),
        list(holder.gpus),
        holder.origin,
        holder.call,
        holder.state,
        holder.answers,
        restored=holder.restored,
    )


def _read_holder(holder: _Holder) -> Holder:
    pod = holder.pod
    return Holder(
        holder.reservation,
        PodRef(pod.namespace, pod.name, pod.uid, pod.owner),
        tuple(holder.gpus),
        holder.origin,
        holder.call,
        holder.state,
        holder.answers,
        restored=holder.restored,
    )


_MOST_RACES: Final = 4
_MOST_REPAIRS: Final = 16
_MANY: Final = 64


class Repaired(StrEnum):
    """How a live record's object was restored that somebody had changed or removed."""

    OBJECT = "object"
    """It had been removed by force, and was made again."""
    FINALIZER = "finalizer"
    """Its finalizer had been taken off, and was put back."""


class KubernetesLedgerStore:
    """Implements LedgerStore: what all replicas of a cluster agree on.

    Creation is the API server's create-if-absent, so it refuses a second holder by itself. A
    record ends in two writes: one marks its holders as ended (from then on the GPU is free), one
    removes the object; whoever finds an object between the two removes it. An object that vanished
    before its end was removed by force: its record stays in force here and is written again. Only
    the watch, or a list, shows that: an answer 404 may be ahead of a watch that has still to show
    the end.
    `watcher.follow` keeps the cache, in the event loop that uses it.
    """

    def __init__(
        self,
        api: ApiClient,
        *,
        clock: Clock,
        instruments: Instruments,
        stale_after_ns: int,
        pace: Pace = DEFAULT_PACE,
        jitter: Callable[[], float],
        first_read_s: float = FIRST_READ_SECONDS,
        late_watch_s: float = LATE_WATCH_SECONDS,
    ) -> None:
        self._snapshot = LedgerSnapshot(fresh_until_ns=0)
        self.repaired: Counter[Repaired] = Counter()
        """How often."""
        self._repairs = instruments.counter(names.LEDGER_REPAIRS)
        self._replaced: list[Entry] = []
        self._objects: ObjectStore[KeptReservation] = ObjectStore(
            api,
            RESERVATION_KIND,
            self._take,
            name="GPUReservation",
            unavailable=LedgerUnavailableError,
            clock=clock,
            instruments=instruments,
            stale_after_ns=stale_after_ns,
            pace=pace,
            jitter=jitter,
            first_read_s=first_read_s,
            late_watch_s=late_watch_s,
            is_over=lambda kept: kept.entry.record.is_closed,
        )

    @property
    def watcher(self) -> ListWatch[KeptReservation]:
        """Keeps the cache."""
        return self._objects.watcher

    async def load(self) -> LedgerSnapshot:
        """Wait for the first list, later check that the watch still sends.

        Raises LedgerUnavailableError. Writes again what was removed by force, and removes what
        was left at its end.
        """
        await self._objects.demand_fresh()
        for key in self._torn()[:_MOST_REPAIRS]:
            async with self._objects.turn(key):
                await self._repair(key)
        return self.snapshot()

    def snapshot(self) -> LedgerSnapshot:
        """What is known now, own successful writes included."""
        return replace(self._snapshot, fresh_until_ns=self._objects.fresh_until_ns)

    def take_replaced(self) -> tuple[Entry, ...]:
        """Live records since the last call whose object another one took the place of.

        Their end was not seen: a watch may have missed it, or the API server's history went
        back to before they were made.
        """
        replaced, self._replaced = self._replaced, []
        return tuple(replaced)

    async def read(self, gpu: str) -> Entry | None:
        """The entry as the API server has it no earlier than now; raises LedgerUnavailableError.

        A live record that was removed by force is still in force. Where it is gone and the watch
        has not shown how, that is an error: another replica may have ended it.
        """
        key = key_of(gpu)
        async with self._objects.turn(key):
            await self._objects.fetch(key)
        return self._snapshot.get(gpu)

    async def compare_and_set(self, old: Entry | None, new: GpuRecord) -> bool:
        """Replace, create or remove, as LedgerStore says."""
        demand_successor(old, new)
        async with self._objects.turn(new.key):
            if old is None:
                return await self._create(new)
            return await self._change(old, new)

    async def show(self) -> int:
        """Bring the status of some objects up to date, for people; how many it was.

        One replica is enough. Raises LedgerUnavailableError.
        """
        behind = [
            key
            for key, known in self._objects.known.items()
            if _is_live(known) and known.value.status != _status(known)
        ]
        for key in sorted(behind)[:_MOST_REPAIRS]:
            async with self._objects.turn(key):
                known = self._objects.known.get(key)
                if known is None:
                    continue
                step = {"op": "add", "path": "/status", "value": _status(known)}
                await self._objects.change(key, known, step, subresource="status")
        return min(len(behind), _MOST_REPAIRS)

    async def _create(self, new: GpuRecord) -> bool:
        for _ in range(_MOST_RACES):
            known = self._objects.known.get(new.key)
            if known is not None and _is_live(known):
                await self._repair(new.key)
                return False
            if await self._objects.create(new.key, reservation_object(new)):
                return True
            await self._repair(new.key)
        raise self._lost_races(new)

    async def _change(self, old: Entry, new: GpuRecord) -> bool:
        for _ in range(_MOST_RACES):
            known = self._objects.known.get(new.key)
            if known is None or known.value.entry != old:
                return False
            if new.key in self._objects.missing:
                await self._repair(new.key)
                return False
            if await self._objects.change(new.key, known, *_steps(known.value, new)):
                if new.is_closed:
                    with contextlib.suppress(LedgerUnavailableError):  # it is free all the same
                        await self._repair(new.key)
                return True
        raise self._lost_races(new)

    def _torn(self) -> list[str]:
        """Live records whose object or finalizer is gone, ended ones whose object is not."""
        missing = self._objects.missing
        return sorted(
            key
            for key, known in self._objects.known.items()
            if _is_live(known) == (key in missing) or _lacks_finalizer(known)
        )

    async def _repair(self, key: str) -> None:
        """Write a live record that is missing, hold one that is not held, remove an ended one."""
        known = self._objects.known.get(key)
        if known is None:
            return
        is_missing = key in self._objects.missing
        kept = known.value
        if _is_live(known):
            if is_missing:
                done = await self._objects.create(key, reservation_object(kept.entry.record))
                self._count(Repaired.OBJECT, done=done)
            elif _lacks_finalizer(known):
                step = _finalizers((*kept.finalizers, FINALIZER))
                self._count(Repaired.FINALIZER, done=await self._objects.change(key, known, step))
        elif not is_missing and kept.is_deleted:
            rest = tuple(x for x in kept.finalizers if x != FINALIZER)
            await self._objects.change(key, known, _finalizers(rest), is_last=True)
        elif not is_missing:
            await self._objects.delete(key, known)

    def _count(self, what: Repaired, *, done: bool) -> None:
        if done:
            self.repaired[what] += 1
            self._repairs.labels(what.value).inc()

    def _take(self, keys: list[str]) -> None:
        """Put what is known of `keys` into the snapshot."""
        known = self._objects.known
        self._replaced += (
            before
            for key in keys
            if (before := self._snapshot.entries.get(key)) is not None
            and (now := known.get(key)) is not None
            and _is_live(now)
            and object_uid(before) != now.uid
        )
        if len(keys) > _MANY + len(known) // _MANY:
            self._snapshot = LedgerSnapshot.of(x.value.entry for x in known.values() if _is_live(x))
            return
        for key in keys:
            now = known.get(key)
            entry = now.value.entry if now is not None and _is_live(now) else None
            self._snapshot = self._snapshot.with_entry(key, entry)

    def _lost_races(self, record: GpuRecord) -> Exception:
        error = LedgerUnavailableError("too many others change it")
        return self._objects.error_about(record.key, error)


def _is_live(known: Known[KeptReservation]) -> bool:
    return not known.value.entry.record.is_closed


def _lacks_finalizer(known: Known[KeptReservation]) -> bool:
    """And can have it: the API server adds none to an object that is being deleted."""
    kept = known.value
    return _is_live(known) and not kept.is_deleted and FINALIZER not in kept.finalizers


def _status(known: Known[KeptReservation]) -> dict[str, Any]:
    return reservation_status(known.value.entry.record)


def _steps(kept: KeptReservation, new: GpuRecord) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = [
        {"op": "replace", "path": "/spec", "value": reservation_spec(new)}
    ]
    others = tuple(x for x in kept.finalizers if x != FINALIZER)
    if not kept.is_deleted:
        steps.append(_finalizers(others if new.is_closed else (*others, FINALIZER)))
    return steps


def _finalizers(names: tuple[str, ...]) -> dict[str, Any]:
    return {"op": "add", "path": "/metadata/finalizers", "value": list(names)}
