"""How a person may be named who acts through an identity that others share."""

import pytest

from gpuwarden.identity.person import is_person


@pytest.mark.parametrize(
    "name", ["a", "ann@example.com", "oidc:ann+ops/1", "A-Z_9", "x" * 100], ids=lambda x: x[:20]
)
def test_names_of_people(name: str) -> None:
    assert is_person(name)


@pytest.mark.parametrize(
    "name",
    ["", "x" * 101, "ann berg", "ann,bob", "ann\n", "änn", "ann\x00", "ann=1", "(ann)"],
    ids=lambda x: ascii(x[:20]),
)
def test_what_could_be_read_as_more_than_a_name(name: str) -> None:
    assert not is_person(name)
