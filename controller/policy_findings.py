"""Checks a parsed document against a msgspec type and reports every fault, not the first. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
from msgspec import inspect

from controller.scheduling.finding import shown as shown_key

_SHOWN_CHARS = 80


@dataclass(frozen=True, slots=True)
class PolicyFinding:
    """One fault: where, what stands there, what was expected."""

    key: str
    value: str
    expected: str

    def __str__(self) -> str:
        return f"{self.key}: {self.value}, expected {self.expected}"


def shown(value: object) -> str:
    """A value on one printable line of bounded length."""
    if isinstance(value, dict | list):
        return f"a {'mapping' if isinstance(value, dict) else 'list'} of {len(value)}"
    text = ascii(value)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"


def document_findings(value: object, type_: type[msgspec.Struct]) -> tuple[PolicyFinding, ...]:
    """Every fault of `value` (plain lists, mappings and scalars) as a `type_`."""
    return tuple(_check(value, inspect.type_info(type_), ""))


def _check(value: object, wanted: inspect.Type, path: str) -> Iterator[PolicyFinding]:
    if isinstance(wanted, inspect.UnionType):
        if value is not None:
            (inner,) = (each for each in wanted.types if not isinstance(each, inspect.NoneType))
            yield from _check(value, inner, path)
    elif isinstance(wanted, inspect.StructType) and isinstance(value, dict):
        yield from _check_struct(value, wanted, path)
    elif isinstance(wanted, inspect.ListType) and isinstance(value, list):
        yield from _check_length(value, wanted, path)
        for index, item in enumerate(value):
            yield from _check(item, wanted.item_type, f"{path}[{index}]")
    elif isinstance(wanted, inspect.DictType) and isinstance(value, dict):
        for key, item in value.items():
            yield from _check(item, wanted.value_type, f"{path}.{shown_key(str(key))}")
    else:
        yield from _check_leaf(value, wanted, path)


def _check_struct(
    value: dict[object, object], wanted: inspect.StructType, path: str
) -> Iterator[PolicyFinding]:
    fields = {field.encode_name: field for field in wanted.fields}
    for key, item in value.items():
        where = f"{path}.{key}" if path else str(key)
        if key in fields:
            yield from _check(item, fields[str(key)].type, where)
        else:
            expected = f"a key out of {', '.join(fields)}"
            yield PolicyFinding(shown_key(where), shown(item), expected)
    for name, field in fields.items():
        if field.required and name not in value:
            where = f"{path}.{name}" if path else name
            yield PolicyFinding(where, "missing", _expectation(field.type))


def _check_length(
    value: list[object], wanted: inspect.ListType, path: str
) -> Iterator[PolicyFinding]:
    least, most = wanted.min_length or 0, wanted.max_length
    if len(value) < least or (most is not None and len(value) > most):
        yield PolicyFinding(path, shown(value), f"{least} to {most} elements")


def _check_leaf(value: object, wanted: inspect.Type, path: str) -> Iterator[PolicyFinding]:
    if not _fits(value, wanted):
        yield PolicyFinding(path or "the document", shown(value), _expectation(wanted))


def _fits(value: object, wanted: inspect.Type) -> bool:
    match wanted:
        case inspect.LiteralType():
            return isinstance(value, str) and value in wanted.values
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.StrType():
            least, most = wanted.min_length or 0, wanted.max_length
            return isinstance(value, str) and least <= len(value) <= (most or len(value))
        case _:
            return False


def _expectation(wanted: inspect.Type) -> str:
    match wanted:
        case inspect.LiteralType():
            return " or ".join(map(str, wanted.values))
        case inspect.BoolType():
            return "true or false"
        case inspect.StrType():
            most = "" if wanted.max_length is None else f" of 1 to {wanted.max_length} characters"
            return f"a text{most} (quote it if it looks like a number)"
        case inspect.ListType():
            return "a list"
        case _:
            return "a mapping"
