"""Reads the configuration file into raw values with their lines; knows no keys.

YAML 1.1 is read as the person meant it, or refused: no aliases, tags, repeated keys or
further documents, and a plain word that YAML takes for something else than the key
wants (`on`, `12`, `2024-01-01`) is an error, not a conversion.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import yaml

from gpuwarden.settings.finding import Finding, SettingsError, quoted

MAX_BYTES = 256 << 10
_MAX_DEPTH = 16
_TAG = "tag:yaml.org,2002:"
_MERGE = f"{_TAG}merge"


class Scalar(Enum):
    """What YAML sees in a scalar."""

    TEXT = auto()
    NUMBER = auto()
    BOOLEAN = auto()
    NULL = auto()
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class ScalarValue:
    """A scalar as it was written, without quotes."""

    text: str
    type: Scalar
    line: int


@dataclass(frozen=True, slots=True)
class ListValue:
    """A sequence."""

    items: tuple["Value", ...]
    line: int


@dataclass(frozen=True, slots=True)
class MapValue:
    """A mapping; keys are text."""

    entries: Mapping[str, "Value"]
    line: int


Value = ScalarValue | ListValue | MapValue


def parse_yaml(data: bytes, name: str) -> MapValue:
    """Parse a file's bytes; raises SettingsError naming file and line."""
    if len(data) > MAX_BYTES:
        raise _error(name, None, f"{len(data)} bytes", f"at most {MAX_BYTES} bytes")
    try:
        text = data.decode("utf-8")
        _refuse_events(text, name)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise _error(name, None, f"byte {error.start}", "UTF-8 text") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "something unreadable"
        raise _error(name, mark, problem, "YAML") from None
    if node is None:
        return MapValue({}, 1)
    value = _convert(node, name)
    if not isinstance(value, MapValue):
        raise _error(name, node.start_mark, "something else", "a mapping of keys")
    return value


def _refuse_events(text: str, name: str) -> None:
    """Look at the flat stream of events before anything recursive does."""
    depth = documents = 0
    for event in _events(text):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _error(name, event.start_mark, "an anchor or alias", "plain values")
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise _error(name, event.start_mark, "deep nesting", f"at most {_MAX_DEPTH} levels")
        if documents > 1:
            raise _error(name, event.start_mark, "a second document", "one document")


def _events(text: str) -> Iterator[Any]:
    yield from yaml.parse(text, Loader=yaml.SafeLoader)


def _convert(node: yaml.Node, name: str) -> Value:
    line = node.start_mark.line + 1
    match node:
        case yaml.ScalarNode():
            return ScalarValue(node.value, _scalar_type(node, name), line)
        case yaml.SequenceNode():
            return ListValue(tuple(_convert(item, name) for item in node.value), line)
        case _:
            return MapValue(_entries(node, name), line)


def _entries(node: yaml.Node, name: str) -> dict[str, Value]:
    entries: dict[str, Value] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
            raise _error(name, key.start_mark, "a complex or merge key", "plain keys")
        if key.value in entries:
            raise _error(name, key.start_mark, f"key {quoted(key.value)} again", "each key once")
        entries[key.value] = _convert(value, name)
    return entries


def _scalar_type(node: yaml.ScalarNode, name: str) -> Scalar:
    match node.tag.removeprefix(_TAG):
        case "str":
            return Scalar.TEXT
        case "int" if node.value.isascii() and node.value.isdigit() and node.value[:1] != "0":
            return Scalar.NUMBER
        case "int":
            return Scalar.NUMBER if node.value == "0" else Scalar.OTHER
        case "bool":
            return Scalar.BOOLEAN
        case "null":
            return Scalar.NULL
        case "float" | "timestamp" | "value" | "merge":
            return Scalar.OTHER
        case _:
            raise _error(name, node.start_mark, f"tag {quoted(node.tag)}", "values without tags")


def _error(name: str, mark: Any, got: str, expected: str) -> SettingsError:  # noqa: ANN401 -- PyYAML's marks are untyped
    where = f"line {mark.line + 1}" if mark is not None else ""
    return SettingsError([Finding(name, where, got, expected)])
