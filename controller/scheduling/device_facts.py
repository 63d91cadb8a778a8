"""What selectors can ask about one device: attested facts, typed. Pure.

A fact that the driver says does not exist is None; no term about it holds then,
except that `mig=false` holds for a GPU without MIG.
"""

from collections.abc import Callable
from typing import NamedTuple

from controller.fleet.view import GpuView
from controller.scheduling.finding import WishTextError
from controller.scheduling.quantity import parse_dotted, parse_quantity
from gpuwarden.evidence.model import Host, MigDevice

Fact = str | bool | int | tuple[int, ...] | None
"""Text is case-folded, memory is bytes, versions are tuples of numbers."""

_MIB = 1 << 20


class Device(NamedTuple):
    """One device that a pod can be given: a whole GPU, or a MIG device with its parent's facts.

    A tuple because a fleet has 100,000 of them, made anew with each evidence.
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
    except WishTextError:
        return None


def _memory(device: Device) -> int | None:
    mib = device.gpu.memory_mib if device.mig is None else device.mig.memory_mib
    return None if mib is None else mib * _MIB


FACTS: dict[str, Callable[[Device], Fact]] = {
    "model": lambda device: _text(device.gpu.product),
    "architecture": lambda device: _text(device.gpu.architecture),
    "memory": _memory,
    "driver": lambda device: _dotted(device.host.driver),
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


def _boolean(text: str) -> bool:
    folded = text.casefold()
    if folded not in {"true", "false"}:
        raise WishTextError("true or false")
    return folded == "true"


def _bytes(text: str) -> int:
    value = parse_quantity(text)
    if value < 0 or value.denominator != 1:
        raise WishTextError("a quantity of whole bytes such as 40Gi")
    return int(value)


PARSERS: dict[str, Callable[[str], Fact]] = {
    "memory": _bytes,
    "driver": parse_dotted,
    "cuda": parse_dotted,
    "compute": parse_dotted,
    "mig": _boolean,
}
"""How a term's value is read, where it is not text."""

ORDERED = frozenset({"memory", "driver", "cuda", "compute"})
"""Keys whose facts can be compared by size."""
