"""What came over the wire is written again, in ASCII, or it is missing."""

import pytest

from gpuwarden.support.part import Part, missing
from gpuwarden.support.told_parts import told_part


@pytest.mark.parametrize(
    ("name", "content", "kept"),
    [
        ("a.json", b'{"a":"\xe2\x80\xae\x7f"}', b'{\n "a": "\\u202e\\u007f"\n}\n'),
        ("a.jsonl", b'{"a":1}\n{"b":"\xc3\xa4"}\n', b'{"a":1}\n{"b":"\\u00e4"}\n'),
        ("a.prom", b'gpuwarden_ready 1.0\nx{a="\x1b"} 1\n', b"gpuwarden_ready 1.0\n"),
    ],
)
def test_it_is_in_our_spelling(name: str, content: bytes, kept: bytes) -> None:
    assert told_part(Part(name, content, withheld=("a\x1bb",), left_out=2)) == Part(
        name, kept, withheld=("a?b",), left_out=2
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.json", b"no json"), ("a.jsonl", b"{}\nno"), ("a.json", b"\xff"), ("a.json", b"[" * 9**6)],
)
def test_what_it_is_not_is_missing(name: str, content: bytes) -> None:
    part = told_part(Part(name, content))
    assert part.content is None
    assert part.missing.startswith("is not what its name says")


def test_a_reason_is_bounded_and_printable() -> None:
    part = told_part(missing("a.json", "\x1b[2J" + "x" * 1000))
    assert part.missing.startswith("?[2Jxxx")
    assert len(part.missing) == 300
