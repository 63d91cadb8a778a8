import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden import strict_yaml
from gpuwarden.strict_yaml import (
    MAX_DEPTH,
    Document,
    ListValue,
    MapValue,
    Scalar,
    ScalarValue,
    Value,
    YamlError,
    parse_documents,
    parse_plain,
    parse_tree,
)

MAX_BYTES = 10_000


def tree(data: bytes) -> Value | None:
    return parse_tree(data, max_bytes=MAX_BYTES)


def plain(data: bytes) -> object:
    return parse_plain(data, max_bytes=MAX_BYTES)


def test_values_keep_their_text_and_line() -> None:
    assert tree(b"a: 25s\nb:\n  - on\n  - 'on'\n") == MapValue(
        {
            "a": ScalarValue("25s", Scalar.TEXT, 1),
            "b": ListValue(
                (ScalarValue("on", Scalar.BOOLEAN, 3), ScalarValue("on", Scalar.TEXT, 4)), 3
            ),
        },
        1,
    )


@pytest.mark.parametrize(
    ("text", "seen", "value"),
    [
        ("no", Scalar.BOOLEAN, False),
        ("true", Scalar.BOOLEAN, True),
        ("12", Scalar.NUMBER, 12),
        ("0", Scalar.NUMBER, 0),
        ("0644", Scalar.OTHER, 0o644),
        ("0x10", Scalar.OTHER, 16),
        ("1_000", Scalar.OTHER, 1000),
        ("-0b11", Scalar.OTHER, -3),
        ("18446744073709551615", Scalar.NUMBER, (1 << 64) - 1),
        ("1.0e+300", Scalar.OTHER, 1e300),
        ("1.5", Scalar.OTHER, 1.5),
        ("2024-01-01", Scalar.TEXT, "2024-01-01"),
        ("2024-99-99T99", Scalar.TEXT, "2024-99-99T99"),
        ("~", Scalar.NULL, None),
        ("", Scalar.NULL, None),
        ("=", Scalar.TEXT, "="),
        (":8080", Scalar.TEXT, ":8080"),
        ("'12'", Scalar.TEXT, "12"),
    ],
)
def test_what_yaml_sees_in_a_scalar_is_reported(text: str, seen: Scalar, value: object) -> None:
    parsed = tree(f"a: {text}".encode())
    assert isinstance(parsed, MapValue)
    scalar = parsed.entries["a"]
    assert isinstance(scalar, ScalarValue)
    assert scalar.type is seen
    assert plain(f"a: {text}".encode()) == {"a": value}


def test_json_is_read_as_yaml() -> None:
    document = {"kind": "Pod", "n": [1, True, None, 1.5], "deep": {"a": "x\n"}}
    assert plain(json.dumps(document).encode()) == document


@pytest.mark.parametrize("data", [b"", b"# nothing\n", b"---\n---\n"])
def test_a_document_without_content_is_none(data: bytes) -> None:
    assert (tree(data), plain(data)) == (None, None)


def test_empty_documents_around_the_one_do_not_count() -> None:
    assert plain(b"---\n---\nkind: Pod\n---\n") == {"kind": "Pod"}


@pytest.mark.parametrize("levels", [MAX_DEPTH, MAX_DEPTH + 1])
def test_depth_is_bounded(levels: int) -> None:
    data = b"[" * levels + b"]" * levels
    if levels <= MAX_DEPTH:
        assert isinstance(plain(data), list)
        return
    with pytest.raises(YamlError, match=f"line 1: got deep nesting; expected at most {MAX_DEPTH}"):
        plain(data)


def test_several_documents_are_read_where_the_caller_takes_them() -> None:
    data = b"# first\n---\n---\na: 1\n---\n~\n---\n- on\n...\n---\nb: 2024-01-01\n"
    assert parse_documents(data, max_bytes=MAX_BYTES) == (
        Document(4, {"a": 1}),
        Document(8, [True]),
        Document(11, {"b": "2024-01-01"}),
    )
    assert parse_documents(b"", max_bytes=MAX_BYTES) == ()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"a: 1\n---\nb: 2\nb: 3\n", "line 4: got key 'b' again"),
        (b"a: 1\n---\nb: &x 2\n", "line 3: got an anchor or alias"),
        (b"#" * (MAX_BYTES + 1), "got more than 10000 bytes"),
        (b"- 1\n---\n" * 20, "line 31: got more values; expected at most 30 keys and values"),
    ],
)
def test_what_bounds_one_document_bounds_all_together(
    data: bytes, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strict_yaml, "MAX_NODES", 30)
    with pytest.raises(YamlError, match=says):
        parse_documents(data, max_bytes=MAX_BYTES)


