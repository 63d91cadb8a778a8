"""Documents to and from their canonical bytes in one pass, where that is provably the same.

Documents are structs and tuples of strings, booleans, null and integers. For those,
msgspec's sorted encoding is the RFC 8785 form, and bytes that equal the encoding of what was
decoded from them have no duplicate key, no float, no unknown field and no second reading.
Whatever is not like that gets None: `canonical` and `strict_json` then go the long way,
which also words the errors. A tenth of their cost, and never another result.
"""

import re
from functools import cache
from typing import Final, TypeVar

import msgspec
from msgspec import inspect

T = TypeVar("T")

_LONG: Final = b"0" * 16
"""A run of digits that may be an integer beyond 2**53."""
_LONG_INTEGER: Final = re.compile(rb"[:,\[]-?[0-9]{16}")
"""The same where an integer can begin; what it finds inside a string goes the long way too."""
_DIGITS_ALIKE: Final = bytes(0x30 if 0x30 <= x <= 0x39 else 0x20 for x in range(256))  # noqa: PLR2004 - "0" to "9"
ENCODER: Final = msgspec.json.Encoder(order="sorted")
"""Writes documents of plain fields in their RFC 8785 form."""
FAILED: Final = (msgspec.MsgspecError, RecursionError, UnicodeError, TypeError)
"""What msgspec raises for what it cannot read or write."""


def encode(value: msgspec.Struct) -> bytes | None:
    """The RFC 8785 form of a document, or None where this is not the way to it."""
    if not _is_plain(type(value)):
        return None
    try:
        data = ENCODER.encode(value)
        _decoder(type(value)).decode(data)  # fields that hold what their types do not say
    except FAILED:
        return None
    return None if may_be_long(data) else data


def decode(data: bytes, type_: type[T]) -> T | None:
    """The document whose RFC 8785 form `data` is, or None where this is not the way to it."""
    if not _is_plain(type_):  # type: ignore[arg-type] # types are hashable
        return None
    try:
        value = _decoder(type_).decode(data)  # type: ignore[arg-type] # types are hashable
        same = ENCODER.encode(value) == data
    except FAILED:
        return None
    return value if same and not may_be_long(data) else None


def may_be_long(data: bytes) -> bool:
    """Whether an integer beyond 2**53 may stand in this JSON, which must be compact."""
    found = _LONG in data.translate(_DIGITS_ALIKE)
    return found and _LONG_INTEGER.search(data) is not None


@cache
def _decoder(type_: type[T]) -> msgspec.json.Decoder[T]:
    return msgspec.json.Decoder(type_)


@cache
def _is_plain(type_: type) -> bool:
    return issubclass(type_, msgspec.Struct) and _plain(inspect.type_info(type_))


def _plain(found: inspect.Type) -> bool:
    match found:
        case inspect.StrType() | inspect.BoolType() | inspect.IntType() | inspect.NoneType():
            return True
        case inspect.UnionType(types=types):
            return all(map(_plain, types))
        case inspect.VarTupleType(item_type=item):
            return _plain(item)
        case inspect.StructType(cls=cls, fields=fields):
            config = cls.__struct_config__
            odd = config.omit_defaults or config.array_like or config.tag is not None
            names = all(field.encode_name.isascii() for field in fields)
            return not odd and names and all(_plain(field.type) for field in fields)
        case _:
            return False
