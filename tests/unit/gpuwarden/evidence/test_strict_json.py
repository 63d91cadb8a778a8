"""Strict JSON: what two parsers could read differently is refused, and errors stay short."""

from typing import Any

import msgspec
import pytest

from gpuwarden.evidence.model import Document, Hello
from gpuwarden.evidence.strict_json import DecodeError, decode, encode_plain, parse, quote

HELLO = {
    "protocol": 1,
    "agentVersion": "0.1.0",
    "instanceId": "a" * 32,
    "bootId": "b",
    "nodeName": "n1",
    "checkpoints": [{"origin": "prod/0", "checkpoint": "text"}],
}


def encoded(**changes: object) -> bytes:
    return msgspec.json.encode({**HELLO, **changes})


def refusal(data: bytes, *, max_bytes: int = 10_000_000) -> str:
    with pytest.raises(DecodeError) as caught:
        decode(data, Hello, max_bytes=max_bytes)
    return str(caught.value)


def test_decodes_a_document() -> None:
    hello = decode(encoded(), Hello, max_bytes=1000)
    assert hello.node_name == "n1"
    assert hello.checkpoints[0].origin == "prod/0"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"extra": 1}, "Object contains unknown field `extra`"),
        ({"checkpoints": [{"origin": 7, "checkpoint": ""}]}, "got `int` - at `$.checkpoints[0].or"),
        ({"protocol": "1"}, "Expected `int`, got `str` - at `$.protocol`"),
        ({"protocol": True}, "Expected `int`, got `bool`"),
        ({"nodeName": None}, "Expected `str`, got `null`"),
    ],
)
def test_names_the_path_and_what_was_expected(changes: dict[str, object], message: str) -> None:
    assert message in refusal(encoded(**changes))


def test_a_missing_field_is_named() -> None:
    assert "missing required field `protocol`" in refusal(b"{}")


def test_size_is_bounded_before_parsing() -> None:
    data = encoded()
    assert decode(data, Hello, max_bytes=len(data)).protocol == 1
    assert refusal(data, max_bytes=len(data) - 1) == (
        f"document has {len(data)} bytes, at most {len(data) - 1} are allowed"
    )


@pytest.mark.parametrize("data", [b"\xff", b'"\xed\xa0\x80"', b'"\xc0\x80"'])
def test_bytes_must_be_utf8(data: bytes) -> None:
    assert "not UTF-8" in refusal(data)


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_deep_nesting_does_not_reach_the_parser(opening: bytes) -> None:
    assert refusal(opening * 500_000) == "document is nested deeper than 32 levels"


def test_brackets_inside_strings_do_not_nest() -> None:
    text = "[" * 100 + '\\"' + "{" * 100
    assert parse(f'["{text}"]'.encode(), max_bytes=1000) == [text.replace("\\", "")]


def test_what_is_closed_is_no_depth_any_more() -> None:
    assert parse(b"[" + b"[]," * 40 + b"{}]", max_bytes=1000) == [*[[]] * 40, {}]
    with pytest.raises(DecodeError, match="nested deeper"):
        parse(b"[" + b"[]," * 40 + b"[" * 33 + b"]" * 33 + b"]", max_bytes=1000)


def test_the_deepest_allowed_value_is_parsed() -> None:
    deepest = b"[" * 32 + b"]" * 32
    assert parse(deepest, max_bytes=1000)


@pytest.mark.parametrize("tail", [b"", b"\\", b'\\"'])
def test_an_endless_string_of_quotes_is_read_once(tail: bytes) -> None:
    # Quadratic searching would need minutes here and run into the test's time limit.
    assert "not JSON" in refusal(b'"' + b'\\"' * 2_000_000 + tail)


@pytest.mark.parametrize("number", ["1.0", "1e3", "-0.0", "NaN", "Infinity", "-Infinity"])
def test_numbers_must_be_integers(number: str) -> None:
    message = f"number {number} is not an integer; only integers are allowed"
    assert refusal(f'{{"protocol":{number}}}'.encode()) == message


@pytest.mark.parametrize("number", [2**53 - 1, -(2**53) + 1, 0])
def test_integers_up_to_two_to_the_53(number: int) -> None:
    assert parse(str(number).encode(), max_bytes=100) == number


@pytest.mark.parametrize("number", ["9007199254740992", "-9007199254740992", "9" * 5000])
def test_larger_integers_are_refused(number: str) -> None:
    message = refusal(number.encode())
    assert "is out of range, |n| must be below 2**53" in message
    assert len(message) < 150


@pytest.mark.parametrize("text", ['"\\ud800"', '{"\\udfff":1}', '["x","\\udead\\ud800"]'])
def test_lone_surrogates_are_refused(text: str) -> None:
    assert "lone surrogate" in refusal(text.encode())


def test_paired_surrogates_are_text() -> None:
    assert parse(b'"\\ud83d\\ude00"', max_bytes=100) == "\U0001f600"


def test_a_hostile_key_is_quoted_short_and_escaped() -> None:
    key = "\x1b[31m" + "k" * 10_000
    twice = refusal(msgspec.json.encode(key).join([b"{", b":1,", b":1}"]))
    assert twice.startswith("key '\\x1b[31mkkk")
    assert twice.endswith("...' appears twice in one object")
    assert len(twice) < 130
    assert len(refusal(encoded(**{key: 1}))) == 120


def test_quote_keeps_short_text_and_cuts_the_rest() -> None:
    assert quote("plain") == "plain"
    assert quote("é\n") == "\\xe9\\n"
    assert quote("x" * 80) == "x" * 80
    assert quote("x" * 81) == "x" * 77 + "..."
    assert quote("\n" * 40) == "\\n" * 40
    assert quote("\n" * 80) == "\\n" * 38 + "\\..."


TOKEN = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl"  # noqa: S105 -- of nobody


@pytest.mark.parametrize("secret", [TOKEN, f"Bearer {TOKEN}", "-----BEGIN PRIVATE KEY-----\nMC4C"])
@pytest.mark.parametrize("before", ["", "x" * 30 + " ", "x" * 60 + " "])
def test_quote_keeps_no_secret_not_even_a_part_of_it(before: str, secret: str) -> None:
    assert quote(f"{before}{secret}") == f"{before}<redacted>"
    assert "MC4C" not in quote(f"{before}{secret}", 40)
    assert "eyJ" not in quote(f"{before}{secret}" + "." * 5000)


def test_a_key_that_is_a_token_is_refused_without_repeating_it() -> None:
    with pytest.raises(DecodeError) as caught:
        parse(f'{{"{TOKEN}":1,"{TOKEN}":1}}'.encode(), max_bytes=1000)
    assert str(caught.value) == "key '<redacted>' appears twice in one object"


class Word(Document, frozen=True):
    word: str


def test_a_plain_document_takes_the_short_way() -> None:
    assert encode_plain(Word(word="a")) == b'{"word":"a"}'


@pytest.mark.parametrize(
    "held", [1.5, {"a": 1}, object(), "\ud800"], ids=lambda x: type(x).__name__
)
def test_a_field_that_holds_what_its_type_does_not_say_takes_the_long_way(held: Any) -> None:
    assert encode_plain(Word(word=held)) is None
