import pytest

from gpuwarden.settings.keys import SPIFFE_IDS

A, B = "spiffe://example.org/proxy", "spiffe://example.org/other"


@pytest.mark.parametrize(
    ("text", "found"),
    [("", ()), (" ", ()), (A, (A,)), (f"{A}, {B},{A}", (A, B))],
)
def test_a_list_of_ids_may_be_empty(text: str, found: tuple[str, ...]) -> None:
    assert SPIFFE_IDS.parse(text) == found
    assert SPIFFE_IDS.parse(SPIFFE_IDS.show(found)) == found


@pytest.mark.parametrize(
    "text",
    ["example.org", f"{A},", "https://example.org/a", ",".join([f"{A}-{x}" for x in range(65)])],
)
def test_what_is_no_list_of_ids_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"a list|SPIFFE ID"):
        SPIFFE_IDS.parse(text)
