"""Every node and GPU of the fleet in one state each, for people: rows, filters, counts. Pure.

What a row says follows from one moment's snapshots. A state is for people and decides nothing.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from controller.binding.use import ToRecord, nothing_to_record
from controller.explain.device_status import DeviceStatus, shown_devices, status_of, use_on
from controller.fleet.directory import KnownNode
from controller.fleet.view import Acceptance, FleetSnapshot, GpuView, NodeState, NodeView
from controller.ledger.record import key_of
from controller.ledger.release import card_of
from controller.ledger.store import Entry, LedgerSnapshot
from controller.placement.selector import Device
from gpuwarden.moment import rfc3339
from gpuwarden.reasons import ReasonCode

NO_GROUP: Final = "-"
ZONE: Final = "topology.kubernetes.io/zone"
POOLS: Final = (
    "karpenter.sh/nodepool",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "node.kubernetes.io/instance-type",
)
"""Labels that name a node pool; the first that a node has counts."""


class CellState(StrEnum):
    """Where a GPU stands; the first that is true."""

    LOST = "lost"
    """It fell off the bus, or has had an error since the last evidence."""
    QUARANTINED = "quarantined"
    REFUSED = "refused"
    STALE = "stale"
    UNRESERVED = "unreserved-use"
    """A process or kubelet uses it, and no reservation explains it."""
    USED = "used"
    """Reserved, and processes run on it; where nothing is reserved, anything that uses it."""
    RESERVED = "reserved"
    """Or given by kubelet to a managed pod of a `plugin` node: the record follows."""
    VERIFIED = "verified"
    """Proven, and free."""
    UNKNOWN = "unknown"
    """Proven, and nobody can say whether it is free: the ledger was not read lately."""


_OF_NODE: Final = {
    NodeState.QUARANTINED: CellState.QUARANTINED,
    NodeState.REVOKED: CellState.REFUSED,
    NodeState.REFUSED: CellState.REFUSED,
    NodeState.STALE: CellState.STALE,
    NodeState.UNKNOWN: CellState.STALE,
}
_HELD: Final = frozenset({DeviceStatus.ASSIGNED, DeviceStatus.PENDING, DeviceStatus.RELEASING})


class GpuRow(msgspec.Struct, frozen=True, rename="kebab"):
    """One physical GPU of the last accepted evidence."""

    uuid: str
    node: str
    index: int
    """In PCI bus order."""
    state: CellState
    model: str
    """Empty where the driver does not say."""
    detail: str
    """Why it is lost or unhealthy; else empty."""
    reserved_by: list[str]
    """Pods as NAMESPACE/NAME, of its MIG devices too."""
    given_to: list[str]
    """Pods that kubelet gave it or its MIG devices, likewise."""
    processes: int
    attestation_hash: str
    serial: str | msgspec.UnsetType | None = msgspec.UNSET
    """Null where the driver reports none, absent for callers without a role."""


class NodeRow(msgspec.Struct, frozen=True, rename="kebab"):
    """A node with its GPUs."""

    name: str
    state: str
    """unknown, refused, eligible, stale, revoked or quarantined."""
    reason: str
    """Reason code; empty where the node is eligible."""
    detail: str
    """Empty for callers without a role: it can name serials."""
    mode: str
    level: str
    """Of the last accepted evidence, as all below; empty where there is none."""
    attestation_hash: str
    evidence_digest: str
    accepted_at: str
    zone: str
    pool: str
    """By the node's labels, which prove nothing; empty where it has none."""
    gpus: list[GpuRow]


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """What rows are made from."""

    fleet: FleetSnapshot
    ledger: LedgerSnapshot
    directory: Mapping[str, KnownNode]
    now_ns: int
    """CLOCK_BOOTTIME."""
    reserves: bool = True
    """Whether GPUs are reserved here at all: not in report mode, and not without the webhooks."""
    to_record: ToRecord = nothing_to_record
    """What kubelet gave as it should, and has no record yet."""

    @property
    def is_ledger_known(self) -> bool:
        """Whether the ledger was read, and not too long ago to be shown."""
        return self.now_ns < self.ledger.fresh_until_ns


