"""Where a GPU has been and who has had it, from the records of one log or of several replicas'.

The log names the GPUs of each acceptance; serial, slot and machine are in the evidence archived
with it, and are not known any more once that is gone. What is older than the records, or was
decided by a replica whose log is not among them, is not in a history. Times are of the
controllers' clocks. Pure: records and inventories go in.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from gpuwarden.audit.record import (
    RESERVATION_BEGINS,
    RESERVATION_ENDS,
    LogRecord,
    RecordKind,
    known_kind,
    last_refs,
)
from gpuwarden.evidence.model import Inventory
from gpuwarden.evidence.node_identity import serial

HISTORY_KINDS: Final = ("evidence.accepted", "node.state", "reservation.")
"""What the kinds of records begin with that a history is made of."""


@dataclass(frozen=True, slots=True)
class ShownGpu:
    """What a piece of evidence shows of one GPU."""

    uuid: str
    serial: str | None
    product: str | None
    index: int
    pci_bus_id: str
    mig_devices: tuple[str, ...]
    """UUIDs."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a piece of evidence shows, as far as a history needs it."""

    machine: str | None
    """System UUID of the host or VM."""
    gpus: tuple[ShownGpu, ...]


ShownOf = Callable[[str], Shown | None]
"""What archived evidence shows, by its digest; None where it is not kept."""


def shown_by(inventory: Inventory | None) -> Shown | None:
    """What the inventory of archived evidence shows; None for none."""
    if inventory is None:
        return None
    gpus = (
        ShownGpu(
            x.uuid,
            serial(x.serial),
            x.product,
            x.index,
            x.pci_bus_id,
            tuple(one.uuid for one in x.mig_devices),
        )
        for x in inventory.gpus
    )
    return Shown(inventory.host.system_uuid, tuple(gpus))


_NODE: Final = "node/"
_POD: Final = "pod/"
_UUIDS: Final = ("GPU-", "MIG-")
_MIG: Final = "MIG-"
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
    log: str
    """Origin of the log that has the record of it."""
    record: int
    """Number of that record."""


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
    log: str
    """Origin of the log that has the first record of it."""
    record: int
    """Number of that record."""


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
    records_since: str
    """RFC 3339: the oldest record that was read; empty where there is none."""


def in_order(records: Iterable[LogRecord]) -> tuple[LogRecord, ...]:
    """Records of several logs as one sequence in time; a record that comes twice is one."""
    unique = {(x.origin, x.instance, x.seq): x for x in records}
    return tuple(sorted(unique.values(), key=lambda x: (x.ts, x.origin, x.seq)))


def gpu_histories(
    records: Iterable[LogRecord], wanted: str, shown_of: ShownOf
) -> tuple[GpuHistory, ...]:
    """Histories of the GPUs whose UUID begins with `wanted`, or whose serial it is; by UUID.

    A serial is a board's: several GPUs may have it.
    """
    ordered = in_order(records)
    known = cache(shown_of)
    uuids = _beginning(ordered, wanted) if is_uuid(wanted) else with_serial(ordered, wanted, known)
    return tuple(gpu_history(ordered, uuid, known) for uuid in sorted(uuids))


def gpu_history(
    records: Iterable[LogRecord],
    uuid: str,
    shown_of: ShownOf,
    *,
    mig_devices: Iterable[str] = (),
) -> GpuHistory:
    """The history of one GPU, from records in order of time, each looked at once.

    `mig_devices`: those of the GPU that are known from elsewhere.
    """
    reading = _Reading(uuid, shown_of, frozenset(mig_devices))
    for record in records:
        reading.take(record)
    return reading.history()


# --- which GPUs are meant


def is_uuid(wanted: str) -> bool:
    """Whether it is a UUID or a beginning of one, and no serial."""
    return wanted.startswith(_UUIDS)


def with_serial(records: Iterable[LogRecord], wanted: str, shown_of: ShownOf) -> set[str]:
    """UUIDs of the GPUs that have this serial.

    Evidence is not looked at where that of earlier records has the serials of all its GPUs.
    """
    found: set[str] = set()
    seen: set[str] = set()
    for record in records:
        if not _accepts(record) or (_is_whole(record) and seen.issuperset(_texts(record, "gpus"))):
            continue
        shown = _shown_at(record, shown_of)
        for gpu in () if shown is None else shown.gpus:
            if gpu.serial is not None:
                seen.add(gpu.uuid)
            if gpu.serial == wanted:
                found.add(gpu.uuid)
    return found


