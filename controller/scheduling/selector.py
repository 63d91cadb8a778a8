"""GPU selectors: `model=…,memory>=40Gi,mig=false` (formats design, section 5). Pure.

All terms must hold, each about an attested fact of one device. An unknown key, a
type that does not compare or a repeated blank term is an error, never skipped.
"""

import re
from dataclasses import dataclass

from controller.scheduling.device_facts import FACTS, ORDERED, PARSERS, Device, Fact
from controller.scheduling.finding import WishTextError

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
    """Read a selector; raises WishTextError that names the term and what was expected."""
    if len(text) > _MAX_CHARS:
        raise WishTextError(f"at most {_MAX_CHARS} characters")
    parts = text.split(",")
    if len(parts) > _MAX_TERMS:
        raise WishTextError(f"at most {_MAX_TERMS} terms")
    terms = tuple(_term(part) for part in parts)
    return Selector(terms, ",".join(term.text for term in terms))


def _term(text: str) -> Term:
    match = _TERM.fullmatch(text)
    if match is None:
        raise WishTextError(f"key, operator and value in term {text[:80]!r}, such as memory>=40Gi")
    key, operator, value = match[1], match[2].strip(), match[3]
    if key not in FACTS:
        raise WishTextError(f"a key out of {', '.join(FACTS)}, not {key!r}")
    if operator not in {"=", "!=", "in"} and key not in ORDERED:
        raise WishTextError(f"one of = != in for {key}, which has no order")
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
        raise WishTextError(f"{key} in (a|b)")
    choices = [choice.strip() for choice in value[1:-1].split("|")]
    if len(choices) > _MAX_CHOICES:
        raise WishTextError(f"at most {_MAX_CHOICES} choices for {key}")
    return choices


def _value(key: str, text: str) -> Fact:
    if not text or len(text) > _MAX_VALUE_CHARS or not text.isprintable() or _SYNTAX & set(text):
        raise WishTextError(
            f"1 to {_MAX_VALUE_CHARS} printable characters without = < > ! ( ) | as value of {key}"
        )
    try:
        return PARSERS.get(key, str.casefold)(text)
    except WishTextError as error:
        raise WishTextError(f"{error} for {key}, not {text[:80]!r}") from None


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
