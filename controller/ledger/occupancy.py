"""Which GPUs are taken, whether this replica may grant any yet, and what the ledger has lost.

Startup reconciliation is complete when the ledger, the pods and the audit log were read and each
live pod has its record again. Pure. Must not write records.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from controller.fleet.sharded_map import ShardedMap
from controller.fleet.view import Acceptance
from controller.ledger.record import (
    GpuRecord,
    HolderState,
    PodRef,
    ShareGroup,
    key_of,
)
from controller.ledger.release import GivenDevice, UseReport, card_of
from controller.ledger.store import Entry, LedgerSnapshot
from gpuwarden.counted import counted
from gpuwarden.reasons import ReasonCode, Refusal

# --- use that a node shows
# One rule for whoever chooses GPUs and whoever grants them: a GPU is taken while the node's last
# report shows that kubelet has given it to a pod, or that a process of a pod uses it and the
# ledger does not hold it for that pod. Kubelet names pods, and an earlier pod may have had the
# name, so no record explains what kubelet has given. Processes of no pod do not count here.

Users = Mapping[str, frozenset[str | None]]
"""As of `UseReport`."""


@dataclass(frozen=True, slots=True)
class Holders:
    """Whom GPUs are held for at one moment."""

    entries: ShardedMap[Entry] = field(default_factory=ShardedMap, compare=False)
    """Of the ledger's snapshot."""
    edition: int = 0
    """Another one where a GPU that stays held has other pods than before."""


class CardUse(NamedTuple):
    """What the node shows of pods on one GPU or MIG device; of none of them there is none."""

    card: str
    """UUID, as driver and kubelet name it."""
    keys: tuple[str, ...]
    """`key_of` the card and, since the driver names the whole GPU for their processes, of its MIG
    devices: a pod that holds one of these explains its process."""
    uids: frozenset[str]
    """Of the pods whose processes use it."""
    is_given: bool
    """Whether kubelet has given it to a pod."""


def users_of(acceptance: Acceptance) -> Users | None:
    """Whose processes the evidence shows; None where they could not be read."""
    if acceptance.processes is None:
        return None
    found: dict[str, set[str | None]] = {}
    for process in acceptance.processes:
        found.setdefault(process.gpu, set()).add(process.pod_uid)
    return {gpu: frozenset(users) for gpu, users in found.items()}


def given_in(acceptance: Acceptance) -> frozenset[GivenDevice]:
    """What the evidence shows as given by kubelet."""
    allocations = acceptance.allocations or ()
    return frozenset(GivenDevice(x.namespace, x.pod, x.device) for x in allocations)


def uses_in(acceptance: Acceptance) -> tuple[CardUse, ...]:
    """What the evidence shows of pods."""
    return _uses(users_of(acceptance), given_in(acceptance), acceptance.with_parts)


def use_of(report: UseReport, card: str) -> CardUse | None:
    """What the report shows of pods on one GPU that has no parts."""
    users = {card: (report.users or {}).get(card, frozenset())}
    given = (x for x in report.given or () if card_of(x.device) == card)
    return next(iter(_uses(users, given, lambda gpu: (gpu,))), None)


def is_taken(use: CardUse, holders: Holders) -> bool:
    """Whether the card is in the hands of a pod that the ledger does not hold it for."""
    return use.is_given or has_stranger(use, holders)


def has_stranger(use: CardUse, holders: Holders) -> bool:
    """Whether a pod uses the card that the ledger holds nothing of it for."""
    entries = [x for key in use.keys if (x := holders.entries.get(key)) is not None]
    return not use.uids <= {holder.pod.uid for x in entries for holder in x.record.holders}


def _uses(
    users: Users | None,
    given: Iterable[GivenDevice],
    with_parts: Callable[[str], tuple[str, ...]],
) -> tuple[CardUse, ...]:
    by_process = {
        gpu: uids
        for gpu, pods in (users or {}).items()
        if (uids := frozenset(uid for uid in pods if uid is not None))
    }
    by_kubelet = {card for x in given if (card := card_of(x.device)) is not None}
    return tuple(
        CardUse(
            card,
            tuple(key_of(x) for x in with_parts(card)),
            by_process.get(card, frozenset()),
            card in by_kubelet,
        )
        for card in by_process.keys() | by_kubelet
    )


# --- GPUs that are taken for one pod
# A pod's own open attempt is free for it, and so is a GPU that its share group holds. A snapshot
# is worked through once. The same answer is the same object, so that a cache of verdicts
# recognizes it.


