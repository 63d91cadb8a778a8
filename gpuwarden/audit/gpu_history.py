"""Where a GPU has been and who has had it, from the records of one log or of several replicas'.

The log names the GPUs of each acceptance; serial, slot and machine are in the evidence archived
with it, and are not known any more once that is gone. Times are of the controllers' clocks. Pure:
records and inventories go in.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from gpuwarden.audit.record import LogRecord, RecordKind
from gpuwarden.evidence.model import Inventory
from gpuwarden.evidence.node_identity import serial

HISTORY_KINDS: Final = ("evidence.accepted", "node.state", "reservation.")
"""What the kinds of records begin with that a history is made of."""

InventoryOf = Callable[[str], Inventory | None]
"""The inventory of archived evidence, by its digest; None where it is not kept."""

_NODE: Final = "node/"
_POD: Final = "pod/"
_BEGINS: Final = frozenset(
    {
        RecordKind.RESERVATION_RESERVED,
        RecordKind.RESERVATION_CONFIRMED,
        RecordKind.RESERVATION_RELEASING,
        RecordKind.RESERVATION_RESTORED,
        RecordKind.RESERVATION_ALLOCATED,
    }
)
_ENDS: Final = frozenset(
    {
        RecordKind.RESERVATION_RELEASED,
        RecordKind.RESERVATION_EXPIRED,
        RecordKind.RESERVATION_REVOKED,
        RecordKind.RESERVATION_ENDED,
    }
)
_FAULTS: Final = frozenset({RecordKind.RESERVATION_MISMATCH, RecordKind.RESERVATION_UNRESERVED})


@dataclass(frozen=True, slots=True)
class Stay:
    """One time of a GPU in one slot of one node."""

    node: str
    since: str
    """RFC 3339: the first acceptance that shows it there."""
    until: str | None
    """RFC 3339: the first acceptance that shows it elsewhere or not there; None while it lasts."""
    machine: str | None
    """System UUID of the host or VM."""
    index: int | None
    pci_bus_id: str | None
    lost: str | None
    """RFC 3339: since when the driver reported it as lost at the end of the stay."""
    evidence: str
    """Digest of the evidence that first shows it."""


@dataclass(frozen=True, slots=True)
class Hold:
    """One reservation of a GPU or of one of its MIG devices, for one pod."""

    namespace: str
    pod: str
    """Empty where the pod was never born."""
    uid: str
    gpu: str
    """The GPU, or the MIG device."""
    node: str
    reservation: str
    since: str
    """RFC 3339."""
    until: str | None
    """RFC 3339; None while it lasts."""
    state: str
    """What the last record reports of it: `reserved`, `confirmed`, `released`, …"""


@dataclass(frozen=True, slots=True)
class Happening:
    """Something else that a record has of the GPU: a fault, or use that no reservation explains."""

    at: str
    kind: str
    decision: str
    subject: str
    node: str
    detail: str


@dataclass(frozen=True, slots=True)
class GpuHistory:
    """All that the records have of one GPU."""

    uuid: str
    serial: str | None
    product: str | None
    stays: tuple[Stay, ...]
    """Oldest first, as the others."""
    holds: tuple[Hold, ...]
    happenings: tuple[Happening, ...]


def in_order(records: Iterable[LogRecord]) -> tuple[LogRecord, ...]:
    """Records of several logs as one sequence in time; a record that comes twice is one."""
    unique = {(x.origin, x.instance, x.seq): x for x in records}
    return tuple(sorted(unique.values(), key=lambda x: (x.ts, x.origin, x.seq)))


def gpu_histories(
    records: Iterable[LogRecord], wanted: str, inventory_of: InventoryOf
) -> tuple[GpuHistory, ...]:
    """Histories of the GPUs whose UUID begins with `wanted`, or whose serial it is; by UUID.

    A serial is a board's: several GPUs may have it.
    """
    ordered = in_order(records)
    known = cache(inventory_of)
    uuids = _named(ordered, wanted) or _with_serial(ordered, wanted, known)
    return tuple(_history(ordered, uuid, known) for uuid in sorted(uuids))


# --- which GPUs are meant


def _named(records: Iterable[LogRecord], wanted: str) -> set[str]:
    if not wanted.startswith(("GPU-", "MIG-")):
        return set()
    return {
        uuid
        for record in records
        for key in ("gpus", "lost")
        for uuid in _texts(record, key)
        if uuid.startswith(wanted)
    }


def _with_serial(records: Iterable[LogRecord], wanted: str, inventory_of: InventoryOf) -> set[str]:
    found = (_inventory(x, inventory_of) for x in records if _accepts(x))
    return {
        gpu.uuid
        for inventory in found
        if inventory is not None
        for gpu in inventory.gpus
        if serial(gpu.serial) == wanted
    }


# --- one GPU


def _history(records: tuple[LogRecord, ...], uuid: str, inventory_of: InventoryOf) -> GpuHistory:
    parts, number, product = {uuid}, None, None
    for record in records:
        if not _accepts(record) or uuid not in _gpus(record, inventory_of):
            continue
        inventory = _inventory(record, inventory_of)
        for gpu in () if inventory is None else inventory.gpus:
            if gpu.uuid == uuid:
                parts |= {x.uuid for x in gpu.mig_devices}
                number = serial(gpu.serial) or number
                product = gpu.product or product
    return GpuHistory(
        uuid,
        number,
        product,
        _stays(records, uuid, inventory_of),
        _holds(records, parts),
        tuple(_happenings(records, parts)),
    )


def _stays(records: Iterable[LogRecord], uuid: str, inventory_of: InventoryOf) -> tuple[Stay, ...]:
    found: list[Stay] = []
    for record in records:
        if not _accepts(record):
            continue
        node = record.subject.removeprefix(_NODE)
        last = found[-1] if found and found[-1].until is None else None
        if uuid in _gpus(record, inventory_of):
            stay = _stay(record, node, uuid, inventory_of)
            if last is not None and _is_same_place(last, stay):
                found[-1] = replace(_completed(last, stay), lost=None)
                continue
            if last is not None:
                found[-1] = replace(last, until=record.ts)
            found.append(stay)
        elif last is not None and last.node == node:
            if uuid in _texts(record, "lost"):
                found[-1] = replace(last, lost=last.lost or record.ts)
            else:
                found[-1] = replace(last, until=record.ts)
    return tuple(found)


def _stay(record: LogRecord, node: str, uuid: str, inventory_of: InventoryOf) -> Stay:
    inventory = _inventory(record, inventory_of)
    gpus = () if inventory is None else inventory.gpus
    gpu = next((x for x in gpus if x.uuid == uuid), None)
    return Stay(
        node,
        record.ts,
        None,
        None if inventory is None else inventory.host.system_uuid,
        None if gpu is None else gpu.index,
        None if gpu is None else gpu.pci_bus_id,
        None,
        _text(record, "evidence"),
    )


def _is_same_place(one: Stay, other: Stay) -> bool:
    """What is not known differs from nothing."""
    pairs = (
        (one.machine, other.machine),
        (one.index, other.index),
        (one.pci_bus_id, other.pci_bus_id),
    )
    return one.node == other.node and all(a is None or b is None or a == b for a, b in pairs)


def _completed(one: Stay, other: Stay) -> Stay:
    return replace(
        one,
        machine=other.machine if one.machine is None else one.machine,
        index=other.index if one.index is None else one.index,
        pci_bus_id=other.pci_bus_id if one.pci_bus_id is None else one.pci_bus_id,
    )


def _holds(records: Iterable[LogRecord], parts: set[str]) -> tuple[Hold, ...]:
    """Any replica may have made a record of it; the first end counts until it is restored."""
    found: dict[tuple[str, str], Hold] = {}
    for record in records:
        if record.kind not in _BEGINS and record.kind not in _ENDS:
            continue
        for gpu in parts.intersection(_texts(record, "gpus")):
            key = gpu, _text(record, "reservation")
            found[key] = _after(found.get(key), record, gpu)
    return tuple(sorted(found.values(), key=lambda x: (x.since, x.gpu, x.reservation)))


def _after(before: Hold | None, record: LogRecord, gpu: str) -> Hold:
    namespace, _, pod = record.subject.removeprefix(_POD).partition("/")
    state = record.kind.removeprefix("reservation.")
    ends = record.kind in _ENDS
    if before is None:
        return Hold(
            namespace,
            "" if pod == "-" else pod,
            _text(record, "uid"),
            gpu,
            _text(record, "node"),
            _text(record, "reservation"),
            record.ts,
            record.ts if ends else None,
            state,
        )
    named = replace(
        before,
        pod=before.pod or ("" if pod == "-" else pod),
        uid=before.uid or _text(record, "uid"),
    )
    if before.until is None:
        return replace(named, until=record.ts if ends else None, state=state)
    if record.kind == RecordKind.RESERVATION_RESTORED:
        return replace(named, until=None, state=state)
    return named


def _happenings(records: Iterable[LogRecord], parts: set[str]) -> Iterator[Happening]:
    for record in records:
        if record.kind in _FAULTS and not parts.isdisjoint(_texts(record, "gpus")):
            yield _happening(record, _text(record, "node"), _text(record, "uid"))
        elif record.kind == RecordKind.NODE_STATE:
            refs = _last(record)
            if refs.get("gpu") in parts:
                detail = str(refs.get("detail") or refs.get("kind") or "")
                yield _happening(record, record.subject.removeprefix(_NODE), detail)


def _happening(record: LogRecord, node: str, detail: str) -> Happening:
    return Happening(record.ts, record.kind, record.decision, record.subject, node, detail)


def _last(record: LogRecord) -> Mapping[str, object]:
    """A record that counts many alike has the references of the last of them."""
    last = record.refs.get("last")
    return last if isinstance(last, dict) else record.refs


# --- what a record names


def _accepts(record: LogRecord) -> bool:
    return record.kind == RecordKind.EVIDENCE_ACCEPTED


def _gpus(record: LogRecord, inventory_of: InventoryOf) -> tuple[str, ...]:
    """UUIDs of an acceptance; of a list that was too long for its record, by the evidence."""
    if isinstance(record.refs.get("gpus"), list):
        return _texts(record, "gpus")
    inventory = _inventory(record, inventory_of)
    return () if inventory is None else tuple(x.uuid for x in inventory.gpus)


def _inventory(record: LogRecord, inventory_of: InventoryOf) -> Inventory | None:
    return inventory_of(_text(record, "evidence"))


def _texts(record: LogRecord, key: str) -> tuple[str, ...]:
    found = record.refs.get(key)
    return tuple(x for x in found if isinstance(x, str)) if isinstance(found, list) else ()


def _text(record: LogRecord, key: str) -> str:
    found = record.refs.get(key)
    return found if isinstance(found, str) else ""
