"""Decodes received JSON into documents and refuses what two parsers could read differently.

That is: duplicate keys, floats, large integers, unknown fields, lone surrogates and
deep nesting. It must not repair, default or canonicalise: what is signed stays the
bytes as received.
"""

import json
import re
from collections import Counter
from typing import Final, Never, TypeVar

import msgspec

from gpuwarden.evidence import document_codec
from gpuwarden.evidence.errors import DecodeError
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


def decode(data: bytes, type_: type[T], *, max_bytes: int) -> T:
    """Decode `data` as exactly one `type_`; raises DecodeError naming the path or key."""
    if len(data) <= max_bytes and (found := document_codec.decode(data, type_)) is not None:
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
