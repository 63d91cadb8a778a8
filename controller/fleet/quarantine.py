"""Quarantine of nodes: how an entry gets into the store, and what an operator decides about it.

Must not decide who is quarantined.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from controller.fleet.enrollment import (
    Candidate,
    EnrolledGpu,
    EnrollmentRecord,
    EnrollmentSnapshot,
    EnrollmentStore,
    EnrollmentUnavailableError,
    QuarantineEntry,
    rival,
    write,
)
from controller.fleet.faults import Fault, lifted
from controller.fleet.view import NodeState, NodeView
from gpuwarden.evidence.canonical import tagged_digest
from gpuwarden.reasons import ReasonCode, Refusal

_MAX_RACES: Final = 8


class QuarantineFate(StrEnum):
    """What has become of a quarantine entry in the store."""

    EXISTS = "exists"
    LIFTED = "lifted"
    """By an operator's act."""
    LOST = "lost"
    """It is gone, and nobody lifted it: it is written again."""


class QuarantineEntries:
    """Quarantine entries on their way into the store.

    None is dropped because the store cannot take it now. An entry in force is never replaced by a
    later one: whoever looks for the cause wants the first. The store confirms that it is still in
    force, because what is known here may be older than an operator's act elsewhere. One for the
    process; used from one event loop.
    """

    def __init__(
        self,
        store: EnrollmentStore,
        note: Callable[[str, QuarantineEntry], None] = lambda _node, _denial: None,
    ) -> None:
        """`note` records each quarantine entry in force, once; it returns at once."""
        self._store = store
        self._note = note
        self._noted: dict[str, QuarantineEntry] = {}
        self._unwritten: dict[str, QuarantineEntry] = {}
        self._counts: dict[str, int] = {}
        self._written: dict[str, QuarantineEntry] = {}

    @property
    def unwritten(self) -> Mapping[str, QuarantineEntry]:
        """Quarantine entries of this controller that the store does not hold yet, by node."""
        return MappingProxyType(self._unwritten)

    @property
    def counts(self) -> Mapping[str, int]:
        """How often this controller has quarantined each node so far, written or not."""
        return MappingProxyType(self._counts)

    @property
    def written(self) -> Mapping[str, QuarantineEntry]:
        """What the store held after this controller's last quarantine entry of each node."""
        return MappingProxyType(self._written)

    async def deny(self, node: str, denial: QuarantineEntry) -> bool:
        """Write `denial`; False if that failed, then `retry` goes on trying."""
        self._unwritten.setdefault(node, denial)
        self._counts[node] = self._counts.get(node, 0) + 1
        new = _denied(self._store.snapshot().records.get(node), node, self._unwritten[node])
        self._stands(node, new.denial or denial)
        return await self._write(node)

    def again(self, node: str, denial: QuarantineEntry) -> None:
        """Have a quarantine entry written again that the store has lost: `retry` does."""
        self._unwritten.setdefault(node, denial)

    async def retry(self) -> None:
        """Try again what could not be written."""
        for node in tuple(self._unwritten):
            await self._write(node)

    def forget(self, node: str, denial: QuarantineEntry | None) -> None:
        """An operator has decided about `denial`; one that came since is still wanted."""
        if denial is not None and self._unwritten.get(node) == denial:
            del self._unwritten[node]

    def _stands(self, node: str, denial: QuarantineEntry) -> None:
        if self._noted.get(node) != denial:
            self._noted[node] = denial
            self._note(node, denial)

    async def _write(self, node: str) -> bool:
        try:
            for _ in range(_MAX_RACES):
                denial = self._unwritten.get(node)
                old = self._store.snapshot().records.get(node)
                if denial is None:
                    return True
                new = _denied(old, node, denial)
                if await write(self._store, old, new):
                    self._written[node] = new.denial or denial
                    self._stands(node, self._written[node])
                    self.forget(node, denial)
                    return True
        except EnrollmentUnavailableError:
            return False
        return False


def _denied(old: EnrollmentRecord | None, node: str, denial: QuarantineEntry) -> EnrollmentRecord:
    return (old or EnrollmentRecord(node)).denied(denial)


# --- decisions of operators
# An act counts only for exactly what was shown: `version` stands for all of it, and an act that
# expects another version is refused. Accepting enrolls the candidate, releasing keeps the enrolled
# GPUs. Both end the entry. Neither makes a node eligible: its next evidence does.