REFUSED = [
    (b"a: 1\nb: {c: 2, c: 3}\n", "line 2: got key 'c' again; expected each key once"),
    (b"a: &x 1\nb: 2\n", "line 1: got an anchor or alias; expected plain values"),
    (b"b: 2\na: *x\n", "line 2: got an anchor or alias; expected plain values"),
    (b"a: !!python/name:os.system x\n", "line 1: got tag 'tag:yaml.org,2002:python/name:os.system"),
    (b"a: !!binary aGk=\n", "line 1: got tag"),
    (b"a: !!str 1\n", "line 1: got tag"),
    (b"a: ! x\n", "line 1: got tag '!'"),
    (b"<<: {a: 1}\n", "line 1: got key '<<'; expected text as key; quote it"),
    (b"a: <<\n", "line 1: got '<<'; expected text; quote it"),
    (b"a:\n  on: 1\n", "line 2: got key 'on'; expected text as key; quote it"),
    (b"1: a\n", "line 1: got key '1'; expected text as key; quote it"),
    (b"? [a]\n: 1\n", "line 1: got a complex key; expected plain keys"),
    (b"a: 1\n---\nb: 2\n", "line 3: got a second document; expected one document"),
    (b"a: [1\n", "line 2: got .*; expected YAML"),
    (b"a: \x00\n", "got 'unacceptable character .*; expected YAML"),
    (b"a: \xff\n", "got byte 3; expected UTF-8 text"),
    (b'a: "\\U99999999"\n', "got a number out of range; expected YAML"),
    (b'a: "\\U00110000"\n', "got a number out of range; expected YAML"),
    (b"%YAML 1." + b"1" * 5000 + b"\n---\na: 1\n", "got a number out of range; expected YAML"),
    (b'a: "\\ud800"\n', "line 1: got half of a surrogate pair; expected text of whole"),
    (b'"\\udc00": 1\n', "line 1: got half of a surrogate pair; expected text of whole"),
    (b"%TAG !\xc2\x85! a\n---\na: 1\n", "; expected YAML"),
    (b"a: " + b"[" * 5000, "got deep nesting"),
    (b"#" * (MAX_BYTES + 1), "got more than 10000 bytes; expected at most 10000 bytes"),
]


@pytest.mark.parametrize(("data", "says"), REFUSED)
def test_what_is_not_plain_yaml_is_refused_with_its_line(data: bytes, says: str) -> None:
    for parse in (tree, plain):
        with pytest.raises(YamlError, match=says):
            parse(data)


NO_NUMBERS_OF_JSON = [
    "1" * 5000,
    "0x" + "f" * 5000,
    "0" + "7" * 5000,
    "0b" + "1" * 5000,
    "1" + ":1" * 5000,
    "1" + ":1" * 5000 + ".5",
    "1" + "_" * 5000,
    "9" * 5000 + ".0",
    "18446744073709551616",
    "-9223372036854775809",
    "0x10000000000000000",
    "1.0e+999",
    ".inf",
    "-.inf",
    ".nan",
    "0x_",
    "0b_",
    "22:22",
    "1:30:00.5",
]


@pytest.mark.parametrize("text", NO_NUMBERS_OF_JSON)
def test_numbers_that_json_does_not_have_are_refused(text: str) -> None:
    with pytest.raises(YamlError, match=r"line 2: got '.*; expected a number of JSON, at most 64"):
        parse_plain(f"b: 1\na: {text}\n".encode(), max_bytes=100_000)


@pytest.mark.parametrize("text", [text for text in NO_NUMBERS_OF_JSON if len(text) > 100])
def test_long_numbers_are_refused_before_anybody_converts_them(text: str) -> None:
    with pytest.raises(YamlError, match=r"line 1: got '.*; expected a number of JSON, at most 64"):
        parse_tree(f"a: {text}".encode(), max_bytes=100_000)


LIMITS = [
    ("[" + "1," * 9 + "{}]", "", "2", "at most 10 keys and values"),
    ("---\n" * 7 + "---\na: 1\n{}", "", "---\n", "at most 10 keys and values"),
    ("[" + "x" * 20 + "{}]", "", "x", "at most 20 characters"),
    ("'" + "x" * 20 + "{}'", "", "x", "at most 20 characters"),
    ("? '" + "x" * 20 + "{}'\n: 1", "", "x", "at most 20 characters"),
]


@pytest.mark.parametrize(("form", "fits", "exceeds", "says"), LIMITS)
def test_nodes_and_texts_are_bounded(
    monkeypatch: pytest.MonkeyPatch, form: str, fits: str, exceeds: str, says: str
) -> None:
    monkeypatch.setattr(strict_yaml, "MAX_NODES", 10)
    monkeypatch.setattr(strict_yaml, "MAX_SCALAR_CHARS", 20)
    assert plain(form.format(fits).encode()) is not None
    for parse in (plain, tree):
        with pytest.raises(YamlError, match=f"expected {says}"):
            parse(form.format(exceeds).encode())


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    for parse in (tree, plain):
        try:
            parse(data)
        except YamlError as error:
            assert str(error)  # noqa: PT017 -- either outcome is fine; it has to be one of them
