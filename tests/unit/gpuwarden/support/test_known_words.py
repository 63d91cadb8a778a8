"""Of a foreign text only words of our own lists are told."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.support.known_words import _ERRORS, _KNOWN, known_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("cannot write: [Errno 28] No space left on device: '/secret/audit-1'", ["ENOSPC"]),
        ("INVENTORY_CHANGED: GPU-abc hunter2 is not pinned", ["INVENTORY_CHANGED"]),
        ("<AioRpcError UNAVAILABLE 'token=hunter2'>", ["UNAVAILABLE"]),
        ("no SVID: denied, expired at hunter2", ["denied", "expired"]),
        ("UNAVAILABLEX xUNAVAILABLE", []),
        ("x" * 5000 + " UNAVAILABLE", []),
    ],
)
def test_what_is_told(text: str, words: list[str]) -> None:
    assert known_words(text) == words


@given(st.text(st.sampled_from(string.printable), max_size=200))
def test_nothing_else_is_ever_told(text: str) -> None:
    assert set(known_words(text)) <= _KNOWN | set(_ERRORS.values())