def node_rows(
    facts: FleetFacts, *, has_serials: bool = False, since: str = "", after: str = ""
) -> Iterator[NodeRow]:
    """Nodes by name: from `since` on, and behind `after`."""
    for name in sorted(x for x in facts.fleet.nodes if x >= since and x > after):
        yield node_row(facts, facts.fleet.nodes[name], has_serials=has_serials)


def node_row(facts: FleetFacts, node: NodeView, *, has_serials: bool = False) -> NodeRow:
    """One node."""
    state, accepted = node.state(facts.now_ns), node.acceptance
    code, detail = why(node, state)
    known = facts.directory.get(node.name)
    labels = {} if known is None else known.labels
    return NodeRow(
        name=node.name,
        state=state.value,
        reason=code,
        detail=detail if has_serials else "",
        mode=node.mode.value,
        level="" if accepted is None else accepted.level.value,
        attestation_hash="" if accepted is None else accepted.attestation_hash,
        evidence_digest="" if accepted is None else accepted.evidence_digest,
        accepted_at="" if accepted is None else rfc3339(accepted.accepted_wall_ns),
        zone=labels.get(ZONE, ""),
        pool=next((labels[x] for x in POOLS if x in labels), ""),
        gpus=list(_gpu_rows(facts, node, state, has_serials=has_serials)),
    )


def why(node: NodeView, state: NodeState) -> tuple[str, str]:
    """Reason code and detail of a node that is not eligible; empty for one that is."""
    if state is NodeState.ELIGIBLE:
        return "", ""
    refusal = node.blocked or (node.refusals[0] if node.refusals else None)
    if state is NodeState.STALE:
        return ReasonCode.NODE_STALE.value, "" if refusal is None else f"last: {refusal.code}"
    if refusal is None:
        return ReasonCode.NODE_NO_EVIDENCE.value, ""
    return refusal.code.value, refusal.detail


def _gpu_rows(
    facts: FleetFacts, node: NodeView, state: NodeState, *, has_serials: bool
) -> Iterator[GpuRow]:
    accepted = node.acceptance
    if accepted is None:
        return
    use = use_on(node.name, accepted, facts.ledger, is_eligible=True)
    found: dict[str, list[DeviceStatus]] = {}
    holders: dict[str, set[str]] = {}
    to_record = facts.to_record(node)
    known = _with_known_users(accepted, facts.ledger, to_record)
    given = _given(accepted)
    for shown in shown_devices(accepted, facts.ledger):
        is_known = shown.mig is not None and shown.gpu.uuid in known
        device = shown._replace(in_use=False) if is_known else shown
        entries = [facts.ledger.get(x) for x in {device.uuid, device.gpu.uuid}]
        records = [x.record for x in entries if isinstance(x, Entry)]
        held = [holder for record in records for holder in record.holders]
        status = status_of(device, held, use)
        if status is DeviceStatus.IN_USE and not _keys(device).isdisjoint(to_record):
            status = DeviceStatus.ASSIGNED
        found.setdefault(device.gpu.uuid, []).append(status)
        pods = (x.pod for x in held)
        names = holders.setdefault(device.gpu.uuid, set())
        names.update(f"{x.namespace}/{x.name or '-'}" for x in pods)
    for gpu in accepted.gpus:
        processes = sum(accepted.processes_by_gpu.get(x, 0) for x in _parts(gpu))
        yield GpuRow(
            uuid=gpu.uuid,
            node=node.name,
            index=gpu.index,
            state=_state(gpu, state, found.get(gpu.uuid, []), facts, processes),
            model=gpu.product or "",
            detail=_trouble(gpu),
            reserved_by=sorted(holders.get(gpu.uuid, ())),
            given_to=sorted({pod for x in _parts(gpu) for pod in given.get(x, ())}),
            processes=processes,
            attestation_hash=accepted.attestation_hash,
            serial=gpu.serial if has_serials else msgspec.UNSET,
        )


