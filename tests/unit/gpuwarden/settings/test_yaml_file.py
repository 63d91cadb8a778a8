import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.settings.finding import Finding, SettingsError
from gpuwarden.settings.yaml_file import (
    MAX_BYTES,
    ListValue,
    MapValue,
    Scalar,
    ScalarValue,
    parse_yaml,
)


def test_values_keep_their_text_and_line() -> None:
    parsed = parse_yaml(b"a: 25s\nb:\n  - on\n  - 'on'\n", "f")

    assert parsed == MapValue(
        {
            "a": ScalarValue("25s", Scalar.TEXT, 1),
            "b": ListValue(
                (ScalarValue("on", Scalar.BOOLEAN, 3), ScalarValue("on", Scalar.TEXT, 4)), 3
            ),
        },
        1,
    )


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("no", Scalar.BOOLEAN),
        ("true", Scalar.BOOLEAN),
        ("12", Scalar.NUMBER),
        ("0", Scalar.NUMBER),
        ("012", Scalar.OTHER),
        ("0x10", Scalar.OTHER),
        ("1_000", Scalar.OTHER),
        ("1:30:00", Scalar.OTHER),
        ("1.5", Scalar.OTHER),
        ("2024-01-01", Scalar.OTHER),
        ("~", Scalar.NULL),
        ("", Scalar.NULL),
        ("=", Scalar.OTHER),
        (":8080", Scalar.TEXT),
    ],
)
def test_what_yaml_sees_is_told(text: str, seen: Scalar) -> None:
    value = parse_yaml(f"a: {text}".encode(), "f").entries["a"]

    assert isinstance(value, ScalarValue)
    assert value.type is seen


def test_empty_file_is_an_empty_mapping() -> None:
    assert parse_yaml(b"# nothing\n", "f").entries == {}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"a: 1\na: 2\n", r"f \(line 2\): got key 'a' again; expected each key once"),
        (b"a: &x 1\nb: *x\n", "line 1.*anchor"),
        (b"a: *x\n", "alias"),
        (b"a: !!python/name:os.system x\n", "line 1.*tag"),
        (b"a: !!binary aGk=\n", "tag"),
        (b"<<: {a: 1}\n", "merge"),
        (b"? [a]\n: 1\n", "complex"),
        (b"a: 1\n---\nb: 2\n", "line 2.*second document"),
        (b"- a\n", "a mapping of keys"),
        (b"a: [1\n", "expected YAML"),
        (b"a: \x00\n", "expected YAML"),
        (b"a: \xff\n", "byte 3; expected UTF-8 text"),
        (b"a: " + b"[" * 5000, "at most 16 levels"),
        (b"#" * (MAX_BYTES + 1), "at most 262144 bytes"),
    ],
)
def test_what_is_not_plain_yaml_is_refused_with_its_line(data: bytes, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        parse_yaml(data, "f")


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    try:
        outcome: object = parse_yaml(data, "f")
    except SettingsError as error:
        outcome = error.findings[0]

    assert isinstance(outcome, MapValue | Finding)
