"""EnrollmentStore on NodeEnrollment objects: what all replicas of a cluster agree on.

The snapshot is the copy that the watch keeps, own answers ahead of it; it counts for as long
as the watch speaks. A record whose object somebody deleted by force stays in force here and
is written again.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from controller.fleet.enrollment import (
    EnrollmentRecord,
    EnrollmentSnapshot,
    EnrollmentUnavailableError,
)
from controller.kube.api import ApiClient
from controller.kube.enrollment_object import (
    ENROLLMENT_KIND,
    enrollment_object,
    enrollment_spec,
)
from controller.kube.list_watch import DEFAULT_PACE, ListWatch, Pace
from controller.kube.written_objects import FIRST_READ_SECONDS, WrittenObjects
from gpuwarden.clock import Clock
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

_MOST_RACES: Final = 4
_MOST_REPAIRS: Final = 16
_MANY: Final = 64


class KubernetesEnrollmentStore:
    """Implements EnrollmentStore; `watcher.follow` keeps it, in the event loop that uses it."""

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
        self._snapshot = EnrollmentSnapshot(fresh_until_ns=0)
        self._objects: WrittenObjects[EnrollmentRecord] = WrittenObjects(
            api,
            ENROLLMENT_KIND,
            self._take,
            name="NodeEnrollment",
            unavailable=EnrollmentUnavailableError,
            clock=clock,
            instruments=instruments,
            stale_after_ns=stale_after_ns,
            pace=pace,
            jitter=jitter,
            first_read_s=first_read_s,
        )
        self._log = logger("store")

    @property
    def watcher(self) -> ListWatch[EnrollmentRecord]:
        """What keeps the copy."""
        return self._objects.watcher

    async def load(self) -> EnrollmentSnapshot:
        """Wait for the first list, later look whether the watch still speaks.

        Raises EnrollmentUnavailableError. Writes again what was deleted by force.
        """
        await self._objects.demand_fresh()
        for node in sorted(self._objects.missing)[:_MOST_REPAIRS]:
            self._log.error(Event.KUBE_ENROLLMENT_MISSING, node=node)
            async with self._objects.turns[node]:
                await self._create(self._objects.known[node].value)
        return self.snapshot()

    def snapshot(self) -> EnrollmentSnapshot:
        """What is known now, own successful writes included."""
        return replace(self._snapshot, fresh_until_ns=self._objects.fresh_until_ns)

    async def create_if_absent(self, record: EnrollmentRecord) -> bool:
        """Add the record of a node that has none; False if it has one."""
        async with self._objects.turns[record.node]:
            if record.node in self._objects.known:
                return False
            return await self._create(record)

    async def compare_and_set(self, old: EnrollmentRecord, new: EnrollmentRecord) -> bool:
        """Replace `old` by `new` (same node); False if the record is not `old` any more."""
        if old.node != new.node:
            raise ValueError(f"records of two nodes: {old.node} and {new.node}")
        async with self._objects.turns[old.node]:
            for _ in range(_MOST_RACES):
                known = self._objects.known.get(old.node)
                if known is None or known.value != old:
                    return False
                if old.node in self._objects.missing:
                    if await self._create(new):
                        return True
                elif await self._objects.change(
                    old.node,
                    known,
                    {"op": "replace", "path": "/spec", "value": enrollment_spec(new)},
                ):
                    return True
        raise EnrollmentUnavailableError(f"NodeEnrollment {old.node}: too many others change it")

    async def _create(self, record: EnrollmentRecord) -> bool:
        return await self._objects.create(record.node, enrollment_object(record))

    def _take(self, nodes: list[str]) -> None:
        """Put what is known of `nodes` into the snapshot."""
        known = self._objects.known
        if len(nodes) > _MANY:
            self._snapshot = EnrollmentSnapshot.of(x.value for x in known.values())
            return
        for node in nodes:
            record = known[node].value
            if self._snapshot.records.get(node) != record:
                self._snapshot = self._snapshot.with_record(record)