class Occupancy:
    """One per snapshot; `then` makes the next one from it, which costs little."""

    __slots__ = ("_all", "_by_group", "_claimed", "_edition", "snapshot")

    def __init__(self, snapshot: LedgerSnapshot) -> None:
        self.snapshot = snapshot
        self._all = frozenset(x.record.gpu for x in snapshot.entries.values())
        claimed = _claimed(x.record for x in snapshot.entries.values())
        self._claimed = self._all if claimed == self._all else claimed
        self._by_group = _grouped(x.record for x in snapshot.entries.values())
        self._edition = 0

    def then(self, snapshot: LedgerSnapshot) -> "Occupancy":
        """That of a later snapshot: the same answers where the same GPUs are held."""
        before, now = self.snapshot.entries, snapshot.entries
        old, new = set[GpuRecord](), set[GpuRecord]()
        for key in now.differences(before):
            old |= {x.record for x in (before.get(key),) if x is not None}
            new |= {x.record for x in (now.get(key),) if x is not None}
        made = Occupancy.__new__(Occupancy)
        made.snapshot = snapshot
        was, held = frozenset(x.gpu for x in old), frozenset(x.gpu for x in new)
        made._all = self._all if was == held else (self._all - was) | held  # noqa: SLF001 - a new one of our own
        made._claimed = self._claimed_after(old, new, made._all)  # noqa: SLF001 - a new one of our own
        made._edition = self._edition + _changes_hands(old, new)  # noqa: SLF001 - a new one of our own
        made._by_group = self._by_group  # noqa: SLF001 - same
        if any(x.share is not None for x in old | new):
            made._by_group = _grouped(x.record for x in now.values())  # noqa: SLF001 - same
        return made

    def busy(self) -> frozenset[str]:
        """UUIDs of all GPUs that somebody holds, whatever the state."""
        return self._all

    def claimed(self) -> frozenset[str]:
        """UUIDs of the GPUs that pods have by claims, and that kubelet knows nothing of."""
        return self._claimed

    def holders(self) -> Holders:
        """Whom they are held for."""
        return Holders(self.snapshot.entries, self._edition)

    def busy_for(self, pod_uid: str | None, share: ShareGroup | None = None) -> frozenset[str]:
        """UUIDs that a pod cannot have: held by others, and not by its share group."""
        own = frozenset() if pod_uid is None else self._own_attempts(pod_uid)
        shared = frozenset() if share is None else self._by_group.get(share, frozenset())
        return self._all - own - shared if own or shared else self._all

    def _claimed_after(
        self, old: set[GpuRecord], new: set[GpuRecord], held: frozenset[str]
    ) -> frozenset[str]:
        """Of a fleet whose every GPU is claimed this is what is held: one set, not made twice."""
        was, now = _claimed(old), _claimed(new)
        if self._claimed is self._all and len(was) == len(old) and len(now) == len(new):
            return held
        return self._claimed if was == now else (self._claimed - was) | now

    def _own_attempts(self, pod_uid: str) -> frozenset[str]:
        """A record with others in it stays taken."""
        return frozenset(
            entry.record.gpu
            for entry, holder in self.snapshot.parts_of(pod_uid)
            if holder.state is HolderState.PROPOSED and len(entry.record.holders) == 1
        )


def _changes_hands(old: Iterable[GpuRecord], new: Iterable[GpuRecord]) -> bool:
    """Whether a GPU that stays held has other pods than before."""
    before = {x.gpu: _pods(x) for x in old}
    return any(before.get(x.gpu, _pods(x)) != _pods(x) for x in new)


def _pods(record: GpuRecord) -> frozenset[PodRef]:
    return frozenset(x.pod for x in record.holders)


def _claimed(records: Iterable[GpuRecord]) -> frozenset[str]:
    return frozenset(x.gpu for x in records if x.is_claimed)


def _grouped(records: Iterable[GpuRecord]) -> Mapping[ShareGroup, frozenset[str]]:
    found: dict[ShareGroup, set[str]] = {}
    for record in records:
        if record.share is not None and record.is_shared_by(record.share):
            found.setdefault(record.share, set()).add(record.gpu)
    return {group: frozenset(gpus) for group, gpus in found.items()}


