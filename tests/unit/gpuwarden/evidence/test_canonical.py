"""Canonical JSON: RFC 8785 for strings, booleans, null, integers; everything else is refused."""

from collections.abc import Callable
from decimal import Decimal
from enum import IntEnum, StrEnum

import msgspec
import pytest

from gpuwarden.evidence.canonical import (
    CanonicalError,
    CanonicalValue,
    canonical_json,
    sha256_hex,
    tagged_digest,
)
from gpuwarden.evidence.model import WitnessedCheckpoint


class Level(StrEnum):
    L0 = "L0"


class Number(IntEnum):
    ONE = 1


class Box(msgspec.Struct):
    inside: object


def test_a_struct_is_written_with_its_wire_names() -> None:
    class Nested(msgspec.Struct, rename="camel"):
        long_name: tuple[WitnessedCheckpoint, ...]
        other: str | None = None

    seen = WitnessedCheckpoint(origin="o", checkpoint="c")
    assert canonical_json(Nested(long_name=(seen,))) == (
        b'{"longName":[{"checkpoint":"c","origin":"o"}],"other":null}'
    )


class Row(msgspec.Struct, array_like=True):
    a: int = 1


class Sparse(msgspec.Struct, omit_defaults=True):
    a: int = 1


class Tagged(msgspec.Struct, tag="kind"):
    a: int = 1


@pytest.mark.parametrize("odd", [Row(), Sparse(), Tagged()])
def test_a_struct_has_its_fields_however_the_library_would_write_it(odd: msgspec.Struct) -> None:
    assert canonical_json(odd) == b'{"a":1}'


def test_keys_are_sorted_by_utf16_units() -> None:
    # RFC 8785, section 3.2.3: the surrogates of U+1F600 sort before U+FB33.
    value = {"\ufb33": 1, "\U0001f600": 2, "\u20ac": 3, "a": 4}
    assert canonical_json(value).decode() == '{"a":4,"\u20ac":3,"\U0001f600":2,"\ufb33":1}'


def test_strings_keep_what_need_not_be_escaped() -> None:
    assert canonical_json('\x00\x1f\x7f\b\t\n\f\r"\\/\xe9\u2028') == (
        b'"\\u0000\\u001f\x7f\\b\\t\\n\\f\\r\\"\\\\/' + "\xe9\u2028".encode() + b'"'
    )


def test_enumerations_are_their_values() -> None:
    assert canonical_json([Level.L0, Number.ONE, True, None]) == b'["L0",1,true,null]'


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": 1.0}, "a float has no canonical form"),
        (Box(1.0), "a float has no canonical form"),
        (Box({1, 2}), "a set has no canonical form"),
        ({"a": [float("nan")]}, "a float has no canonical form"),
        ({"a": b"x"}, "a bytes has no canonical form"),
        ({"a": {1, 2}}, "a set has no canonical form"),
        ([Decimal(1)], "a Decimal has no canonical form"),
        ({1: "a"}, "an object key must be a string, got a int"),
        (2**53, "out of range"),
        (-(2**53), "out of range"),
        ({"a": "\ud800"}, "valid Unicode"),
        ({"\udfff": 1}, "valid Unicode"),
    ],
)
def test_refuses_what_has_no_one_form(value: object, message: str) -> None:
    with pytest.raises(CanonicalError, match=message):
        canonical_json(value)  # type: ignore[arg-type] # the wrong type is the point


def test_the_largest_integers() -> None:
    assert canonical_json([2**53 - 1, -(2**53) + 1]) == b"[9007199254740991,-9007199254740991]"


def test_nesting_is_bounded() -> None:
    value: list[object] = []
    for _ in range(32):
        value = [value]
    assert canonical_json(value)
    with pytest.raises(CanonicalError, match="nested deeper than 32"):
        canonical_json([value])


@pytest.mark.parametrize("wrap", [lambda x: {"a": x}, Box], ids=["mapping", "struct"])
def test_nesting_of_objects_is_bounded(wrap: Callable[[object], CanonicalValue]) -> None:
    value: CanonicalValue = None
    for _ in range(32):
        value = wrap(value)
    assert canonical_json(value).count(b"{") == 32
    with pytest.raises(CanonicalError, match="nested deeper than 32"):
        canonical_json(wrap(value))


def test_digests() -> None:
    assert sha256_hex(b"abc").startswith("ba7816bf8f01cfea")
    assert tagged_digest("a", "b") == "v1:sha256:" + sha256_hex(b'a\n"b"')
