"""What a body of POST /finalize must hold."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.web.finalize import FIELDS, FinalizeRequestError, read_finalize

GOOD = {
    "namespace": "team-a",
    "name": "train-0",
    "uid": "0b7c1a52-0000-4000-8000-000000000001",
    "reservation-id": "v1.k1.aa",
    "gpu-uuid": "GPU-1",
}
ALL = "missing required fields: namespace, name, uid, reservation-id, gpu-uuid"


def refused(body: Any) -> str:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(FinalizeRequestError) as caught:
        read_finalize(text)
    return str(caught.value)


def test_a_good_one() -> None:
    found = read_finalize(json.dumps(GOOD | {"more": 1}).encode())
    assert (found.namespace, found.name, found.uid) == tuple(GOOD.values())[:3]
    assert (found.reservation_id, found.gpu_uuid) == ("v1.k1.aa", "GPU-1")


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 9000, [], "x", 7, None, {}])
def test_what_is_no_object_lacks_everything(body: Any) -> None:
    assert refused(body) == ALL


def test_the_example_of_the_contract() -> None:
    assert refused({"namespace": "ns"}) == (
        "missing required fields: name, uid, reservation-id, gpu-uuid"
    )


@pytest.mark.parametrize("value", ["", "  ", None, 7, ["x"], {"a": 1}, True])
@pytest.mark.parametrize("field", FIELDS)
def test_blank_and_wrong_types_are_missing(field: str, value: Any) -> None:
    assert refused(GOOD | {field: value}) == f"missing required fields: {field}"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("namespace", ".."),
        ("namespace", "a/b"),
        ("namespace", "a" * 64),
        ("name", "../nodes"),
        ("name", "."),
        ("name", "a" * 254),
        ("uid", "u/1"),
        ("uid", "u" * 129),
        ("reservation-id", "a b"),
        ("reservation-id", "x" * 254),
        ("gpu-uuid", "0"),
        ("gpu-uuid", "GPU-1/../2"),
        ("gpu-uuid", "GPU-1\n"),
    ],
)
def test_what_names_nothing_is_named_with_what_was_expected(field: str, value: str) -> None:
    text = refused(GOOD | {field: value})
    assert text.startswith(f"{field}: ")
    assert "expected" in text
    assert "\n" not in text
    assert len(text) < 400


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_bytes_get_an_answer(body: bytes) -> None:
    with pytest.raises(FinalizeRequestError, match="missing"):
        read_finalize(body)