def _given(accepted: Acceptance) -> Mapping[str, set[str]]:
    """By UUID the pods that kubelet gave it."""
    found: dict[str, set[str]] = {}
    for device in accepted.allocations or ():
        found.setdefault(card_of(device.device) or "", set()).add(
            f"{device.namespace}/{device.pod}"
        )
    return found


def _keys(device: Device) -> frozenset[str]:
    return frozenset({key_of(device.uuid), key_of(device.gpu.uuid)})


def _with_known_users(
    accepted: Acceptance, ledger: LedgerSnapshot, to_record: Mapping[str, frozenset[str]]
) -> frozenset[str]:
    """Split GPUs whose processes are all of pods that have a MIG device of them.

    The driver names the whole GPU for each process: on which device it is, nobody can tell.
    """
    users: dict[str, set[str | None]] = {}
    for process in accepted.processes or ():
        users.setdefault(process.gpu, set()).add(process.pod_uid)
    return frozenset(
        gpu.uuid
        for gpu in accepted.gpus
        if gpu.mig_devices and users.get(gpu.uuid, {None}) <= _holders(gpu, ledger, to_record)
    )


def _holders(
    gpu: GpuView, ledger: LedgerSnapshot, to_record: Mapping[str, frozenset[str]]
) -> set[str]:
    """UIDs of the pods that hold any of its MIG devices, or are about to."""
    entries = (ledger.get(x.uuid) for x in gpu.mig_devices)
    holders = (x for entry in entries if entry is not None for x in entry.record.holders)
    following = (to_record.get(key_of(x.uuid), frozenset()) for x in gpu.mig_devices)
    return {x.pod.uid for x in holders if x.pod.uid}.union(*following)


def _parts(gpu: GpuView) -> tuple[str, ...]:
    return (gpu.uuid, *(x.uuid for x in gpu.mig_devices))


def _trouble(gpu: GpuView) -> str:
    return gpu.lost.error if gpu.lost is not None else gpu.unhealthy or ""


def _state(
    gpu: GpuView,
    node: NodeState,
    statuses: Iterable[DeviceStatus],
    facts: FleetFacts,
    processes: int,
) -> CellState:
    if gpu.lost is not None or gpu.unhealthy is not None:
        return CellState.LOST
    if node in _OF_NODE:
        return _OF_NODE[node]
    if not facts.is_ledger_known:
        return CellState.UNKNOWN
    found = frozenset(statuses)
    if DeviceStatus.IN_USE in found:
        return CellState.UNRESERVED if facts.reserves else CellState.USED
    if found & _HELD:
        return CellState.USED if processes else CellState.RESERVED
    return CellState.VERIFIED


# --- which of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which rows; empty for all."""

    q: str = ""
    """Part of a node's name, or of a GPU's UUID or serial."""
    node: str = ""
    node_state: str = ""
    state: str = ""
    """Of a GPU."""
    reason: str = ""
    attestation_hash: str = ""
    """Or its beginning."""
    model: str = ""
    namespace: str = ""
    """Of a pod that holds it, or that kubelet gave it."""
    zone: str = ""
    pool: str = ""
    mode: str = ""

    def is_node(self, row: NodeRow) -> bool:
        """Whether a node fits, by what is its own."""
        return (
            self.node in {"", row.name}
            and self.node_state in {"", row.state}
            and self.reason in {"", row.reason}
            and row.attestation_hash.startswith(self.attestation_hash)
            and self.zone in {"", row.zone}
            and self.pool in {"", row.pool}
            and self.mode in {"", row.mode}
        )

    @property
    def is_about_gpus(self) -> bool:
        """Whether a node fits only by one of its GPUs."""
        return bool(self.state or self.model or self.namespace)

    def is_gpu(self, row: GpuRow) -> bool:
        """Whether a GPU fits, beside its node and `q`."""
        pods = (*row.reserved_by, *row.given_to) if self.namespace else ()
        spaces = {x.partition("/")[0] for x in pods}
        return (
            self.state in {"", row.state}
            and self.model.casefold() in row.model.casefold()
            and (not self.namespace or self.namespace in spaces)
        )

    def names(self, row: NodeRow, gpu: GpuRow) -> bool:
        """Whether `q` is in the name of one of them."""
        serial = gpu.serial if isinstance(gpu.serial, str) else ""
        wanted = self.q.casefold()
        return any(wanted in x.casefold() for x in (row.name, gpu.uuid, serial))