# --- whether this replica may grant
# A store that was rolled back, or records that somebody removed by force, may show a GPU as free
# that a pod uses. So nothing is granted before the ledger and the pods were read, each live pod
# has its record again, and the node was heard about use. Use without a record blocks its GPU.


@dataclass(frozen=True, slots=True)
class ReconciliationState:
    """What this replica has read and compared; begun again when a rollback is detected."""

    since_ns: int
    """CLOCK_BOOTTIME at which it began."""
    ledger_read_ns: int | None = None
    """When the last reading of all records that succeeded was asked for."""
    pods_read_ns: int | None = None
    """The same of the pods."""
    unrecorded: frozenset[str] = frozenset()
    """Nodes with a live managed pod that the ledger lacks (`find_drift`), or with a reservation
    that only a log has (`lost_grants`)."""
    owed: frozenset[str] = frozenset()
    """`key_of` the GPUs of those, whatever node shows them now."""
    log_replayed: bool = True
    """Whether the audit log from before the start was read."""


def uncertainty(reconciliation: ReconciliationState) -> str | None:
    """What is not known yet, for people; None where grants have nothing but nodes to wait for."""
    reads = (reconciliation.ledger_read_ns, reconciliation.pods_read_ns)
    if not reconciliation.log_replayed:
        return "the audit log from before the start was not read yet"
    if any(x is None or x < reconciliation.since_ns for x in reads):
        return "the ledger and the pods are being read"
    if reconciliation.unrecorded:
        nodes = counted(len(reconciliation.unrecorded), "node")
        return f"records that the ledger had lost are missing for {nodes}"
    return None


@dataclass(frozen=True, slots=True)
class Known:
    """What use is judged by."""

    ledger: LedgerSnapshot
    report: UseReport | None
    """The node's last, whose freshness whoever judges the node's evidence demands."""
    now_ns: int


def grant_refusal(
    reconciliation: ReconciliationState, node: str, gpus: tuple[str, ...], known: Known
) -> Refusal | None:
    """What is against granting GPUs of a node now, besides their records.

    A pod that has a record of the GPU may use it: who may share it with that pod is the ledger's
    to say (`claim_on`). Whoever chooses goes by the same rule about use (`pod_use`), so this
    refuses only what was not to be chosen.
    """
    report, now_ns = known.report, known.now_ns
    reads = (reconciliation.ledger_read_ns, reconciliation.pods_read_ns)
    if any(x is None or not reconciliation.since_ns <= x <= now_ns for x in reads):
        return Refusal(ReasonCode.CONTROLLER_NOT_READY, "the ledger and the pods are being read")
    if not reconciliation.log_replayed:
        return Refusal(ReasonCode.CONTROLLER_NOT_READY, "the audit log was not read yet")
    if report is None or report.asked_ns <= reconciliation.since_ns or report.users is None:
        return Refusal(ReasonCode.CONTROLLER_NOT_READY, "the node was not heard about use yet")
    if node in reconciliation.unrecorded:
        return Refusal(ReasonCode.CONTROLLER_NOT_READY, "a pod of the node has no record yet")
    if any(key_of(gpu) in reconciliation.owed for gpu in gpus):
        return Refusal(ReasonCode.GPU_BUSY, "a reservation that the ledger has lost has the GPU")
    found = (_taken(gpu, report, known.ledger) for gpu in gpus)
    return next((x for x in found if x is not None), None)


def _taken(gpu: str, report: UseReport, ledger: LedgerSnapshot) -> Refusal | None:
    """What the node itself says against granting a GPU: a use that no record of it explains."""
    use = use_of(report, gpu)
    if use is None:
        return None
    if has_stranger(use, Holders(ledger.entries)):
        return Refusal(ReasonCode.GPU_BUSY, f"a pod without a reservation uses {gpu}")
    if use.is_given:
        return Refusal(ReasonCode.GPU_BUSY, f"kubelet has given {gpu} to a pod")
    return None


def rolled_back(known: LedgerSnapshot, now: LedgerSnapshot) -> frozenset[str]:
    """GPUs whose record is an earlier version of the one that was known: history went back.

    A record that was made again in between has parts of other calls, whatever its version.
    """
    return frozenset(
        entry.record.gpu
        for key, entry in known.entries.items()
        if (found := now.entries.get(key)) is not None
        and found.record.version < entry.record.version
        and _calls(found) & _calls(entry)
    )


def _calls(entry: Entry) -> frozenset[str]:
    return frozenset(x.call for x in entry.record.holders)
