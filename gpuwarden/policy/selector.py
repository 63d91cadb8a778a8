"""Selectors such as `model=…,memory>=40Gi,mig=false`: their grammar, and when one holds. Pure.

A selector holds where each of its terms holds for an attested fact of one device. An unknown key, a
type that does not compare or a blank term is an error, never skipped.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpuwarden.policy.texts import RequirementTextError, parse_dotted, parse_quantity

Fact = str | bool | int | tuple[int, ...] | None
"""Text is case-folded, memory is bytes, versions are tuples of numbers."""

KEYS: Final = (
    "model",
    "architecture",
    "memory",
    "driver",
    "cuda",
    "compute",
    "mig",
    "mig-profile",
    "cc",
    "virt",
    "fabric",
    "vbios",
    "pci",
)
"""What can be asked of a device."""


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

    def holds(self, fact: Fact) -> bool:
        """Whether a device's fact satisfies it; an absent fact satisfies nothing."""
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

    def matches(self, fact: Callable[[str], Fact]) -> bool:
        """Whether every term holds for the device whose facts these are, by key."""
        return all(term.holds(fact(term.key)) for term in self.terms)


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
    if key not in KEYS:
        raise RequirementTextError(f"a key out of {', '.join(KEYS)}, not {key!r}")
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


# --- names of device labels

ASSIGN: Final = "assign"
"""Asks for some GPU and names no property, so no policy can give it a meaning."""
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,57}[A-Za-z0-9])?")


def is_label_name(text: str) -> bool:
    """Whether `text` can follow `gpu.` in a Kubernetes label key."""
    return _NAME.fullmatch(text) is not None