def _beginning(records: Iterable[LogRecord], wanted: str) -> set[str]:
    return {
        uuid
        for record in records
        for key in ("gpus", "lost")
        for uuid in _texts(record, key)
        if uuid.startswith(wanted)
    }


# --- which records are about them


@dataclass(frozen=True, slots=True)
class Sought:
    """What a history is asked for, of one log.

    The nodes on which other logs have the GPUs belong to it: that one of them shows a GPU no
    longer may be in this log alone.
    """

    gpus: tuple[str, ...]
    """UUIDs of GPUs or MIG devices, or beginnings of them."""
    nodes: frozenset[str] = frozenset()

    def named_by(self, record: LogRecord, shown_of: ShownOf) -> set[str]:
        """The UUIDs that begin so and that a record of `HISTORY_KINDS` names."""
        return {x for x in _named(record, shown_of) if x.startswith(self.gpus)}

    def has_node_of(self, record: LogRecord) -> bool:
        """Whether a record is the acceptance of one of the nodes."""
        return _accepts(record) and record.subject.removeprefix(_NODE) in self.nodes


def nodes_of(records: Iterable[LogRecord]) -> frozenset[str]:
    """The nodes whose acceptances are among the records."""
    return frozenset(x.subject.removeprefix(_NODE) for x in records if _accepts(x))


def evidence_of(record: LogRecord) -> str:
    """Digest of the evidence that a record is the acceptance of; empty for another record."""
    return _text(record, "evidence") if _accepts(record) else ""


def _named(record: LogRecord, shown_of: ShownOf) -> Iterable[str]:
    if not _accepts(record):
        return _texts(record, "gpus") if _is_reservation(record) else _happening(record)[0]
    shown = None if _is_whole(record) else _shown_at(record, shown_of)
    more = () if shown is None else (x.uuid for x in shown.gpus)
    return (*_texts(record, "gpus"), *_texts(record, "lost"), *more)


# --- one GPU


class _Reading:
    """What the records so far have of one GPU."""

    def __init__(self, uuid: str, shown_of: ShownOf, mig_devices: frozenset[str]) -> None:
        self._uuid = uuid
        self._shown_of = shown_of
        self._parts = {uuid, *mig_devices}
        self._serial: str | None = None
        self._product: str | None = None
        self._stays: list[Stay] = []
        self._holds: dict[tuple[str, str], Hold] = {}
        """By GPU or MIG device and reservation; of all MIG devices, as evidence that shows whose
        they are may come later."""
        self._happenings: list[tuple[tuple[str, ...], Happening]] = []
        """With what each is about."""
        self._since = ""

    def take(self, record: LogRecord) -> None:
        """Records come in order of time."""
        self._since = self._since or record.ts
        if _accepts(record):
            self._accepted(record)
        elif _is_reservation(record):
            # Any replica may have made a record of it; the first end counts until it is restored.
            for gpu in self._may_be_parts(_texts(record, "gpus")):
                key = gpu, _text(record, "reservation")
                self._holds[key] = _after(self._holds.get(key), record, gpu)
        else:
            gpus, happening = _happening(record)
            parts = self._may_be_parts(gpus)
            if parts:
                self._happenings.append((parts, happening))

    def history(self) -> GpuHistory:
        """All of it."""
        holds = (x for x in self._holds.values() if x.gpu in self._parts)
        return GpuHistory(
            self._uuid,
            self._serial,
            self._product,
            tuple(self._stays),
            tuple(sorted(holds, key=lambda x: (x.since, x.gpu, x.reservation))),
            tuple(x for parts, x in self._happenings if not self._parts.isdisjoint(parts)),
            self._since,
        )

    def _may_be_parts(self, gpus: Iterable[str]) -> tuple[str, ...]:
        return tuple(x for x in gpus if x in self._parts or x.startswith(_MIG))

    def _accepted(self, record: LogRecord) -> None:
        node = record.subject.removeprefix(_NODE)
        last = self._stays[-1] if self._stays and self._stays[-1].until is None else None
        shows = _shows(record, self._uuid, self._shown_of)
        if shows:
            self._shown(record, node, last)
        elif shows is not None and last is not None and last.node == node:
            if self._uuid in _texts(record, "lost"):
                self._stays[-1] = replace(last, lost=last.lost or record.ts)
            else:
                self._stays[-1] = replace(last, until=record.ts)

    def _shown(self, record: LogRecord, node: str, last: Stay | None) -> None:
        shown = _shown_at(record, self._shown_of)
        gpus = () if shown is None else shown.gpus
        gpu = next((x for x in gpus if x.uuid == self._uuid), None)
        if gpu is not None:
            self._parts |= set(gpu.mig_devices)
            self._serial = gpu.serial or self._serial
            self._product = gpu.product or self._product
        stay = Stay(
            node,
            record.ts,
            None,
            None if shown is None else shown.machine,
            None if gpu is None else gpu.index,
            None if gpu is None else gpu.pci_bus_id,
            None,
            _text(record, "evidence"),
            record.origin,
            record.seq,
        )
        if last is not None and _is_same_place(last, stay):
            self._stays[-1] = replace(_completed(last, stay), lost=None)
            return
        if last is not None:
            self._stays[-1] = replace(last, until=record.ts)
        self._stays.append(stay)


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