def wanted_nodes(rows: Iterable[NodeRow], wanted: Wanted) -> Iterator[NodeRow]:
    """The nodes that fit, each with all of its GPUs."""
    for row in rows:
        if not wanted.is_node(row):
            continue
        if wanted.is_about_gpus and not any(map(wanted.is_gpu, row.gpus)):
            continue
        if wanted.q.casefold() in row.name or any(wanted.names(row, x) for x in row.gpus):
            yield row


def wanted_gpus(rows: Iterable[NodeRow], wanted: Wanted) -> Iterator[GpuRow]:
    """The GPUs that fit, in the order of nodes and of PCI buses."""
    for row in rows:
        if wanted.is_node(row):
            yield from (x for x in row.gpus if wanted.is_gpu(x) and wanted.names(row, x))


# --- in numbers, and as a map


class Grouping(StrEnum):
    """By what nodes are grouped."""

    CLASS = "class"
    ZONE = "zone"
    POOL = "pool"


class MapNode(msgspec.Struct, frozen=True, rename="kebab"):
    """A node of the map."""

    name: str
    state: str
    cells: str
    """A letter of `letters` for each GPU, in PCI bus order."""


class MapGroup(msgspec.Struct, frozen=True, rename="kebab"):
    """Nodes that belong together."""

    name: str
    """A class hash, zone or pool; `-` for nodes without one."""
    nodes: list[MapNode]


class FleetMap(msgspec.Struct, frozen=True, rename="kebab"):
    """The whole fleet, a letter for each GPU."""

    grouped_by: Grouping
    letters: dict[str, str]
    """State of a GPU by letter."""
    gpus: dict[str, int]
    """How many GPUs have each state; all states are there."""
    nodes: dict[str, int]
    """The same of nodes."""
    groups: list[MapGroup]


_LETTERS: Final = {
    CellState.LOST: "l",
    CellState.QUARANTINED: "q",
    CellState.REFUSED: "r",
    CellState.STALE: "s",
    CellState.UNRESERVED: "x",
    CellState.USED: "u",
    CellState.RESERVED: "h",
    CellState.VERIFIED: "v",
    CellState.UNKNOWN: "n",
}


def fleet_map(rows: Iterable[NodeRow], by: Grouping) -> FleetMap:
    """Groups by name, those without one last."""
    groups: dict[str, list[MapNode]] = {}
    gpus, nodes = Counter[str](), Counter[str]()
    for row in rows:
        name = {
            Grouping.CLASS: row.attestation_hash,
            Grouping.ZONE: row.zone,
            Grouping.POOL: row.pool,
        }[by]
        cells = "".join(_LETTERS[x.state] for x in row.gpus)
        groups.setdefault(name or NO_GROUP, []).append(MapNode(row.name, row.state, cells))
        gpus.update(x.state.value for x in row.gpus)
        nodes[row.state] += 1
    ordered = sorted(groups, key=lambda x: (x == NO_GROUP, x))
    return FleetMap(
        grouped_by=by,
        letters={letter: state.value for state, letter in _LETTERS.items()},
        gpus={x.value: gpus[x.value] for x in CellState},
        nodes={x.value: nodes[x.value] for x in NodeState},
        groups=[MapGroup(x, groups[x]) for x in ordered],
    )