ENROLLMENT_TAG: Final = "gpuwarden.dev/pins/v2"
VERSION_TAG: Final = "gpuwarden.dev/enrollment/v2"


@dataclass(frozen=True, slots=True)
class Shown:
    """The enrolment of one node as an operator sees it."""

    record: EnrollmentRecord
    """Empty where nothing is remembered about the node."""
    known: bool
    """Whether there is a record at all."""
    unwritten: QuarantineEntry | None
    """A quarantine entry of this controller that the store could not take yet."""
    candidate: Candidate | None

    @property
    def denial(self) -> QuarantineEntry | None:
        """Why the node may not come back."""
        return self.record.denial or self.unwritten

    @property
    def faults(self) -> tuple[Fault, ...]:
        """XIDs of its GPUs whose end was not seen."""
        return tuple(x for x in self.record.faults if not x.ended)

    @property
    def version(self) -> str:
        """`v1:sha256:<hex>`: changes with everything that an operator judges by."""
        denial, candidate = self.denial, self.candidate
        return tagged_digest(
            VERSION_TAG,
            {
                "node": self.record.node,
                "pins": enrollment_digest(self.record),
                "denial": None
                if denial is None
                else [denial.code, denial.reason, denial.actor, str(denial.wall_ns)],
                "candidate": None if candidate is None else enrollment_digest(candidate),
                "faults": [[x.gpu, str(x.xid), x.boot_id, str(x.happened_ms)] for x in self.faults],
            },
        )


class Change(StrEnum):
    """How an enrolled GPU would change."""

    REMOVED = "removed"
    ADDED = "added"
    CHANGED = "changed"
    KEPT = "kept"


@dataclass(frozen=True, slots=True)
class EnrollmentChange:
    """One line of the difference between enrolled GPUs and candidate."""

    change: Change
    subject: str
    """A GPU's UUID, `node UID`, `SPIRE agent` or `system UUID`."""
    enrolled: str
    """Serial or id; empty where there is none."""
    offered: str


def show(
    node: str,
    record: EnrollmentRecord | None,
    view: NodeView | None,
    *,
    unwritten: QuarantineEntry | None,
    now_ns: int,
) -> Shown:
    """What is to be shown of a node at `now_ns` (CLOCK_BOOTTIME)."""
    present = record or EnrollmentRecord(node)
    candidate = _candidate(present, present.denial or unwritten, view, now_ns)
    return Shown(present, record is not None, unwritten, candidate)


def enrollment_digest(enrolled_gpus: EnrollmentRecord | Candidate) -> str:
    """`v1:sha256:<hex>` over what is compared: UID, SPIRE agent, system UUID, GPU identities."""
    gpus = [
        {"uuid": x.uuid, "serial": x.serial, "identityKey": x.identity_key}
        for x in enrolled_gpus.gpus
    ]
    document = {
        "nodeUid": enrolled_gpus.node_uid,
        "spireAgent": enrolled_gpus.spire_agent,
        "systemUuid": enrolled_gpus.system_uuid,
        "gpus": gpus,
    }
    return tagged_digest(ENROLLMENT_TAG, document)


def enrollment_changes(shown: Shown) -> tuple[EnrollmentChange, ...]:
    """What accepting would change, removed enrolled GPUs first; empty without a candidate."""
    if shown.candidate is None:
        return ()
    lines = (*_gpu_changes(shown.record, shown.candidate), *_ids(shown.record, shown.candidate))
    return tuple(sorted(lines, key=lambda x: list(Change).index(x.change)))


def accepted(
    shown: Shown, known: EnrollmentSnapshot, expected: str, *, actor: str
) -> EnrollmentRecord | Refusal:
    """The record in which `actor` has enrolled the candidate, or why not."""
    if refusal := _unexpected(shown, expected):
        return refusal
    candidate, node = shown.candidate, shown.record.node
    if candidate is None:
        detail = f"{node} has shown no hardware that waits to be accepted; see `node release`"
        return Refusal(ReasonCode.CANDIDATE_UNKNOWN, detail)
    for uuid in (x for gpu in candidate.gpus for x in gpu.uuids):
        if claim := rival(node, known.claims.get(uuid, ()), enrolled=False):
            return Refusal(ReasonCode.GPU_CLAIMED_TWICE, f"{uuid} is enrolled for {claim.node}")
    return replace(
        shown.record,
        node_uid=candidate.node_uid,
        spire_agent=candidate.spire_agent,
        system_uuid=candidate.system_uuid or shown.record.system_uuid,
        gpus=tuple(_enrolled(shown.record.enrolled_gpu(x.uuid), x) for x in candidate.gpus),
    ).lifted(shown.denial, actor)


