"""NodeEnrollment, the custom resource of one node's enrollment, and its store.

The schema is in deploy/; what the API server could not have stored by it is refused here, not
repaired. The record is the `spec`; there is no status, and nothing in the object makes a node
eligible. Its finalizer holds an object that somebody deletes, so that one `kubectl delete` does
not drop enrolled GPUs and quarantine entries.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from controller.fleet.enrollment import (
    Candidate,
    EnrolledGpu,
    EnrollmentRecord,
    EnrollmentSnapshot,
    EnrollmentUnavailableError,
    QuarantineEntry,
)
from controller.fleet.faults import Fault
from controller.kube.api.cache import DEFAULT_PACE, ListWatch, Pace
from controller.kube.api.client import ApiClient
from controller.kube.api.resources import ENROLLMENTS, GROUP, Kind, Metadata
from controller.kube.objects.store import FIRST_READ_SECONDS, ObjectStore
from gpuwarden.clock import Clock
from gpuwarden.moment import rfc3339, wall_ns
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

API_VERSION: Final = f"{GROUP}/{ENROLLMENTS.version}"
KIND: Final = "NodeEnrollment"
FINALIZER: Final = f"{GROUP}/enrollment"
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(\d{9})Z")


class _Part(
    msgspec.Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """Parent of the structs below: what is not set is not there."""


class _Gpu(_Part):
    uuid: str
    serial: str | None = None
    identity_key: str | None = None
    pci_bus_id: str | None = None
    enrolled: bool = False
    incomplete: bool = False
    mig_devices: list[str] = []


class _Fault(_Part):
    gpu: str
    xid: int
    boot_id: str
    happened_ms: int
    processes: list[int] | None = None
    was_lost: bool = False
    ended: bool = False


class _Candidate(_Part):
    code: str
    evidence_digest: str
    node_uid: str | None = None
    spire_agent: str | None = None
    gpus: list[_Gpu] = []
    system_uuid: str | None = None


class _QuarantineEntry(_Part):
    code: str
    reason: str
    actor: str
    time: str
    candidate: _Candidate | None = None


class _Spec(_Part):
    node_uid: str | None = None
    spire_agent: str | None = None
    gpus: list[_Gpu] = []
    instance: str | None = None
    superseded: list[str] = []
    denial: _QuarantineEntry | None = None
    lifted: str | None = None
    lifted_by: str | None = None
    system_uuid: str | None = None
    faults: list[_Fault] = []


class _Object(msgspec.Struct, gc=False):
    metadata: Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)


_DECODER: Final = msgspec.json.Decoder(_Object)


def enrollment_object(record: EnrollmentRecord) -> dict[str, Any]:
    """The whole object, to be created."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": record.node,
            "finalizers": [FINALIZER],
            "labels": {"app.kubernetes.io/managed-by": "gpuwarden"},
        },
        "spec": enrollment_spec(record),
    }


def enrollment_spec(record: EnrollmentRecord) -> dict[str, Any]:
    """The spec of a record."""
    spec: dict[str, Any] = msgspec.to_builtins(
        _Spec(
            record.node_uid,
            record.spire_agent,
            [_gpu(x) for x in record.gpus],
            record.instance,
            list(record.superseded),
            None if record.denial is None else _denial(record.denial),
            None if record.lifted_ns is None else rfc3339(record.lifted_ns, digits=9),
            record.lifted_by,
            record.system_uuid,
            [_fault(x) for x in record.faults],
        )
    )
    return spec


def read_enrollment(body: bytes) -> tuple[Metadata, EnrollmentRecord]:
    """Metadata and record of an object; raises msgspec.MsgspecError or ValueError."""
    found = _DECODER.decode(body)
    spec = found.spec
    return found.metadata, EnrollmentRecord(
        found.metadata.name,
        node_uid=spec.node_uid,
        spire_agent=spec.spire_agent,
        gpus=tuple(_enrolled_gpu(x) for x in spec.gpus),
        instance=spec.instance,
        superseded=tuple(spec.superseded),
        denial=None if spec.denial is None else _read_denial(spec.denial),
        lifted_ns=None if spec.lifted is None else _wall_ns(spec.lifted),
        lifted_by=spec.lifted_by,
        system_uuid=spec.system_uuid,
        faults=tuple(_read_fault(x) for x in spec.faults),
    )


ENROLLMENT_KIND: Final = Kind(ENROLLMENTS, read_enrollment)


