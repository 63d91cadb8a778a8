"""Drops what is malformed in facts that neither the class nor the enrollment holds. Pure.

Drivers answer with garbage now and then: process id 0, a product name that is no text, a link
number of 255. Such a fact costs itself, never the node. What class and identity hold is not
looked at here: there `inventory_rules` decides.

Whether a pod uses a GPU must not become unknown in silence: where a malformed entry names a pod,
the whole list counts as not read, and nothing is concluded from it.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from gpuwarden.evidence.inventory_rules import (
    MAX_MIG_DEVICES,
    MAX_NVLINKS,
    inventory_findings,
    is_bus_id,
    is_capability,
    is_fabric,
    is_mig_uuid,
    is_small,
    is_text,
    is_version,
)
from gpuwarden.evidence.model import (
    Evidence,
    EvidenceWithPods,
    Gpu,
    Inventory,
    MigDevice,
    NvLink,
)
from gpuwarden.evidence.strict_json import quote
from gpuwarden.evidence.use_rules import (
    MAX_ALLOCATIONS,
    MAX_PODS,
    MAX_PROCESSES,
    is_allocation,
    is_pod_uid,
    is_process,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Dropped:
    """A fact of which something was malformed."""

    fact: str
    """In wire spelling, as in `FailedRead`."""
    gpu: str | None
    value: str
    """What was there, for people."""

    def __str__(self) -> str:
        where = f"{self.fact} of {quote(self.gpu)}" if self.gpu else self.fact
        return f"ignored: {where} is malformed: {self.value}"


# --- the inventory

_RULES: Final[tuple[tuple[str, Callable[[Any], bool]], ...]] = (
    ("board_part_number", is_text),
    ("product", is_text),
    ("compute_capability", is_capability),
    ("architecture", is_text),
    ("compute_mode", is_text),
    ("fabric", is_fabric),
    ("chassis_serial", is_text),
    ("module_id", is_small),
)
"""Attributes of a GPU, and what their values must be."""

_WIRE: Final = dict(zip(Gpu.__struct_fields__, Gpu.__struct_encode_fields__, strict=True))


def without_malformed_facts(inventory: Inventory) -> tuple[Inventory, tuple[Dropped, ...]]:
    """The inventory without malformed facts, the very object where there are none."""
    if not inventory_findings(inventory):
        return inventory, ()
    dropped: list[Dropped] = []
    host = inventory.host
    if host.cuda is not None and not is_version(host.cuda):
        dropped.append(Dropped("cuda", None, quote(host.cuda)))
        host = msgspec.structs.replace(host, cuda=None)
    migs = Counter(device.uuid for gpu in inventory.gpus for device in gpu.mig_devices)
    twice = frozenset(uuid for uuid, count in migs.items() if count > 1)
    gpus = tuple(_gpu(gpu, twice, dropped) for gpu in inventory.gpus)
    if not dropped:
        return inventory, ()
    return msgspec.structs.replace(inventory, host=host, gpus=gpus), tuple(dropped)


def _gpu(gpu: Gpu, twice: frozenset[str], dropped: list[Dropped]) -> Gpu:
    changes: dict[str, object] = {}
    for attribute, is_known in _RULES:
        value = getattr(gpu, attribute)
        if value is not None and not is_known(value):
            changes[attribute] = None
            dropped.append(Dropped(_WIRE[attribute], gpu.uuid, quote(str(value))))
    links = _links(gpu.nvlinks)
    if links != gpu.nvlinks:
        changes["nvlinks"] = links
        dropped.append(Dropped("nvlinks", gpu.uuid, _left_out(gpu.nvlinks, links)))
    devices = tuple(_mig(x) for x in gpu.mig_devices if is_mig_uuid(x.uuid) and x.uuid not in twice)
    devices = devices if len(devices) <= MAX_MIG_DEVICES else ()
    if devices != gpu.mig_devices:
        changes["mig_devices"] = devices
        dropped.append(Dropped("migDevices", gpu.uuid, _left_out(gpu.mig_devices, devices)))
    return msgspec.structs.replace(gpu, **changes) if changes else gpu


def _links(links: tuple[NvLink, ...]) -> tuple[NvLink, ...]:
    """Those that are well-formed; none where numbers repeat, for nobody knows which is right."""
    known = tuple(
        x for x in links if 0 <= x.link < MAX_NVLINKS and (x.peer is None or is_bus_id(x.peer))
    )
    return known if len({x.link for x in known}) == len(known) else ()


def _mig(device: MigDevice) -> MigDevice:
    profile, memory = device.profile, device.memory_mib
    return msgspec.structs.replace(
        device,
        profile=profile if profile is not None and is_version(profile) else None,
        memory_mib=memory if memory is not None and is_small(memory) else None,
    )


def _left_out(before: tuple[T, ...], after: tuple[T, ...]) -> str:
    kept = set(after)
    odd = [x for x in before if x not in kept]
    return f"{len(odd)} of {len(before)} entries, such as {quote(str(odd[0]))}"


# --- who uses the GPUs


@dataclass(slots=True)
class _Use:
    """Fields of evidence as they are left."""

    changes: dict[str, object] = field(default_factory=dict)
    dropped: list[Dropped] = field(default_factory=list)

    def keep(
        self,
        name: str,
        entries: tuple[T, ...] | None,
        is_known: Callable[[T], bool],
        most: int,
        *,
        names_pod: Callable[[T], bool],
    ) -> None:
        """Let the well-formed entries stand, each once; none at all where a pod may be missed."""
        if entries is None:
            return
        known = tuple(dict.fromkeys(x for x in entries if is_known(x)))
        if known == entries and len(known) <= most:
            return
        odd = [x for x in entries if not is_known(x)]
        missed = len(known) > most or any(names_pod(x) for x in odd)
        self.changes[name] = None if missed else known
        if odd or missed:
            what = f"{len(odd)} of {len(entries)} entries"
            example = f", such as {quote(str(odd[0]))}" if odd else f", at most {most} are read"
            self.dropped.append(Dropped(name, None, f"{what}{example}"))


def without_malformed_use(evidence: Evidence) -> tuple[Evidence, tuple[Dropped, ...]]:
    """The evidence without malformed entries of use, the very object where there are none."""
    use = _Use()
    use.keep(
        "allocations",
        evidence.allocations,
        is_allocation,
        MAX_ALLOCATIONS,
        names_pod=lambda _: True,
    )
    use.keep(
        "processes",
        evidence.processes,
        is_process,
        MAX_PROCESSES,
        names_pod=lambda x: x.pod_uid is not None,
    )
    if isinstance(evidence, EvidenceWithPods):
        use.keep("pods", evidence.pods, is_pod_uid, MAX_PODS, names_pod=lambda _: True)
    if not use.changes:
        return evidence, ()
    return msgspec.structs.replace(evidence, **use.changes), tuple(use.dropped)
