"""Enrollment of nodes: enrolled GPUs, quarantine, agent processes, and the store of them.

A record only narrows trust: none makes a node eligible, and evidence is compared with it after it
was authenticated. Records are values; every change goes through compare-and-set, so that all
replicas agree on one order.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from controller.fleet.directory import FOREVER_NS
from controller.fleet.faults import Fault
from controller.fleet.sharded_map import ShardedMap

MAX_SUPERSEDED: Final = 16
AUTOMATIC: Final = "controller"
"""Actor of a quarantine entry that followed from evidence and not from an operator."""


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """The node that enrolled a GPU or showed a MIG device; `enrolled` if an operator listed it."""

    node: str
    enrolled: bool


@dataclass(frozen=True, slots=True)
class ContestedClaim:
    """A refused claim: `owner` keeps the GPU and gets an event about `claimant`."""

    uuid: str
    claimant: str
    owner: str
    """Node name, or `pool PATTERN` where policy enrolled the UUID for other nodes."""


def rival(node: str, claims: Iterable[Claim], *, enrolled: bool) -> Claim | None:
    """The claim because of which `node` may not have the GPU, or None.

    UUIDs are public, so a claim must not be a weapon: the owner keeps its GPU and only the
    claimant is refused. What an operator enrolled beats what was enrolled at first use; between
    equals the claimant does not get it. Refused evidence makes no claim, so claims are enrolled
    GPUs and the MIG devices of accepted evidence.

    `enrolled` says whether an operator listed the GPU for `node`.
    """
    others = sorted(x for x in claims if x.node != node)
    return next((x for x in others if x.enrolled or not enrolled), None)


class EnrollmentUnavailableError(Exception):
    """The store cannot be read or written now: nothing new may be accepted."""


@dataclass(frozen=True, slots=True)
class EnrolledGpu:
    """A GPU that belongs to a node."""

    uuid: str
    serial: str | None = None
    identity_key: str | None = None
    pci_bus_id: str | None = None
    """Where it was when enrolled; shown when it is lost, never compared."""
    enrolled: bool = False
    """An operator listed it; otherwise enrolled at first use."""
    complete: bool = True
    """False while only the UUID is known; the first reading completes it."""
    mig_devices: tuple[str, ...] = ()
    """UUIDs of the MIG devices that accepted evidence last showed on it, sorted. They come and go
    without an operator, but belong to nobody else meanwhile."""

    @property
    def uuids(self) -> tuple[str, ...]:
        """What the node claims with it: the GPU and its MIG devices."""
        return (self.uuid, *self.mig_devices)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Hardware that authentic but refused evidence showed: an operator may enroll it.

    Claims nothing and is compared with nothing until then.
    """

    code: str
    """Why it was refused."""
    node_uid: str | None
    spire_agent: str | None
    gpus: tuple[EnrolledGpu, ...]
    """GPUs that answered, sorted by UUID."""
    evidence_digest: str
    system_uuid: str | None = None


@dataclass(frozen=True, slots=True)
class QuarantineEntry:
    """Why a node may not come back until an operator releases it."""

    code: str
    reason: str
    actor: str
    """Who decided: an operator's identity, or AUTOMATIC."""
    wall_ns: int
    candidate: Candidate | None = None
    """What the node showed when it was quarantined, where that was the cause."""


@dataclass(frozen=True, slots=True)
class EnrollmentRecord:
    """Everything remembered about one node."""

    node: str
    node_uid: str | None = None
    spire_agent: str | None = None
    gpus: tuple[EnrolledGpu, ...] = ()
    """Sorted by UUID; empty before first use."""
    instance: str | None = None
    """The agent process that answers for the node."""
    superseded: tuple[str, ...] = ()
    """Processes that it replaced, newest first, at most 16."""
    denial: QuarantineEntry | None = None
    lifted_ns: int | None = None
    """`wall_ns` of the last quarantine entry that an operator's act has ended: the only proof that
    one has ended. A record that only lacks its entry was put back or edited: that lifts nothing."""
    lifted_by: str | None = None
    """Who did that; None where an earlier version wrote the record. Proves nothing."""
    system_uuid: str | None = None
    """SMBIOS UUID of the machine; None until evidence shows one."""
    faults: tuple[Fault, ...] = ()
    """XIDs that its GPUs have reported in this boot."""

    def enrolled_gpu(self, uuid: str) -> EnrolledGpu | None:
        """The enrollment of one GPU."""
        return next((x for x in self.gpus if x.uuid == uuid), None)

    @property
    def claims(self) -> Mapping[str, Claim]:
        """UUID -> claim, for each GPU and MIG device. An operator lists GPUs, never MIG devices."""
        migs = (mig for gpu in self.gpus for mig in gpu.mig_devices)
        return {
            **{x: Claim(self.node, enrolled=False) for x in migs},
            **{x.uuid: Claim(self.node, x.enrolled) for x in self.gpus},
        }

    def denied(self, denial: QuarantineEntry) -> "EnrollmentRecord":
        """The record with a quarantine entry; one in force stays. Entries have an order."""
        if self.denial is not None:
            return self
        after_ns = -1 if self.lifted_ns is None else self.lifted_ns
        return replace(self, denial=replace(denial, wall_ns=max(denial.wall_ns, after_ns + 1)))

    def lifted(self, seen: QuarantineEntry | None, by: str) -> "EnrollmentRecord":
        """The record after the act of the operator `by`, which ends the entry that was `seen`."""
        if seen is None:
            return replace(self, denial=None)
        if self.has_lifted(seen):
            return replace(self, denial=None)
        return replace(self, denial=None, lifted_ns=seen.wall_ns, lifted_by=by)

    def has_lifted(self, denial: QuarantineEntry) -> bool:
        """Whether an operator's act has ended `denial`."""
        return self.lifted_ns is not None and self.lifted_ns >= denial.wall_ns

    def answered_by(self, instance: str) -> "EnrollmentRecord":
        """The record once `instance` answers: the process before it is superseded."""
        if instance == self.instance:
            return self
        older = self.superseded if self.instance is None else (self.instance, *self.superseded)
        kept = tuple(x for x in older if x != instance)[:MAX_SUPERSEDED]
        return replace(self, instance=instance, superseded=kept)


