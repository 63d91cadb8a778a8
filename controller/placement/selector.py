"""GPU selectors, device labels and NVLink islands: what can be asked of a node's devices.

A selector such as `model=…,memory>=40Gi,mig=false` holds where each of its terms holds for an
attested fact of one device. An unknown key, a type that does not compare or a blank term is an
error, never skipped. Labels hold by attested facts only, never by anything on a Node object.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from controller.fleet.view import GpuView
from controller.placement.keys import LABEL_PREFIXES
from gpuwarden.evidence.model import Host, MigDevice
from gpuwarden.evidence.stand_in import without_mark
from gpuwarden.finding import Finding
from gpuwarden.policy.selector import ASSIGN, Fact, Selector, is_label_name, parse_selector
from gpuwarden.policy.texts import RequirementTextError, parse_dotted, shown

# --- device facts

_MIB = 1 << 20


class Device(NamedTuple):
    """One device that a pod can be given: a whole GPU, or a MIG device with its parent's facts.

    A tuple because a fleet has 100,000 of them, made again with each evidence.
    """

    uuid: str
    host: Host
    gpu: GpuView
    mig: MigDevice | None
    in_use: bool
    """Whether the last evidence saw a process on it."""

    def fact(self, key: str) -> Fact:
        """The fact behind a selector key of `FACTS`."""
        return FACTS[key](self)


def _text(value: str | None) -> str | None:
    return None if value is None else value.casefold()


def _dotted(value: str | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    try:
        return parse_dotted(value)
    except RequirementTextError:
        return None


def _driver(value: str | None) -> tuple[int, ...] | None:
    return None if value is None else _dotted(without_mark(value))


def _memory(device: Device) -> int | None:
    mib = device.gpu.memory_mib if device.mig is None else device.mig.memory_mib
    return None if mib is None else mib * _MIB


FACTS: dict[str, Callable[[Device], Fact]] = {
    "model": lambda device: _text(device.gpu.product),
    "architecture": lambda device: _text(device.gpu.architecture),
    "memory": _memory,
    "driver": lambda device: _driver(device.host.driver),
    "cuda": lambda device: _dotted(device.host.cuda),
    "compute": lambda device: _dotted(device.gpu.compute_capability),
    "mig": lambda device: device.mig is not None or device.gpu.mig is True,
    "mig-profile": lambda device: _text(device.mig.profile) if device.mig else None,
    "cc": lambda device: _text(device.host.cc),
    "virt": lambda device: _text(device.gpu.virt),
    "fabric": lambda device: _text(device.gpu.fabric_kind),
    "vbios": lambda device: _text(device.gpu.vbios),
    "pci": lambda device: _text(device.gpu.pci),
}
"""Every selector key with where its fact comes from."""


# --- device labels

MODEL_PREFIX = "model-"
_NOT_PLAIN = re.compile(r"[^a-z0-9]+")


def model_label(product: str) -> str:
    """`NVIDIA H100 80GB HBM3` -> `model-nvidia-h100-80gb-hbm3`."""
    return MODEL_PREFIX + _NOT_PLAIN.sub("-", product.lower()).strip("-")


def compile_labels(labels: Mapping[str, str]) -> Mapping[str, Selector]:
    """The selectors behind a policy's labels; raises RequirementTextError for a malformed one."""
    return {name: parse_selector(text) for name, text in labels.items()}


def holds(label: str, device: Device, selectors: Mapping[str, Selector]) -> bool:
    """Whether a device has a label; a policy label wins over a model's."""
    selector = selectors.get(label)
    if selector is not None:
        return selector.matches(device.fact)
    return device.gpu.product is not None and label == model_label(device.gpu.product)


def labels_of(device: Device, selectors: Mapping[str, Selector]) -> tuple[str, ...]:
    """Every label that holds for a device, sorted."""
    found = {name for name, selector in selectors.items() if selector.matches(device.fact)}
    if device.gpu.product is not None and model_label(device.gpu.product) not in selectors:
        found.add(model_label(device.gpu.product))
    return tuple(sorted(found))


def read_labels(labels: Mapping[str, str], findings: list[Finding]) -> tuple[frozenset[str], bool]:
    """Required device labels of a pod, and whether it asks for any GPU at all (`assign`)."""
    required: set[str] = set()
    for key, text in labels.items():
        if not key.startswith(LABEL_PREFIXES):
            continue
        prefix = next(prefix for prefix in LABEL_PREFIXES if key.startswith(prefix))
        name = key.removeprefix(prefix)
        if not is_label_name(name):
            findings.append(
                Finding(shown(key), shown(text), "the name of a device label after gpu.")
            )
        elif text in {"", "true"}:
            required.add(name)
        elif text not in {"false", "0"}:
            findings.append(
                Finding(shown(key), shown(text), "true or empty to require it, false or 0 not to")
            )
    return frozenset(required - {ASSIGN}), ASSIGN in required


# --- islands


def islands(gpus: Iterable[GpuView]) -> list[frozenset[str]]:
    """UUIDs of the GPUs of each island of two or more.

    GPUs belong together when an active link of one ends at the other or at a device
    (an NVSwitch) at which a link of the other ends.
    """
    found: list[tuple[set[str], set[str]]] = []
    for gpu in gpus:
        ends = {gpu.pci_bus_id.lower()}
        ends.update(link.peer.lower() for link in gpu.nvlinks if link.active and link.peer)
        members = {gpu.uuid}
        apart = []
        for other_members, other_ends in found:
            if ends & other_ends:
                members |= other_members
                ends |= other_ends
            else:
                apart.append((other_members, other_ends))
        found = [*apart, (members, ends)]
    return [frozenset(members) for members, _ in found if len(members) > 1]


def breaks_island(count: int, free: Sequence[Device], gpus: Sequence[GpuView]) -> bool:
    """Whether `count` of the free devices can only be had by breaking a wholly free island."""
    uuids = {device.uuid for device in free}
    whole = [island for island in islands(gpus) if island <= uuids]
    loose = len(free) - sum(map(len, whole))
    sums = {0}
    for island in whole:
        sums |= {size + len(island) for size in sums if size + len(island) <= count}
    return not any(count - size <= loose for size in sums)
