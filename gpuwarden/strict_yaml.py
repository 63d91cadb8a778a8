"""YAML (and so JSON) read as its writer meant it, or refused. One reader for the whole product.

One document of the values that JSON has, or several where the caller takes them: no anchors,
aliases, tags or merge keys, each key a text and given once. Bytes, nodes, depth and the length of a
scalar are bounded, and so is the time. Dates stay text. Empty documents do not count. What the keys
mean is for the caller.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import yaml

from gpuwarden.finding import quoted

MAX_DEPTH: Final = 32
"""Mappings and lists inside each other; a Deployment has about 15 levels."""
MAX_NODES: Final = 50_000
"""Keys, scalars, lists and mappings; a policy of 1 MiB that lists UUIDs has half as many."""
MAX_SCALAR_CHARS: Final = 256 * 1024
"""Of one text; what Kubernetes allows for all annotations of an object."""
MAX_NUMBER_CHARS: Final = 64
_INTEGERS: Final = range(-(1 << 63), 1 << 64)
_MAX_PROBLEM_CHARS: Final = 200
_NUMBER: Final = "a number of JSON, at most 64 bits; quote a text"
_TAG: Final = "tag:yaml.org,2002:"
_NOT_RESOLVED: Final = frozenset({f"{_TAG}timestamp", f"{_TAG}value"})


class YamlError(ValueError):
    """The bytes are not one plain document."""

    def __init__(self, line: int | None, got: str, expected: str) -> None:
        self.line = line
        """From 1; None where it is not known."""
        self.got = got
        self.expected = expected
        where = "" if line is None else f"line {line}: "
        super().__init__(f"{where}got {got}; expected {expected}")


class Scalar(Enum):
    """What YAML sees in a scalar."""

    TEXT = auto()
    NUMBER = auto()
    """Decimal digits."""
    BOOLEAN = auto()
    NULL = auto()
    OTHER = auto()
    """A number in another notation."""


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


@dataclass(frozen=True, slots=True)
class Document:
    """One of several documents."""

    line: int
    """Where it begins."""
    value: object
    """Dicts, lists, text, numbers, booleans and None."""


def parse_tree(data: bytes, *, max_bytes: int) -> Value | None:
    """The document with the line of each value and scalars as written; None if it is empty.

    Raises YamlError.
    """
    node = _one(_compose(data, max_bytes))
    return None if node is None else _value(node)


def parse_plain(data: bytes, *, max_bytes: int) -> object:
    """The document as dicts, lists, text, numbers, booleans and None; None if it is empty.

    Raises YamlError.
    """
    node = _one(_compose(data, max_bytes))
    return None if node is None else _plain(node)


def parse_documents(data: bytes, *, max_bytes: int) -> tuple[Document, ...]:
    """Every document that is not empty, each as `parse_plain` has it; the bounds are of all.

    Raises YamlError.
    """
    found = _compose(data, max_bytes)
    return tuple(Document(x.start_mark.line + 1, _plain(x)) for x in found)


class _Loader(yaml.SafeLoader):
    """Composes nodes, and refuses what is not plain before anything recursive sees it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call] # the library's
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise YamlError(line, "an anchor or alias", "plain values")
        if event.tag is not None:
            raise YamlError(line, f"tag {quoted(event.tag)}", "values without tags")
        if self._depth >= MAX_DEPTH and isinstance(event, yaml.CollectionStartEvent):
            raise YamlError(line, "deep nesting", f"at most {MAX_DEPTH} levels")
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > MAX_SCALAR_CHARS:
            raise YamlError(line, "a long text", f"at most {MAX_SCALAR_CHARS} characters")
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise YamlError(line, "more values", f"at most {MAX_NODES} keys and values")
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _NOT_RESOLVED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _one(nodes: Iterable[yaml.Node]) -> yaml.Node | None:
    found: yaml.Node | None = None
    for node in nodes:
        if found is not None:
            raise YamlError(node.start_mark.line + 1, "a second document", "one document")
        found = node
    return found


