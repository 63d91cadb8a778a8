"""Decodes received JSON into documents and refuses what two parsers could read differently.

That is: duplicate keys, floats, large integers, unknown fields, lone surrogates and
deep nesting. It must not repair, default or canonicalise: what is signed stays the
bytes as received.
"""

import json
import re
from collections import Counter
from functools import cache
from typing import Final, Never, TypeVar

import msgspec
from msgspec import inspect

from gpuwarden.redaction import without_secrets

MAX_DEPTH: Final = 32
"""Objects and arrays inside each other; the deepest document has 6 levels."""

MAX_INT: Final = 2**53 - 1
"""Largest magnitude that every JSON reader keeps exact (RFC 8259, section 6)."""

_QUOTE: Final = 80
_MESSAGE: Final = 120
_BEYOND: Final = 4096
"""What is looked at behind the limit, so that no secret gets through by being cut."""
_MAX_INT_CHARS: Final = len(str(-MAX_INT))
# An unterminated string matches up to the end, so that the search never starts over.
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_BRACKETS: Final = b"[]{}"
_NO_BRACKETS: Final = bytes(x for x in range(256) if x not in _BRACKETS)

T = TypeVar("T")


class EvidenceError(Exception):
    """Parent of the errors of this package: bytes that are wrong before anybody asks their meaning.

    Each is undecidable input, not a denial: the Verifier turns it into the one reason code of its
    step. Messages name the place and what was expected, quote at most 80 characters of the input,
    escaped, and never hold a key.
    """


class DecodeError(EvidenceError):
    """The bytes are not the strict JSON document that was expected."""


def decode(data: bytes, type_: type[T], *, max_bytes: int) -> T:
    """Decode `data` as exactly one `type_`; raises DecodeError naming the path or key."""
    if len(data) <= max_bytes and (found := decode_plain(data, type_)) is not None:
        return found
    value = parse(data, max_bytes=max_bytes)
    try:
        return msgspec.convert(value, type_, strict=True)
    except msgspec.ValidationError as error:
        raise DecodeError(quote(str(error), _MESSAGE)) from None


def parse(data: bytes, *, max_bytes: int) -> object:
    """Parse `data` into dicts, lists, strings, booleans, integers and None; raises DecodeError."""
    if len(data) > max_bytes:
        raise DecodeError(f"document has {len(data)} bytes, at most {max_bytes} are allowed")
    _refuse_depth(data)
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object,
            parse_float=_refuse_float,
            parse_constant=_refuse_float,
            parse_int=_integer,
        )
    except UnicodeDecodeError as error:
        raise DecodeError(f"document is not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise DecodeError(f"document is not JSON at character {error.pos}: {error.msg}") from None
    if b"\\u" in data:
        _refuse_surrogates(value)
    return value


def quote(text: str, limit: int = _QUOTE) -> str:
    """At most `limit` characters of `text` for messages and logs: printable ASCII, no secrets."""
    text = without_secrets(text[: limit + _BEYOND])
    shown = text[:limit].encode("unicode_escape").decode("ascii")
    return shown if len(shown) <= limit and len(text) <= limit else f"{shown[: limit - 3]}..."


def _refuse_depth(data: bytes) -> None:
    """Count brackets outside strings before a recursive parser sees them."""
    depth = 0
    for bracket in _STRING.sub(b"", data).translate(None, _NO_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_DEPTH:
            raise DecodeError(f"document is nested deeper than {MAX_DEPTH} levels")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        [(key, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise DecodeError(f"key '{quote(key)}' appears twice in one object")
    return result


def _refuse_float(text: str) -> Never:
    raise DecodeError(f"number {quote(text)} is not an integer; only integers are allowed")


def _integer(text: str) -> int:
    if len(text) <= _MAX_INT_CHARS and abs(value := int(text)) <= MAX_INT:
        return value
    raise DecodeError(f"integer {quote(text)} is out of range, |n| must be below 2**53")


def _refuse_surrogates(value: object) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise DecodeError("a string holds a lone surrogate; text must be valid Unicode") from None


# --- the fast path
#
# Documents are structs and tuples of strings, booleans, null and integers. For those, msgspec's
# sorted encoding is the RFC 8785 form, and bytes that equal the encoding of what was decoded from
# them have no duplicate key, no float, no unknown field and no second reading. For anything else
# these functions return None: `decode` above and `canonical` then take the long way, which also
# words the errors. The fast path costs a tenth and never has another result.

_LONG: Final = b"0" * 16
"""A run of digits that may be an integer beyond 2**53."""
_LONG_INTEGER: Final = re.compile(rb"[:,\[]-?[0-9]{16}")
"""The same where an integer can begin; what it finds inside a string goes the long way too."""
_DIGITS_ALIKE: Final = bytes(0x30 if 0x30 <= x <= 0x39 else 0x20 for x in range(256))  # noqa: PLR2004 - "0" to "9"
ENCODER: Final = msgspec.json.Encoder(order="sorted")
"""Writes documents of plain fields in their RFC 8785 form."""
FAILED: Final = (msgspec.MsgspecError, RecursionError, UnicodeError, TypeError)
"""What msgspec raises for what it cannot read or write."""


def encode_plain(value: msgspec.Struct) -> bytes | None:
    """The RFC 8785 form of a document, or None where this is not the way to it."""
    if not _is_plain(type(value)):
        return None
    try:
        data = ENCODER.encode(value)
        _decoder(type(value)).decode(data)  # fields that hold what their types do not say
    except FAILED:
        return None
    return None if may_be_long(data) else data


def decode_plain(data: bytes, type_: type[T]) -> T | None:
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