@dataclass(frozen=True, slots=True)
class EnrollmentSnapshot:
    """All records at one moment, and who enrolled which GPU."""

    records: ShardedMap[EnrollmentRecord] = field(default_factory=ShardedMap)
    claims: ShardedMap[tuple[Claim, ...]] = field(default_factory=ShardedMap)
    """UUID of a GPU or MIG device -> the nodes that have it."""
    fresh_until_ns: int = FOREVER_NS
    """Controller CLOCK_BOOTTIME from which the snapshot is too old to accept anybody by."""

    @staticmethod
    def of(
        records: Iterable[EnrollmentRecord], *, fresh_until_ns: int = FOREVER_NS
    ) -> "EnrollmentSnapshot":
        """A snapshot of the given records."""
        by_node = {x.node: x for x in records}
        claims: dict[str, tuple[Claim, ...]] = {}
        for record in by_node.values():
            for uuid, claim in record.claims.items():
                claims[uuid] = (*claims.get(uuid, ()), claim)
        return EnrollmentSnapshot(ShardedMap(by_node), ShardedMap(claims), fresh_until_ns)

    def with_record(self, record: EnrollmentRecord) -> "EnrollmentSnapshot":
        """A copy in which `record` stands for its node."""
        before = self.records.get(record.node)
        claims, mine = self.claims, record.claims
        for uuid in (before.claims.keys() if before else set()) | mine.keys():
            claims = _claimed(claims, uuid, record.node, mine.get(uuid))
        return replace(self, records=self.records.put(record.node, record), claims=claims)

    def quarantined_holder(self, uuid: str) -> str | None:
        """A quarantined node that this GPU belongs to: quarantine entries follow the hardware."""
        holders = (self.records[x.node] for x in self.claims.get(uuid, ()))
        return next((x.node for x in holders if x.denial is not None), None)


class EnrollmentStore(Protocol):
    """Keeps the records; every implementation passes the same contract tests."""

    async def load(self) -> EnrollmentSnapshot:
        """Read everything, later what has changed; raises EnrollmentUnavailableError.

        Called before the first acceptance, and again and again so that changes made by
        others are seen and the snapshot stays fresh.
        """

    def snapshot(self) -> EnrollmentSnapshot:
        """What is known now, own successful writes included; must not wait."""

    async def create_if_absent(self, record: EnrollmentRecord) -> bool:
        """Add the record of a node that has none; False if it has one."""

    async def compare_and_set(self, old: EnrollmentRecord, new: EnrollmentRecord) -> bool:
        """Replace `old` by `new` (same node); False if the record is not `old` any more."""


class MemoryEnrollmentStore:
    """Forgets everything with the process: the first use enrolls again after a restart."""

    def __init__(self, records: Iterable[EnrollmentRecord] = ()) -> None:
        self._snapshot = EnrollmentSnapshot.of(records)

    async def load(self) -> EnrollmentSnapshot:
        """The records of this process."""
        return self._snapshot

    def snapshot(self) -> EnrollmentSnapshot:
        """The records of this process."""
        return self._snapshot

    async def create_if_absent(self, record: EnrollmentRecord) -> bool:
        """Add the record of a node that has none; False if it has one."""
        if record.node in self._snapshot.records:
            return False
        self._snapshot = self._snapshot.with_record(record)
        return True

    async def compare_and_set(self, old: EnrollmentRecord, new: EnrollmentRecord) -> bool:
        """Replace `old` by `new` (same node); False if the record is not `old` any more."""
        if old.node != new.node:
            raise ValueError(f"records of two nodes: {old.node} and {new.node}")
        if self._snapshot.records.get(old.node) != old:
            return False
        self._snapshot = self._snapshot.with_record(new)
        return True


async def write(
    store: EnrollmentStore, old: EnrollmentRecord | None, new: EnrollmentRecord
) -> bool:
    """Create or replace, whichever fits `old`; False if somebody else was faster."""
    if old is None:
        return await store.create_if_absent(new)
    return await store.compare_and_set(old, new)


def _claimed(
    claims: ShardedMap[tuple[Claim, ...]], uuid: str, node: str, claim: Claim | None
) -> ShardedMap[tuple[Claim, ...]]:
    before = claims.get(uuid, ())
    others = tuple(x for x in before if x.node != node)
    after = others if claim is None else (*others, claim)
    if after == before:
        return claims
    return claims.put(uuid, after) if after else claims.without(uuid)


def enrolled_by_uuid(record: EnrollmentRecord | None) -> Mapping[str, EnrolledGpu]:
    """The enrolled GPUs of a record, empty where there is none."""
    return {} if record is None else {x.uuid: x for x in record.gpus}