def _compose(data: bytes, max_bytes: int) -> Iterator[yaml.Node]:
    """Every document that is not empty."""
    if len(data) > max_bytes:
        raise YamlError(None, f"more than {max_bytes} bytes", f"at most {max_bytes} bytes")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise YamlError(None, f"byte {error.start}", "UTF-8 text") from None
    try:
        loader = _Loader(text)
        while loader.check_node():
            node: yaml.Node | None = loader.get_node()
            if node is not None and not _is_empty(node):
                yield node
    except YamlError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = None if mark is None else mark.line + 1
        raise YamlError(line, _problem(error.problem), "YAML") from None
    except yaml.YAMLError as error:
        raise YamlError(None, quoted(str(error).partition("\n")[0]), "YAML") from None
    except (ValueError, OverflowError):
        # The library turns escapes and version numbers into characters and integers unseen.
        raise YamlError(None, "a number out of range", "YAML") from None


def _problem(text: str | None) -> str:
    """What the library reports; it repeats the writer's text."""
    if not text:
        return "something unreadable"
    line = text if text.isprintable() else ascii(text)
    return line if len(line) <= _MAX_PROBLEM_CHARS else f"{line[:_MAX_PROBLEM_CHARS]}…"


def _is_empty(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == f"{_TAG}null"


def _value(node: yaml.Node) -> Value:
    line = node.start_mark.line + 1
    match node:
        case yaml.ScalarNode():
            return ScalarValue(node.value, _scalar(node), line)
        case yaml.SequenceNode():
            return ListValue(tuple(_value(item) for item in node.value), line)
        case _:
            return MapValue({key: _value(value) for key, value in _entries(node)}, line)


def _plain(node: yaml.Node) -> object:
    match node:
        case yaml.ScalarNode():
            return _plain_scalar(node)
        case yaml.SequenceNode():
            return [_plain(item) for item in node.value]
        case _:
            return {key: _plain(value) for key, value in _entries(node)}


def _plain_scalar(node: yaml.ScalarNode) -> object:
    if _scalar(node) is Scalar.TEXT:
        return node.value
    value: object = None
    # Base 60 is a number for YAML 1.1 alone: what people and Kubernetes read is the text 22:22.
    if ":" not in node.value:
        try:
            value = yaml.constructor.SafeConstructor().construct_object(node)
        except ValueError:
            raise _no_number(node) from None
    match value:
        case bool():
            return value
        case int() if value in _INTEGERS:
            return value
        case float() if math.isfinite(value):
            return value
        case None if node.tag == f"{_TAG}null":
            return None
        case _:
            raise _no_number(node)


def _no_number(node: yaml.ScalarNode) -> YamlError:
    return YamlError(node.start_mark.line + 1, quoted(node.value), _NUMBER)


def _entries(node: yaml.Node) -> Iterator[tuple[str, yaml.Node]]:
    seen: set[str] = set()
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise YamlError(line, "a complex key", "plain keys")
        if key.tag != f"{_TAG}str":
            raise YamlError(line, f"key {quoted(key.value)}", "text as key; quote it")
        _scalar(key)
        if key.value in seen:
            raise YamlError(line, f"key {quoted(key.value)} again", "each key once")
        seen.add(key.value)
        yield key.value, value


def _scalar(node: yaml.ScalarNode) -> Scalar:
    match node.tag.removeprefix(_TAG):
        case "str":
            _refuse_surrogates(node)
            return Scalar.TEXT
        case "int" | "float" if len(node.value) > MAX_NUMBER_CHARS:
            raise _no_number(node)
        case "int" if _is_decimal(node.value):
            return Scalar.NUMBER
        case "int" | "float":
            return Scalar.OTHER
        case "bool":
            return Scalar.BOOLEAN
        case "null":
            return Scalar.NULL
        case _:
            raise YamlError(node.start_mark.line + 1, quoted(node.value), "text; quote it")


def _refuse_surrogates(node: yaml.ScalarNode) -> None:
    try:
        node.value.encode("utf-8")
    except UnicodeEncodeError:
        line = node.start_mark.line + 1
        raise YamlError(line, "half of a surrogate pair", "text of whole characters") from None


def _is_decimal(text: str) -> bool:
    return text == "0" or (text.isascii() and text.isdigit() and text[0] != "0")
