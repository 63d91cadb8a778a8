import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.audit.sealing import LogIdentity, Sealer, encode_refs, summarised
from controller.record import Json, Record
from gpuwarden.audit.archived_evidence import ArchivedEvidence
from gpuwarden.audit.chain import BEFORE_FIRST, Head, Verified, verify_lines
from gpuwarden.audit.record import MAX_RECORD_BYTES, LogRecord, RecordKind, decode_record
from gpuwarden.evidence.canonical import canonical_json, sha256_hex

SEALER = Sealer(LogIdentity("lab/controller-0", "boot", "instance"))
WALL = 1_772_366_400_123_000_000


def record(**changes: Any) -> Record:
    fields: dict[str, Any] = {
        "kind": RecordKind.EVIDENCE_ACCEPTED,
        "actor": "spiffe://example.org/gpuwarden/agent/n1",
        "subject": "node/n1",
        "decision": "accepted",
        "codes": ("ACCEPTED",),
        "refs": {"hash": "v1:sha256:ab", "gpus": 8},
    }
    return Record(**fields | changes)


def test_kept_evidence_is_no_part_of_what_happened() -> None:
    kept = record(archived_evidence=ArchivedEvidence("type", b"payload", b"", (), (), 0))
    assert kept == record()
    assert repr(kept) == repr(record())


def test_line_holds_every_field_in_canonical_form() -> None:
    sealed = SEALER.seal(record(), WALL, Head(41, "c" * 64))

    assert sealed.line == canonical_json(
        {
            "v": "gpuwarden.dev/audit/v1",
            "seq": 42,
            "ts": "2026-03-01T12:00:00.123Z",
            "boot": "boot",
            "origin": "lab/controller-0",
            "instance": "instance",
            "kind": "evidence.accepted",
            "actor": "spiffe://example.org/gpuwarden/agent/n1",
            "subject": "node/n1",
            "decision": "accepted",
            "codes": ["ACCEPTED"],
            "refs": {"gpus": 8, "hash": "v1:sha256:ab"},
            "prev": "c" * 64,
        }
    )
    assert sealed.head == Head(42, sha256_hex(sealed.line))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=80),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=20), inner),
    max_leaves=30,
)


@settings(max_examples=60)
@given(
    actor=st.text(max_size=600),
    decision=st.text(max_size=100),
    codes=st.lists(st.text(max_size=90), max_size=40),
    refs=st.dictionaries(st.text(max_size=40), JSON, max_size=8),
    repeat=st.integers(1, 40),
)
def test_whatever_comes_in_becomes_a_record_that_links(
    actor: str, decision: str, codes: list[str], refs: dict[str, Any], repeat: int
) -> None:
    refs["many"] = [refs.copy()] * repeat
    changed = record(actor=actor, subject=actor, decision=decision, codes=tuple(codes), refs=refs)
    first = SEALER.seal(changed, WALL, BEFORE_FIRST)
    second = SEALER.seal(changed, WALL, first.head)

    assert len(first.line) <= MAX_RECORD_BYTES
    assert decode_record(first.line).seq == 1
    result = verify_lines([first.line + b"\n", second.line + b"\n"])
    assert isinstance(result, Verified)
    assert result.head == second.head


def decoded(refs: Mapping[str, Any], room: int = 1000) -> dict[str, Any]:
    data = encode_refs(refs, room)
    assert len(data) <= room
    result: dict[str, Any] = json.loads(data)
    return result


def test_longest_list_becomes_count_digest_and_sample() -> None:
    nodes = [f"node-{n}" for n in range(500)]

    assert decoded({"nodes": nodes, "few": ["a"]}) == {
        "few": ["a"],
        "nodes": {
            "count": 500,
            "digest": sha256_hex(canonical_json(nodes)),
            "first": ["node-0", "node-1", "node-2"],
        },
    }


def test_sample_of_long_items_is_left_out() -> None:
    assert set(decoded({"nodes": ["x" * 200] * 10})["nodes"]) == {"count", "digest"}


def test_long_map_and_text_become_count_or_length_and_digest() -> None:
    refs = {"map": {f"k{n}": n for n in range(100)}, "text": "x" * 900}

    shown = decoded(refs, 400)

    assert shown["map"]["count"] == 100
    assert shown["text"]["bytes"] == 902


def test_only_as_much_is_summarised_as_has_to_be() -> None:
    shown = decoded({"long": list(range(400)), "short": list(range(20))})

    assert shown["short"] == list(range(20))


def test_too_many_refs_become_one_digest() -> None:
    refs = {f"key-{n}": n for n in range(300)}

    assert decoded(refs) == {
        "bytes": len(canonical_json(refs)),
        "digest": sha256_hex(canonical_json(refs)),
    }