def released(shown: Shown, expected: str, *, actor: str) -> EnrollmentRecord | Refusal:
    """The record without its quarantine entry, or without faults where it has none, or why not.

    It names `actor` as who has ended the quarantine; of faults it says that they have ended.
    Who ends a quarantine has not looked at the GPUs for that: faults take a second act.
    """
    if refusal := _unexpected(shown, expected):
        return refusal
    if shown.denial is not None:
        return shown.record.lifted(shown.denial, actor)
    if shown.faults:
        return replace(shown.record, faults=lifted(shown.record.faults))
    return Refusal(
        ReasonCode.QUARANTINE_UNKNOWN,
        f"{shown.record.node} is not quarantined, and its GPUs have no faults",
    )


def _enrolled(enrolled_gpu: EnrolledGpu | None, gpu: EnrolledGpu) -> EnrolledGpu:
    """A key that was proven once stays enrolled, although this evidence did not show it."""
    kept = (
        enrolled_gpu.identity_key
        if enrolled_gpu is not None and enrolled_gpu.serial == gpu.serial
        else None
    )
    return replace(gpu, identity_key=gpu.identity_key or kept, enrolled=True)


def _unexpected(shown: Shown, expected: str) -> Refusal | None:
    if expected == shown.version:
        return None
    return Refusal(
        ReasonCode.ENROLLMENT_CONFLICT,
        f"enrollment, quarantine or hardware of {shown.record.node} have changed; look again",
    )


def _candidate(
    record: EnrollmentRecord, denial: QuarantineEntry | None, view: NodeView | None, now_ns: int
) -> Candidate | None:
    """Of the entry, else of the last evidence, else the enrolled GPUs that are lost."""
    if denial is not None and denial.candidate is not None:
        return denial.candidate
    if view is None or view.candidate is not None:
        return None if view is None else view.candidate
    return _without_lost(record, view) if view.state(now_ns) is NodeState.ELIGIBLE else None


def _without_lost(record: EnrollmentRecord, view: NodeView) -> Candidate | None:
    accepted_now = view.acceptance
    lost = {x.uuid for x in accepted_now.gpus if x.lost is not None} if accepted_now else set()
    left = tuple(x for x in record.gpus if x.uuid not in lost)
    if accepted_now is None or not left or len(left) == len(record.gpus):
        return None
    return Candidate(
        ReasonCode.GPU_LOST,
        record.node_uid,
        record.spire_agent,
        left,
        accepted_now.evidence_digest,
        record.system_uuid,
    )


def _gpu_changes(record: EnrollmentRecord, candidate: Candidate) -> Iterator[EnrollmentChange]:
    pinned = {x.uuid: x for x in record.gpus}
    offered = {x.uuid: x for x in candidate.gpus}
    for uuid in sorted(pinned.keys() | offered.keys()):
        before, after = pinned.get(uuid), offered.get(uuid)
        yield EnrollmentChange(_change(before, after), uuid, _serial(before), _serial(after))


def _change(before: EnrolledGpu | None, after: EnrolledGpu | None) -> Change:
    if before is None:
        return Change.ADDED
    if after is None:
        return Change.REMOVED
    keys = {before.identity_key, after.identity_key} - {None}
    same = before.serial == after.serial and len(keys) <= 1
    return Change.KEPT if same or not before.complete else Change.CHANGED


def _serial(enrolled_gpu: EnrolledGpu | None) -> str:
    return "" if enrolled_gpu is None else enrolled_gpu.serial or ""


def _ids(record: EnrollmentRecord, candidate: Candidate) -> Iterator[EnrollmentChange]:
    for subject, before, after in (
        ("node UID", record.node_uid, candidate.node_uid),
        ("SPIRE agent", record.spire_agent, candidate.spire_agent),
        (
            "system UUID",
            record.system_uuid,
            candidate.system_uuid or record.system_uuid,
        ),
    ):
        if before != after:
            yield EnrollmentChange(Change.CHANGED, subject, before or "", after or "")
