"""What failed reads and malformed facts cost: the fact, one GPU, or the inventory as a whole.

One bad card is one bad card: a GPU of which a fact that class or enrollment needs was not read
counts as lost, with the reason. One that does not even show its name is the enrolled GPU that is
missing. Only a fact of the host, GPUs that cannot be counted, or a nameless GPU that nothing is
missing for leave open what the node has.

Pure. Must not judge the GPUs that were read (see `inventory`).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from controller.fleet.enrollment import EnrolledGpu
from gpuwarden.evidence.auxiliary_facts import Dropped
from gpuwarden.evidence.class_document import CLASS_FACTS, unread_facts
from gpuwarden.evidence.inventory_rules import is_gpu_uuid
from gpuwarden.evidence.model import Evidence, FailedRead, Inventory, LostGpu
from gpuwarden.evidence.node_identity import IDENTITY_FACTS, serial
from gpuwarden.evidence.strict_json import quote

NEEDED_FACTS: Final = CLASS_FACTS | IDENTITY_FACTS
"""A failed read of any other fact is a warning."""

_OF_THE_NODE: Final = frozenset({"gpus", "arch", "driver", "cc", "systemUuid"})
_NAMES: Final = frozenset({"uuid", "pciBusId"})
"""Facts without which nobody knows which GPU it is."""

INVALID_VALUE: Final = "INVALID_VALUE"
"""`error` of a failed read whose answer was no such fact; the agent says it too."""
_DROPPED: Final = "dropped by the controller"


# --- malformed facts


def failed_reads_of(dropped: Iterable[Dropped]) -> tuple[FailedRead, ...]:
    """Dropped facts, as an agent would report them that had looked itself."""
    return tuple(
        FailedRead(fact=x.fact, gpu=x.gpu, call=_DROPPED, error=INVALID_VALUE) for x in dropped
    )


# --- failed reads


@dataclass(frozen=True, slots=True)
class Readable:
    """What can be said of the hardware."""

    inventory: Inventory
    """With unhealthy GPUs among the lost ones; the very one of the evidence where there are none"""
    unhealthy: Mapping[str, str]
    """UUID -> first fact that was not read, and why."""
    missing: Mapping[str, str]
    """UUID of an enrolled GPU that answers without its name -> why."""
    undecidable: tuple[str, ...]
    """Facts that leave open what the node has: INVENTORY_INCOMPLETE."""


def readable(evidence: Evidence, enrolled: Mapping[str, EnrolledGpu]) -> Readable:
    """Sort the failed reads of needed facts by what they cost; `enrolled` by UUID."""
    unhealthy: dict[str, str] = {}
    nameless: list[FailedRead] = []
    undecidable: list[FailedRead] = []
    inventory = evidence.inventory
    needed = [*_missed_serials(inventory, enrolled)]
    needed += (x for x in evidence.failed_reads if x.fact in NEEDED_FACTS)
    if not needed:
        return Readable(inventory, {}, {}, ())
    gpus = {key: gpu for gpu in inventory.gpus for key in (gpu.uuid, gpu.pci_bus_id)}
    for read in needed:
        gpu = gpus.get(read.gpu) if read.gpu and read.fact not in _OF_THE_NODE else None
        if gpu is not None:
            unhealthy.setdefault(gpu.uuid, _why(read))
        elif read.fact in _NAMES:
            nameless.append(read)
        else:
            undecidable.append(read)
    missing = _missing(inventory, nameless, enrolled)
    if missing is None or (inventory.gpus and len(unhealthy) == len(inventory.gpus)):
        undecidable = needed
    return Readable(
        _without(inventory, unhealthy),
        unhealthy,
        missing or {},
        unread_facts(undecidable, NEEDED_FACTS),
    )


def warnings_of_readings(evidence: Evidence, found: Readable) -> Iterator[str]:
    """What failed reads have cost, one line each."""
    for uuid, why in found.unhealthy.items():
        yield f"{uuid} is not offered: not read: {why}"
    for uuid, why in found.missing.items():
        yield f"{uuid} is not offered: a GPU has no name: {why}"
    reads = [x for x in evidence.failed_reads if x.call != _DROPPED]
    facts = frozenset(x.fact for x in reads) - NEEDED_FACTS
    yield from (f"not read: {quote(x)}" for x in unread_facts(reads, facts))


def _missed_serials(
    inventory: Inventory, enrolled: Mapping[str, EnrolledGpu]
) -> Iterator[FailedRead]:
    """Enrolled serials that are no longer reported: not another one, but nothing is proven."""
    for gpu in inventory.gpus:
        known = enrolled.get(gpu.uuid)
        if known is not None and known.serial is not None and serial(gpu.serial) is None:
            error = f"not reported, {known.serial} is enrolled"
            yield FailedRead(fact="serial", gpu=gpu.uuid, call="", error=error)


def _why(read: FailedRead) -> str:
    return quote(f"{read.fact}: {read.error}")


def _without(inventory: Inventory, unhealthy: Mapping[str, str]) -> Inventory:
    lost = tuple(
        LostGpu(uuid=x.uuid, index=x.index, pci_bus_id=x.pci_bus_id, error=unhealthy[x.uuid])
        for x in inventory.gpus
        if x.uuid in unhealthy
    )
    whole = tuple(x for x in inventory.gpus if x.uuid not in unhealthy)
    return msgspec.structs.replace(inventory, gpus=whole, lost=(*inventory.lost, *lost))


def _missing(
    inventory: Inventory, nameless: list[FailedRead], enrolled: Mapping[str, EnrolledGpu]
) -> Mapping[str, str] | None:
    """Which enrolled GPUs the nameless ones are; None where one of them can be none of these.

    By UUID, then by place, then by what is left: those that say most come first.
    """
    seen = {x.uuid for x in inventory.gpus} | {x.uuid for x in inventory.lost}
    left = {uuid: gpu for uuid, gpu in sorted(enrolled.items()) if uuid not in seen}
    found: dict[str, str] = {}
    places = {x.pci_bus_id for x in left.values()}
    for read in sorted(nameless, key=lambda x: (not _names_one(x), x.gpu not in places)):
        uuid = _which(read, left)
        if uuid is None:
            return None
        del left[uuid]
        found[uuid] = _why(read)
    return found


def _which(read: FailedRead, left: Mapping[str, EnrolledGpu]) -> str | None:
    if _names_one(read):
        return read.gpu if read.gpu in left else None
    there = (uuid for uuid, gpu in left.items() if read.gpu and gpu.pci_bus_id == read.gpu)
    return next(there, next(iter(left), None))


def _names_one(read: FailedRead) -> bool:
    return read.gpu is not None and is_gpu_uuid(read.gpu)
