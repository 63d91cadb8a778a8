"""JSON Patch (RFC 6902): the operations that we write, and how they look on the wire. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec


class Verb(StrEnum):
    """`op`."""

    ADD = "add"
    """A new member or element; `-` appends; an object's member that exists is replaced."""
    REPLACE = "replace"
    REMOVE = "remove"


Value = str | int | bool | None | list["Value"] | dict[str, "Value"]
"""What can stand in a patch of ours."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation; `value` is not written for a removal."""

    op: Verb
    path: str
    """A JSON Pointer (RFC 6901)."""
    value: Value = None


END: Final = "-"
"""The place behind an array's last element."""


def pointer(*tokens: str | int) -> str:
    """A JSON Pointer: `~` and `/` inside a token are escaped."""
    return "".join(
        [f"/{token}" if isinstance(token, int) else f"/{_escaped(token)}" for token in tokens]
    )


def _escaped(token: str) -> str:
    return token.replace("~", "~0").replace("/", "~1")


def encode_patch(operations: Iterable[Operation]) -> bytes:
    """The patch as a JSON array."""
    return msgspec.json.encode([_document(each) for each in operations])


def _document(operation: Operation) -> dict[str, Value]:
    document: dict[str, Value] = {"op": operation.op.value, "path": operation.path}
    if operation.op is not Verb.REMOVE:
        document["value"] = operation.value
    return document
