"""Canonical JSON (RFC 8785) of gpuwarden's documents, and SHA-256 over bytes.

Strings, booleans, null and integers below 2**53 only: no float ever reaches a
digest. It must not be used to re-make received bytes before they are verified.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import rfc8785

from gpuwarden.evidence.strict_json import MAX_DEPTH, MAX_INT, EvidenceError, encode_plain

Plain = None | bool | int | str | list["Plain"] | dict[str, "Plain"]
"""What is left of a document once structs are objects."""

CanonicalValue = msgspec.Struct | Mapping[str, object] | Sequence[object] | str | int | bool | None

_ENCODER: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
)


class CanonicalError(EvidenceError):
    """The value has no canonical form here: a float, a large integer, a foreign type."""


def canonical_json(value: CanonicalValue) -> bytes:
    """RFC 8785 form of structs, mappings, sequences and scalars; raises CanonicalError."""
    if isinstance(value, msgspec.Struct) and (found := encode_plain(value)) is not None:
        return found
    plain = _plain(value, 0)
    text = _ENCODER.encode(plain)
    # All-ASCII text has ASCII keys, whose code point order is the UTF-16 order that RFC 8785 wants.
    if text.isascii():
        return text.encode("ascii")
    try:
        return rfc8785.dumps(plain)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise CanonicalError(f"text must be valid Unicode: {type(error).__name__}") from None


def sha256_hex(data: bytes) -> str:
    """SHA-256 as 64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()


def tagged_digest(tag: str, document: CanonicalValue) -> str:
    """`v1:sha256:<hex>` over `tag`, a line feed and the canonical form: no two kinds collide."""
    digest = sha256_hex(b"%b\n%b" % (tag.encode("ascii"), canonical_json(document)))
    return f"v1:sha256:{digest}"


def _plain(value: object, depth: int) -> Plain:
    if depth > MAX_DEPTH:
        raise CanonicalError(f"value is nested deeper than {MAX_DEPTH} levels")
    match value:
        case None | bool() | str():
            return value
        case int():
            return _bounded(value)
        case msgspec.Struct():
            names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
            return {wire: _plain(getattr(value, name), depth + 1) for wire, name in names}
        case Mapping():
            return {_key(key): _plain(item, depth + 1) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item, depth + 1) for item in value]
        case _:
            raise CanonicalError(f"a {type(value).__name__} has no canonical form here")


def _bounded(value: int) -> int:
    if abs(value) > MAX_INT:
        raise CanonicalError("an integer is out of range, |n| must be below 2**53")
    return value


def _key(key: object) -> str:
    if isinstance(key, str):
        return key
    raise CanonicalError(f"an object key must be a string, got a {type(key).__name__}")