@pytest.mark.parametrize("value", [1.5, 2**53, object(), "\ud800"])
def test_value_without_canonical_form_does_not_lose_the_record(value: object) -> None:
    assert "unencodable" in decoded({"x": value})


def test_long_name_is_cut_and_distinguished_by_a_digest() -> None:
    lines = [SEALER.seal(record(subject="n" * 500 + end), WALL, BEFORE_FIRST).line for end in "ab"]
    subjects = [decode_record(line).subject for line in lines]

    assert all(len(subject) <= 300 for subject in subjects)
    assert subjects[0] != subjects[1]


def sealed(**changes: Any) -> LogRecord:
    return decode_record(SEALER.seal(record(**changes), WALL, BEFORE_FIRST).line)


def cut(text: str, length: int) -> str:
    return f"{text[:length]}~{sha256_hex(text.encode())[:16]}"


def test_names_and_words_have_their_lengths() -> None:
    assert sealed(subject="n" * 298).subject == "n" * 298
    assert sealed(subject="n" * 299).subject == cut("n" * 299, 281)
    assert sealed(decision="d" * 62).decision == "d" * 62
    assert sealed(decision="d" * 63).decision == cut("d" * 63, 45)
    assert sealed(codes=("C" * 62, "C" * 63)).codes == ("C" * 62, cut("C" * 63, 45))


def test_what_is_cut_takes_one_byte_a_character() -> None:
    text = ' !"#[\\]^_`~\x7f\n\u00e9' + "n" * 300
    shown = sealed(subject=text).subject
    assert shown == " !?#[?]^_`~???" + "n" * 267 + cut(text, 0)


def test_a_line_has_at_most_4096_bytes() -> None:
    def line_with(text: str) -> bytes:
        return SEALER.seal(record(refs={"text": text}), WALL, BEFORE_FIRST).line

    room = 4096 - len(line_with(""))
    longest = line_with("x" * room)
    assert len(longest) == 4096
    assert decode_record(longest).refs == {"text": "x" * room}
    assert set(decode_record(line_with("x" * (room + 1))).refs["text"]) == {"bytes", "digest"}


def test_sixteen_codes_are_shown() -> None:
    codes = tuple(f"CODE_{n}" for n in range(16))
    assert sealed(codes=codes).codes == codes
    assert sealed(codes=(*codes, "ONE_MORE")).codes == (*codes[:15], "+2")


def test_refs_that_just_fit_stay_as_they_are() -> None:
    refs = {"text": "x" * 300}
    size = len(canonical_json(refs))
    assert decoded(refs, size) == refs
    assert set(decoded(refs, size - 1)["text"]) == {"bytes", "digest"}


def test_as_few_as_possible_are_summarised() -> None:
    refs: dict[str, Json] = {"long": ["x" * 10] * 60, "less": ["y" * 10] * 50}
    one = canonical_json({**refs, "long": summarised(refs["long"])})
    assert decoded(refs, len(one)) == json.loads(one)
    both = {key: summarised(value) for key, value in refs.items()}
    assert decoded(refs, len(one) - 1) == json.loads(canonical_json(both))


def test_a_summary_is_no_longer_than_what_it_stands_for() -> None:
    assert summarised([1, 2, 3]) == [1, 2, 3]
    assert summarised("x" * 86) == "x" * 86
    text = "x" * 87
    assert summarised(text) == {"bytes": 89, "digest": sha256_hex(canonical_json(text))}


def test_short_lists_may_be_kept() -> None:
    names: list[Json] = ["n" * 100] * 3
    assert summarised(names, keep=3) == names
    assert isinstance(summarised(["n" * 300]), dict)
    assert isinstance(summarised(names, keep=2), dict)
    assert isinstance(summarised(tuple(names), keep=2), dict)


def test_a_sample_has_at_most_256_bytes() -> None:
    fits = ["x" * 82, "x" * 82, "x" * 82, *["y"] * 90]
    assert len(canonical_json(fits[:3])) == 256
    assert decoded({"a": fits}, 450)["a"]["first"] == fits[:3]
    larger = ["x" * 83, *fits[1:]]
    assert "first" not in decoded({"a": larger}, 450)["a"]


def test_many_codes_are_counted() -> None:
    codes = tuple(f"CODE_{n}" for n in range(30))

    shown = decode_record(SEALER.seal(record(codes=codes), WALL, BEFORE_FIRST).line).codes

    assert shown == (*codes[:15], "+15")


def test_text_that_is_not_unicode_is_escaped() -> None:
    line = SEALER.seal(record(actor="a\udcffb"), WALL, BEFORE_FIRST).line

    assert decode_record(line).actor == "a\\udcffb"