def _after(before: Hold | None, record: LogRecord, gpu: str) -> Hold:
    namespace, _, pod = record.subject.removeprefix(_POD).partition("/")
    state = record.kind.removeprefix("reservation.")
    ends = record.kind in RESERVATION_ENDS
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
            record.origin,
            record.seq,
        )
    named = replace(
        before,
        pod=before.pod or ("" if pod == "-" else pod),
        uid=before.uid or _text(record, "uid"),
    )
    if before.until is None:
        return replace(named, until=record.ts if ends else None, state=state)
    if known_kind(record) is RecordKind.RESERVATION_RESTORED:
        return replace(named, until=None, state=state)
    return named


def _happening(record: LogRecord) -> tuple[tuple[str, ...], Happening]:
    """The GPUs that something happened to, if any, and what."""
    if record.kind == RecordKind.NODE_STATE:
        refs = last_refs(record) or record.refs
        gpus: tuple[str, ...] = (str(refs.get("gpu", "")),)
        node = record.subject.removeprefix(_NODE)
        detail = str(refs.get("detail") or refs.get("kind") or "")
    else:
        gpus = _texts(record, "gpus") if known_kind(record) in _FAULTS else ()
        node, detail = _text(record, "node"), _text(record, "uid")
    return gpus, Happening(record.ts, record.kind, record.decision, record.subject, node, detail)


# --- what a record names


def _is_reservation(record: LogRecord) -> bool:
    kind = known_kind(record)
    return kind in RESERVATION_BEGINS or kind in RESERVATION_ENDS


def _accepts(record: LogRecord) -> bool:
    return record.kind == RecordKind.EVIDENCE_ACCEPTED


def _shows(record: LogRecord, uuid: str, shown_of: ShownOf) -> bool | None:
    """Whether an acceptance shows the GPU; None where its list was too long and is not kept."""
    if _is_whole(record):
        return uuid in _texts(record, "gpus")
    shown = _shown_at(record, shown_of)
    if shown is not None:
        return any(x.uuid == uuid for x in shown.gpus)
    return True if uuid in _texts(record, "gpus") else None


def _shown_at(record: LogRecord, shown_of: ShownOf) -> Shown | None:
    return shown_of(_text(record, "evidence"))


def _is_whole(record: LogRecord) -> bool:
    return isinstance(record.refs.get("gpus"), list)


def _texts(record: LogRecord, key: str) -> tuple[str, ...]:
    """The items of a list; of one that was too long for its record, the first."""
    found = record.refs.get(key)
    if isinstance(found, dict):
        found = found.get("first")
    return tuple(x for x in found if isinstance(x, str)) if isinstance(found, list) else ()


def _text(record: LogRecord, key: str) -> str:
    found = record.refs.get(key)
    return found if isinstance(found, str) else ""
