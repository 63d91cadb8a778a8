"""The seeds' static map, kept insecure by name and narrow by rule."""

import pytest

from controller.placement.snapshot import InsecureStaticHashes, StaticHashesError
from tests.builders.fleet_views import hash_of


def test_map_from_json() -> None:
    static = InsecureStaticHashes.from_json('{"kind-worker": "abc123", "n2": "Def 4"}')
    assert static
    assert dict(static.hashes) == {"kind-worker": "abc123", "n2": "Def 4"}
    assert static.nodes_with(["abc123", "zzz"]) == frozenset({"kind-worker"})
    assert static.nodes_with(["abc123", "Def 4"]) == frozenset({"kind-worker", "n2"})
    assert static.nodes_with([]) == frozenset()
    assert not InsecureStaticHashes.from_json("{}")


@pytest.mark.parametrize(
    ("hashes", "expected"),
    [
        (["abc123"], True),
        (["x", "abc123"], True),
        (["ABC123"], False),
        (["abc12"], False),
        (["abc1234"], False),
        ([], False),
    ],
)
def test_comparison_is_exact(hashes: list[str], expected: bool) -> None:
    static = InsecureStaticHashes({"n": "abc123"})
    assert static.matches("n", hashes) is expected
    assert static.matches("m", hashes) is False


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        '"abc"',
        "{",
        '{"n": 1}',
        '{"n": null}',
        '{"n": ["a"]}',
        '{"n": ""}',
        '{"n": " abc"}',
        '{"n": "a,b"}',
        '{"n": "\\u00e9"}',
        '{"Node_1": "abc"}',
        '{"": "abc"}',
        '{"n": "a", "n": "b"}',
        '{"n": "' + "x" * 254 + '"}',
        "[" * 100_000,
    ],
)
def test_what_is_no_map_names_the_variable(text: str) -> None:
    with pytest.raises(StaticHashesError) as error:
        InsecureStaticHashes.from_json(text)
    assert str(error.value).startswith("BGS_NODE_HASH_MAP: ")
    assert "expected" in str(error.value)
    assert len(str(error.value)) < 400


def test_no_static_node_can_claim_a_hash_of_evidence() -> None:
    with pytest.raises(StaticHashesError, match="only evidence can have"):
        InsecureStaticHashes({"n": hash_of("a")})


def test_number_of_nodes_is_bounded() -> None:
    with pytest.raises(StaticHashesError, match="at most 100000"):
        InsecureStaticHashes(dict.fromkeys((f"n{i}" for i in range(100_001)), "x"))
