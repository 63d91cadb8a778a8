"""GPU selectors, device labels and NVLink islands: what can be asked of a node's devices.

A selector such as `model=…,memory>=40Gi,mig=false` holds where each of its terms holds for an
attested fact of one device. An unknown key, a type that does not compare or a blank term is an
error, never skipped. Labels hold by attested facts only, never by anything on a Node object.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from controller.fleet.view import GpuView
from controller.placement.keys import ASSIGN, LABEL_PREFIXES
from controller.placement.values import RequirementTextError, parse_dotted, parse_quantity, shown
from gpuwarden.evidence.model import Host, MigDevice
from gpuwarden.finding import Finding

# --- device facts

Fact = str | bool | int | tuple[int, ...] | None
"""Text is case-folded, memory is bytes, versions are tuples of numbers."""

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
        raise RequirementTextError("true or false")
    return folded == "true"


def _bytes(text: str) -> int:
    value = parse_quantity(text)
    if value < 0 or value.denominator != 1:
        raise RequirementTextError("a quantity of whole bytes such as 40Gi")
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


# --- selector

_MAX_CHARS = 4096
_MAX_TERMS = 32
_MAX_CHOICES = 32
_MAX_VALUE_CHARS = 128
_TERM = re.compile(r"\s*([A-Za-z][A-Za-z-]{0,31})\s*(>=|<=|!=|=|>|<|\s+in\b)\s*(.*?)\s*", re.DOTALL)
_SYNTAX = frozenset("=<>!()|,")


@dataclass(frozen=True, slots=True)
class Term:
    """One comparison; `values` has one element except for `in`."""

    key: str
    operator: str
    values: tuple[Fact, ...]
    text: str

    def holds(self, device: Device) -> bool:
        """Whether the device's fact satisfies it; an absent fact satisfies nothing."""
        fact = device.fact(self.key)
        if fact is None:
            return False
        match self.operator:
            case "=" | "in":
                return fact in self.values
            case "!=":
                return fact not in self.values
            case _:
                return _compares(fact, self.operator, self.values[0])


@dataclass(frozen=True, slots=True)
class Selector:
    """Terms that must all hold. `text` is the canonical spelling: equal text, equal meaning."""

    terms: tuple[Term, ...]
    text: str

    def matches(self, device: Device) -> bool:
        """Whether every term holds for the device."""
        return all(term.holds(device) for term in self.terms)


def parse_selector(text: str) -> Selector:
    """Read a selector; raises RequirementTextError that names the term and what was expected."""
    if len(text) > _MAX_CHARS:
        raise RequirementTextError(f"at most {_MAX_CHARS} characters")
    parts = text.split(",")
    if len(parts) > _MAX_TERMS:
        raise RequirementTextError(f"at most {_MAX_TERMS} terms")
    terms = tuple(_term(part) for part in parts)
    return Selector(terms, ",".join(term.text for term in terms))


def _term(text: str) -> Term:
    match = _TERM.fullmatch(text)
    if match is None:
        raise RequirementTextError(
            f"key, operator and value in term {text[:80]!r}, such as memory>=40Gi"
        )
    key, operator, value = match[1], match[2].strip(), match[3]
    if key not in FACTS:
        raise RequirementTextError(f"a key out of {', '.join(FACTS)}, not {key!r}")
    if operator not in {"=", "!=", "in"} and key not in ORDERED:
        raise RequirementTextError(f"one of = != in for {key}, which has no order")
    texts = _choices(key, value) if operator == "in" else [value]
    values = tuple(_value(key, choice) for choice in texts)
    written = f"({'|'.join(texts)})" if operator == "in" else value
    return Term(
        key,
        operator,
        values,
        f"{key} in {written}" if operator == "in" else f"{key}{operator}{written}",
    )


def _choices(key: str, value: str) -> list[str]:
    if not (value.startswith("(") and value.endswith(")")):
        raise RequirementTextError(f"{key} in (a|b)")
    choices = [choice.strip() for choice in value[1:-1].split("|")]
    if len(choices) > _MAX_CHOICES:
        raise RequirementTextError(f"at most {_MAX_CHOICES} choices for {key}")
    return choices


def _value(key: str, text: str) -> Fact:
    if not text or len(text) > _MAX_VALUE_CHARS or not text.isprintable() or _SYNTAX & set(text):
        raise RequirementTextError(
            f"1 to {_MAX_VALUE_CHARS} printable characters without = < > ! ( ) | as value of {key}"
        )
    try:
        return PARSERS.get(key, str.casefold)(text)
    except RequirementTextError as error:
        raise RequirementTextError(f"{error} for {key}, not {text[:80]!r}") from None


def _compares(fact: Fact, operator: str, value: Fact) -> bool:
    if isinstance(fact, int) and isinstance(value, int):
        return _ordered((fact,), operator, (value,))
    if isinstance(fact, tuple) and isinstance(value, tuple):
        return _ordered(fact, operator, value)
    raise AssertionError(f"{operator} was parsed for facts without order")  # pragma: no cover


def _ordered(fact: tuple[int, ...], operator: str, value: tuple[int, ...]) -> bool:
    match operator:
        case ">=":
            return fact >= value
        case "<=":
            return fact <= value
        case ">":
            return fact > value
        case _:
            return fact < value


# --- device labels

MODEL_PREFIX = "model-"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,57}[A-Za-z0-9])?")
_NOT_PLAIN = re.compile(r"[^a-z0-9]+")


def is_label_name(text: str) -> bool:
    """Whether `text` can follow `gpu.` in a Kubernetes label key."""
    return _NAME.fullmatch(text) is not None


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
        return selector.matches(device)
    return device.gpu.product is not None and label == model_label(device.gpu.product)


def labels_of(device: Device, selectors: Mapping[str, Selector]) -> tuple[str, ...]:
    """Every label that holds for a device, sorted."""
    found = {name for name, selector in selectors.items() if selector.matches(device)}
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