def _gpu(enrolled_gpu: EnrolledGpu) -> _Gpu:
    return _Gpu(
        enrolled_gpu.uuid,
        enrolled_gpu.serial,
        enrolled_gpu.identity_key,
        enrolled_gpu.pci_bus_id,
        enrolled=enrolled_gpu.enrolled,
        incomplete=not enrolled_gpu.complete,
        mig_devices=list(enrolled_gpu.mig_devices),
    )


def _enrolled_gpu(gpu: _Gpu) -> EnrolledGpu:
    return EnrolledGpu(
        gpu.uuid,
        gpu.serial,
        gpu.identity_key,
        gpu.pci_bus_id,
        enrolled=gpu.enrolled,
        complete=not gpu.incomplete,
        mig_devices=tuple(gpu.mig_devices),
    )


def _fault(fault: Fault) -> _Fault:
    return _Fault(
        fault.gpu,
        fault.xid,
        fault.boot_id,
        fault.happened_ms,
        None if fault.processes is None else list(fault.processes),
        fault.was_lost,
        fault.ended,
    )


def _read_fault(fault: _Fault) -> Fault:
    return Fault(
        fault.gpu,
        fault.xid,
        fault.boot_id,
        fault.happened_ms,
        None if fault.processes is None else tuple(fault.processes),
        fault.was_lost,
        fault.ended,
    )


def _denial(denial: QuarantineEntry) -> _QuarantineEntry:
    shown = denial.candidate
    return _QuarantineEntry(
        denial.code,
        denial.reason,
        denial.actor,
        rfc3339(denial.wall_ns, digits=9),
        None
        if shown is None
        else _Candidate(
            shown.code,
            shown.evidence_digest,
            shown.node_uid,
            shown.spire_agent,
            [_gpu(x) for x in shown.gpus],
            shown.system_uuid,
        ),
    )


def _read_denial(denial: _QuarantineEntry) -> QuarantineEntry:
    shown = denial.candidate
    return QuarantineEntry(
        denial.code,
        denial.reason,
        denial.actor,
        _wall_ns(denial.time),
        None
        if shown is None
        else Candidate(
            shown.code,
            shown.node_uid,
            shown.spire_agent,
            tuple(_enrolled_gpu(x) for x in shown.gpus),
            shown.evidence_digest,
            shown.system_uuid,
        ),
    )


def _wall_ns(text: str) -> int:
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError("a time is not RFC 3339 in UTC with nine digits")
    seconds = datetime.fromisoformat(found[1]).replace(tzinfo=UTC)
    return wall_ns(seconds) + int(found[2])


_MOST_RACES: Final = 4
_MOST_REPAIRS: Final = 16
_MANY: Final = 64


class KubernetesEnrollmentStore:
    """Implements EnrollmentStore: what all replicas of a cluster agree on.

    The snapshot is the cache that the watch keeps, own answers ahead of it; it counts for as long
    as the watch sends. A record whose object somebody deleted by force stays in force here and is
    written again. `watcher.follow` keeps the cache, in the event loop that uses it.
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
    ) -> None:
        self._snapshot = EnrollmentSnapshot(fresh_until_ns=0)
        self._objects: ObjectStore[EnrollmentRecord] = ObjectStore(
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
        """Keeps the cache."""
        return self._objects.watcher

    async def load(self) -> EnrollmentSnapshot:
        """Wait for the first list, later check that the watch still sends.

        Raises EnrollmentUnavailableError. Writes again what was deleted by force.
        """
        await self._objects.demand_fresh()
        for node in sorted(self._objects.missing)[:_MOST_REPAIRS]:
            self._log.error(Event.KUBE_ENROLLMENT_MISSING, node=node)
            async with self._objects.turn(node):
                await self._create(self._objects.known[node].value)
        return self.snapshot()

    def snapshot(self) -> EnrollmentSnapshot:
        """What is known now, own successful writes included."""
        return replace(self._snapshot, fresh_until_ns=self._objects.fresh_until_ns)

    async def create_if_absent(self, record: EnrollmentRecord) -> bool:
        """Add the record of a node that has none; False if it has one."""
        async with self._objects.turn(record.node):
            if record.node in self._objects.known:
                return False
            return await self._create(record)

    async def compare_and_set(self, old: EnrollmentRecord, new: EnrollmentRecord) -> bool:
        """Replace `old` by `new` (same node); False if the record is not `old` any more."""
        if old.node != new.node:
            raise ValueError(f"records of two nodes: {old.node} and {new.node}")
        async with self._objects.turn(old.node):
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
