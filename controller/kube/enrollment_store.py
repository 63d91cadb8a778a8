"""EnrollmentStore on NodeEnrollment objects: what all replicas of a cluster agree on.

Creation is the API server's create-if-absent, a change carries the resourceVersion that it
was made from. The snapshot is the copy that the watch keeps, own answers ahead of it; it
counts for as long as the watch speaks. A record whose object somebody deleted by force
stays in force here and is written again.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from controller.fleet.enrollment import (
    EnrollmentRecord,
    EnrollmentSnapshot,
    EnrollmentUnavailableError,
)
from controller.kube.api import JSON_PATCH, ApiClient
from controller.kube.enrollment_object import (
    ENROLLMENT_KIND,
    enrollment_object,
    enrollment_spec,
)
from controller.kube.errors import ApiError
from controller.kube.list_watch import DEFAULT_PACE, ListWatch, Pace
from controller.kube.reflection import Change, Entry
from controller.kube.resources import ENROLLMENTS
from controller.kube.sightings import Inquiry, Sightings
from gpuwarden.clock import Clock
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

FIRST_READ_SECONDS: Final = 3.0
"""A start goes on without; nothing is accepted until the first list is in."""
_AT_ONCE: Final = 16
_MOST_RACES: Final = 4
_MOST_REPAIRS: Final = 16
_MANY: Final = 64
_TOO_MANY_REQUESTS: Final = 429
_WAITS: Final = (0.2, 0.5, 1.0)
"""Seconds to stay away after 429, unless the server names fewer."""


class KubernetesEnrollmentStore:
    """Implements EnrollmentStore; `follow` keeps it, in the event loop that uses it."""

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
    ) -> None:
        self._api = api
        self._clock = clock
        self._stale_after_ns = stale_after_ns
        self._first_read_s = first_read_s
        self._sightings: Sightings[EnrollmentRecord] = Sightings()
        self._snapshot = EnrollmentSnapshot(fresh_until_ns=0)
        self._writing = asyncio.Semaphore(_AT_ONCE)
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Requests about one node, one after the other: their answers have an order."""
        self._log = logger("store")
        self.watcher = ListWatch(
            api,
            ENROLLMENT_KIND,
            clock=clock,
            instruments=instruments,
            jitter=jitter,
            pace=pace,
            observe=self._observe,
        )

    async def load(self) -> EnrollmentSnapshot:
        """Wait for the first list, later look whether the watch still speaks.

        Raises EnrollmentUnavailableError. Writes again what was deleted by force.
        """
        reflection = self.watcher.reflection
        if not self.watcher.synced.is_set():
            try:
                await asyncio.wait_for(self.watcher.synced.wait(), self._first_read_s)
            except TimeoutError:
                raise self._unavailable("not read yet") from None
        if self._clock.boottime_ns() >= reflection.fresh_until_ns(self._stale_after_ns):
            raise self._unavailable("not confirmed for too long")
        for node in sorted(self._sightings.missing)[:_MOST_REPAIRS]:
            self._log.error(Event.KUBE_ENROLLMENT_MISSING, node=node)
            async with self._turns[node]:
                await self._create(self._sightings.known[node].value)
        return self.snapshot()

    def snapshot(self) -> EnrollmentSnapshot:
        """What is known now, own successful writes included."""
        until_ns = self.watcher.reflection.fresh_until_ns(self._stale_after_ns)
        return replace(self._snapshot, fresh_until_ns=until_ns)

    async def create_if_absent(self, record: EnrollmentRecord) -> bool:
        """Add the record of a node that has none; False if it has one."""
        async with self._turns[record.node]:
            if record.node in self._sightings.known:
                return False
            return await self._create(record)

    async def compare_and_set(self, old: EnrollmentRecord, new: EnrollmentRecord) -> bool:
        """Replace `old` by `new` (same node); False if the record is not `old` any more."""
        if old.node != new.node:
            raise ValueError(f"records of two nodes: {old.node} and {new.node}")
        async with self._turns[old.node]:
            for _ in range(_MOST_RACES):
                known = self._sightings.known.get(old.node)
                if known is None or known.value != old:
                    return False
                if old.node in self._sightings.missing:
                    if await self._create(new):
                        return True
                elif await self._change(known, new):
                    return True
        raise EnrollmentUnavailableError(f"NodeEnrollment {old.node}: too many others change it")

    async def _create(self, record: EnrollmentRecord) -> bool:
        """False if there is one: then it is known what it is."""
        inquiry = self._sightings.inquire(record.node)
        try:
            body = await self._asked(
                lambda: self._api.create(ENROLLMENTS, enrollment_object(record))
            )
        except ApiError as error:
            self._sightings.unanswered(inquiry)
            if not error.is_conflict:
                raise self._failed(record.node, error) from None
            await self._fetch(record.node)
            return False
        await self._answered(inquiry, body)
        return True

    async def _change(self, known: Entry[EnrollmentRecord], new: EnrollmentRecord) -> bool:
        """False if the object is another one by now: then it is known what it is."""
        patch: list[dict[str, Any]] = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": known.version},
            {"op": "replace", "path": "/spec", "value": enrollment_spec(new)},
        ]
        inquiry = self._sightings.inquire(new.node)
        try:
            body = await self._asked(
                lambda: self._api.patch(ENROLLMENTS, new.node, patch, content_type=JSON_PATCH)
            )
        except ApiError as error:
            self._sightings.unanswered(inquiry)
            if not (error.is_conflict or error.is_not_found):
                raise self._failed(new.node, error) from None
            await self._fetch(new.node)
            return False
        await self._answered(inquiry, body)
        return True

    async def _fetch(self, node: str) -> None:
        """Learn what the object is now; asked once more where a list came in between."""
        for _ in range(_MOST_RACES):
            inquiry = self._sightings.inquire(node)
            try:
                body = await self._asked(lambda: self._api.get(ENROLLMENTS, node))
            except ApiError as error:
                self._sightings.unanswered(inquiry)
                if not error.is_not_found:
                    raise self._failed(node, error) from None
                if node in self._sightings.known:
                    self._sightings.missing.add(node)
                return
            if self._took(inquiry, body):
                return
        raise EnrollmentUnavailableError(f"NodeEnrollment {node}: lists and answers cross")

    async def _asked(self, ask: Callable[[], Any]) -> bytes:
        """Stay away for a moment where the server has too much to do; raises ApiError."""
        for wait_s in _WAITS:
            try:
                async with self._writing:
                    return bytes(await ask())
            except ApiError as error:
                if error.status != _TOO_MANY_REQUESTS:
                    raise
                await asyncio.sleep(min(error.retry_after_s or wait_s, wait_s))
        async with self._writing:
            return bytes(await ask())

    async def _answered(self, inquiry: Inquiry, body: bytes) -> None:
        """A write of ours was carried out; what is known afterwards includes it."""
        if not self._took(inquiry, body):
            await self._fetch(inquiry.key)

    def _took(self, inquiry: Inquiry, body: bytes) -> bool:
        """Whether it could be told what is newest."""
        try:
            key, entry = ENROLLMENT_KIND.entry(body)
        except ApiError as error:
            self._sightings.unanswered(inquiry)
            raise self._failed(inquiry.key, error) from None
        is_sure = self._sightings.answered(inquiry, entry, self._clock.boottime_ns())
        if is_sure:
            self._take([key])
        return is_sure

    def _observe(self, changes: tuple[Change[EnrollmentRecord], ...], asked_ns: int | None) -> None:
        if asked_ns is None:
            self._take(self._sightings.told(changes))
            return
        entries = self.watcher.reflection.objects
        changed, is_unsure = self._sightings.listed(entries, asked_ns)
        self._take(changed)
        if is_unsure:
            self.watcher.reflection.relist()

    def _take(self, nodes: list[str]) -> None:
        """Put what is known of `nodes` into the snapshot."""
        known = self._sightings.known
        if len(nodes) > _MANY:
            self._snapshot = EnrollmentSnapshot.of(x.value for x in known.values())
            return
        for node in nodes:
            record = known[node].value
            if self._snapshot.records.get(node) != record:
                self._snapshot = self._snapshot.with_record(record)

    def _unavailable(self, text: str) -> EnrollmentUnavailableError:
        trouble = self.watcher.reflection.trouble
        return EnrollmentUnavailableError(
            f"NodeEnrollments: {text}{': ' if trouble else ''}{trouble}"
        )

    def _failed(self, node: str, error: ApiError) -> EnrollmentUnavailableError:
        return EnrollmentUnavailableError(f"NodeEnrollment {node}: {error}")
