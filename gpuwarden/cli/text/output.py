"""What a command prints for programs: JSON and YAML of the controller's own messages.

Keys are the protocol's in camelCase and always all there; embedded documents are
shown as objects. Pure: returns text.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Any, Final

import yaml
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from gpuwarden.cli.text.terminal import shown


class Format(StrEnum):
    """Value of `-o`."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


STRUCTURED: Final = frozenset({Format.JSON, Format.YAML})

_DOCUMENTS: Final = frozenset({"document", "identityDocument", "pinDocument"})


def plain(message: Message) -> dict[str, Any]:
    """A message as dicts and lists."""
    found: dict[str, Any] = MessageToDict(message, always_print_fields_with_no_presence=True)
    _open_documents(found)
    return found


def structured(value: object, format_: Format) -> str:
    """`value` as JSON or YAML; ASCII only, so no terminal sees a control character."""
    if format_ is Format.YAML:
        return yaml.safe_dump(value, sort_keys=False, allow_unicode=False)
    return f"{json.dumps(value, indent=2)}\n".replace("\x7f", "\\u007f")


def printed(found: object, output: Format, *, names: Iterable[str], text: Callable[[], str]) -> str:
    """What a command prints: `found`, a message or plain values, as JSON or YAML; or the names.

    Else `text`, which is for people and has what is not printable escaped.
    """
    if output in STRUCTURED:
        return structured(plain(found) if isinstance(found, Message) else found, output)
    if output is Format.NAME:
        return "".join(f"{shown(name)}\n" for name in names)
    return text()


def json_line(value: object) -> str:
    """`value` as one line of JSON, for streams."""
    return f"{json.dumps(value)}\n".replace("\x7f", "\\u007f")


def _open_documents(found: dict[str, Any]) -> None:
    for part in _objects(found):
        for key in _DOCUMENTS & part.keys():
            part[key] = _opened(part[key])


def _objects(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from _objects(item)
    elif isinstance(value, list):
        for item in value:
            yield from _objects(item)


def _opened(text: str) -> object:
    """The document as an object; null where there is none, the text where it is not JSON."""
    if not text:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
