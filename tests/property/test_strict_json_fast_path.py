"""The short way to and from canonical bytes never gives another result than the long one."""

from typing import Any

import msgspec
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.evidence import strict_json
from gpuwarden.evidence.canonical import CanonicalError, canonical_json
from gpuwarden.evidence.model import Document, Evidence
from gpuwarden.evidence.strict_json import MAX_INT, DecodeError, decode, parse
from tests.builders.evidence import Scene


class Leaf(Document, frozen=True):
    zeta: str
    alpha_beta: int | None
    yes: bool


class Tree(Document, frozen=True):
    name: str | None
    leaves: tuple[Leaf, ...]
    words: tuple[str, ...]


class Open(Document, frozen=True):
    anything: Any


class Short(msgspec.Struct, omit_defaults=True):
    name: str = "x"


class Wide(msgspec.Struct, rename={"name": "näme"}):
    name: str


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
LEAVES = st.builds(
    Leaf,
    zeta=TEXT,
    alpha_beta=st.none() | st.integers(-(2**53) + 1, MAX_INT),
    yes=st.booleans(),
)
TREES = st.builds(
    Tree,
    name=st.none() | TEXT,
    leaves=st.lists(LEAVES, max_size=3).map(tuple),
    words=st.lists(TEXT, max_size=3).map(tuple),
)


def the_long_way(tree: Tree) -> bytes:
    return rfc8785.dumps(msgspec.to_builtins(tree))


@given(TREES)
def test_bytes_are_those_of_rfc_8785(tree: Tree) -> None:
    assert canonical_json(tree) == the_long_way(tree)
    found = strict_json.encode_plain(tree)
    assert found in {None, the_long_way(tree)}


@given(TREES)
def test_canonical_bytes_are_read_back(tree: Tree) -> None:
    data = the_long_way(tree)
    assert decode(data, Tree, max_bytes=len(data)) == tree
    assert strict_json.decode_plain(data, Tree) in {None, tree}


@given(TREES, st.data())
def test_a_changed_byte_is_judged_as_the_long_way_judges_it(
    tree: Tree, data: st.DataObject
) -> None:
    good = the_long_way(tree)
    at = data.draw(st.integers(0, len(good) - 1))
    piece = data.draw(st.sampled_from([b"", b" ", b"0", b'"', b",", b"9" * 17, b"1.0", b"\xff"]))
    changed = good[:at] + piece + good[at + data.draw(st.integers(0, 1)) :]
    found = strict_json.decode_plain(changed, Tree)
    if found is not None:
        value = parse(changed, max_bytes=len(changed))
        assert msgspec.convert(value, Tree, strict=True) == found


LEAF = b'{"alphaBeta":1,"yes":true,"zeta":"z"}'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"yes":true', b'"yes":true,"yes":true'),
        (b'"yes":true', b'"yes": true'),
        (b'"alphaBeta":1,"yes":true', b'"yes":true,"alphaBeta":1'),
        (b":1", b":1.0"),
        (b":1", b":-0"),
        (b":1", b":9007199254740992"),
        (b":1", b":1" + b"0" * 400),
        (b'"z"', b'":1234567890123456"'),
        (b'"z"', b'"\\u007a"'),
        (b'"z"', b'"\\ud800"'),
        (b'"z"', b'"\xff"'),
        (b'"zeta"', b'"zeta":"z","other"'),
        (b"}", b"}}"),
        (b"{", b"[" * 100_000),
    ],
)
def test_only_exact_bytes_go_the_short_way(before: bytes, after: bytes) -> None:
    assert strict_json.decode_plain(LEAF, Leaf) == Leaf(zeta="z", alpha_beta=1, yes=True)
    assert strict_json.decode_plain(LEAF.replace(before, after), Leaf) is None


@pytest.mark.parametrize("type_", [Open, Short, Wide, dict, int])
def test_types_that_could_hold_anything_else_do_not_go_it(type_: Any) -> None:
    assert strict_json.decode_plain(b'{"name":"y"}', type_) is None


def test_fields_that_hold_what_their_types_do_not_say_do_not_either() -> None:
    wrong: list[Any] = [1.5, {"a": 1}, object(), "\ud800"]
    for value in wrong:
        assert strict_json.encode_plain(Leaf(zeta=value, alpha_beta=1, yes=True)) is None
    with pytest.raises(CanonicalError):
        canonical_json(Leaf(zeta=wrong[0], alpha_beta=1, yes=True))
    with pytest.raises(CanonicalError):
        canonical_json(Leaf(zeta="", alpha_beta=2**53, yes=True))
    assert strict_json.encode_plain(Open(anything=1)) is None
    digits = Leaf(zeta="7" * 64, alpha_beta=1, yes=True)
    assert strict_json.encode_plain(digits) == canonical_json(digits)


def test_evidence_goes_the_short_way_and_equals_the_long_one() -> None:
    evidence = Scene().accepted().evidence
    data = strict_json.encode_plain(evidence)
    assert data == rfc8785.dumps(msgspec.to_builtins(evidence))
    assert data is not None
    assert strict_json.decode_plain(data, Evidence) == evidence
    with pytest.raises(DecodeError):
        decode(data, Evidence, max_bytes=len(data) - 1)
