"""Manifests: one object, without what YAML could mean differently."""

import pytest

from gpuwarden.cli.manifest import MAX_BYTES, ManifestError, parse_manifest


def test_yaml_and_json_are_the_same() -> None:
    text = b"kind: Pod\nmetadata: {annotations: {a: 'x'}}\nspec: {n: 1, t: true, z: null}\n"
    assert parse_manifest(text) == parse_manifest(
        b'{"kind":"Pod","metadata":{"annotations":{"a":"x"}},"spec":{"n":1,"t":true,"z":null}}'
    )


def test_times_stay_text() -> None:
    assert parse_manifest(b"at: 2026-11-27T10:00:00Z") == {"at": "2026-11-27T10:00:00Z"}
    assert parse_manifest(b"'on': 2026-11-27") == {"on": "2026-11-27"}


def test_empty_documents_around_it_are_skipped() -> None:
    assert parse_manifest(b"---\n---\nkind: Pod\n---\n") == {"kind": "Pod"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected one manifest, found 0"),
        (b"a: 1\n---\nb: 2\n", "expected one manifest, found 2"),
        (b"- a\n", "expected an object such as a Pod"),
        (b"just text", "expected an object such as a Pod"),
        (b"a: 1\nb: {c: 2, c: 3}\n", "line 2: key 'c' appears twice"),
        (b"a: &x 1\nb: *x\n", "line 2: aliases are not supported"),
        (b"? [a]\n: 1\n", "line 1: a key must be text; quote it"),
        (b"a:\n  on: 1\n", "line 2: a key must be text; quote it"),
        (b"1: a\n", "line 1: a key must be text; quote it"),
        (b"a: [1\n", "not YAML or JSON: line 2: "),
        (b"a: !!python/object:os.system 1", "not YAML or JSON: line 1: could not determine a con"),
        (b"a: \xff", "not UTF-8 at byte 3"),
        (b"a: \x00", "not YAML or JSON: unacceptable character"),
        (b"[" * 1000, "nested too deeply"),
        (b"a" * (MAX_BYTES + 1), "larger than 1048576 bytes"),
        (b"a: 2026-99-99T99", None),
    ],
)
def test_what_is_not_one_manifest(content: bytes, message: str | None) -> None:
    if message is None:
        assert parse_manifest(content) == {"a": "2026-99-99T99"}
        return
    with pytest.raises(ManifestError) as caught:
        parse_manifest(content)
    assert message in str(caught.value)
