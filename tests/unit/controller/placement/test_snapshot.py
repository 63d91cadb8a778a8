from collections.abc import Mapping
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.fleet.view import FleetSnapshot, NodeView
from controller.placement.static_hashes import InsecureStaticHashes, StaticHashesError
from controller.placement.verdict_cache import ABSENT, CODES, Verdicts, packed
from gpuwarden.reasons import ReasonCode
from tests.builders.fleet_views import acceptance, fleet, hash_of, healthy, node

# --- Verdicts follow the fleet: what changed is judged again, nothing else, and time ends leases

NOW = 1_000


class Judging:
    """Says "stale" by the time of the question and "mismatch" for the hash `b`; counts."""

    def __init__(self) -> None:
        self.now_ns = NOW
        self.asked: list[str] = []

    def __call__(self, view: NodeView) -> ReasonCode | None:
        self.asked.append(view.name)
        if view.acceptance is None:
            return ReasonCode.NODE_NO_EVIDENCE
        if self.now_ns >= view.acceptance.fresh_until_ns:
            return ReasonCode.NODE_STALE
        return ReasonCode.HASH_MISMATCH if view.acceptance.attestation_hash == B else None


A, B = hash_of("a"), hash_of("b")


def attested(name: str, text: str, ends_ns: int) -> NodeView:
    return node(name, acceptance(text, issued_ns=ends_ns, lease_ns=0))


def look(verdicts: Verdicts, judge: Judging, snapshot: FleetSnapshot, now_ns: int) -> list[str]:
    """Refresh at `now_ns`; who was judged for it."""
    judge.now_ns, judge.asked = now_ns, []
    verdicts.refresh(snapshot.nodes, now_ns, judge)
    return judge.asked


def read(codes: bytes) -> list[ReasonCode | str | None]:
    return ["absent" if byte == ABSENT else CODES[byte] for byte in codes]


def test_only_what_changed_is_judged_again() -> None:
    verdicts, judge = Verdicts(), Judging()
    one, two, three = (attested(name, A, 9_000) for name in ("n1", "n2", "n3"))
    first = fleet(one, two, three)
    filled = [verdicts.is_filled]
    assert look(verdicts, judge, first, NOW) == ["n1", "n2", "n3"]
    filled.append(verdicts.is_filled)
    assert filled == [False, True]
    assert look(verdicts, judge, first, NOW) == []
    changed = fleet(one, attested("n2", B, 9_000), three)
    assert look(verdicts, judge, changed, NOW) == ["n2"]
    assert read(verdicts.of(["n3", "n2", "x"])) == [None, ReasonCode.HASH_MISMATCH, "absent"]


def test_nodes_that_come_or_go_are_noticed() -> None:
    verdicts, judge = Verdicts(), Judging()
    one, two = attested("n1", A, 9_000), attested("n2", A, 9_000)
    look(verdicts, judge, fleet(one, two), NOW)
    look(verdicts, judge, fleet(two), NOW)
    assert read(verdicts.of(["n1", "n2"])) == ["absent", None]
    look(verdicts, judge, fleet(two, healthy("n3")), NOW)
    assert read(verdicts.of(["n3"])) == [None]


def test_a_lease_ends_though_nothing_changed_and_a_renewed_one_does_not() -> None:
    verdicts, judge = Verdicts(), Judging()
    short, long, never = attested("s", A, 2_000), attested("l", A, 9_000), node("n")
    look(verdicts, judge, fleet(short, long, never), NOW)
    same = fleet(short, long, never)
    assert look(verdicts, judge, same, 1_999) == []
    assert look(verdicts, judge, same, 2_000) == ["s"]
    assert read(verdicts.of(["s", "l"])) == [ReasonCode.NODE_STALE, None]
    renewed = fleet(attested("s", A, 8_000), long, never)
    look(verdicts, judge, renewed, 2_001)
    assert read(verdicts.of(["s"])) == [None]


def test_an_earlier_question_is_answered_by_its_own_time() -> None:
    verdicts, judge = Verdicts(), Judging()
    same = fleet(attested("s", A, 2_000))
    look(verdicts, judge, same, 2_000)
    look(verdicts, judge, same, 1_999)
    assert read(verdicts.of(["s"])) == [None]


def test_every_code_has_a_byte_of_its_own() -> None:
    everything = [None, *ReasonCode]
    assert read(packed(everything)) == everything
    assert ABSENT not in packed(everything)


Nodes = dict[str, tuple[bool, int]]


@given(
    st.lists(
        st.tuples(
            st.dictionaries(
                st.sampled_from("abcde"), st.tuples(st.booleans(), st.integers(1, 9)), max_size=5
            ),
            st.integers(0, 10),
        ),
        max_size=8,
    )
)
def test_memory_never_changes_an_answer(looks: list[tuple[Nodes, int]]) -> None:
    verdicts, judge = Verdicts(), Judging()
    kept: dict[tuple[str, bool, int], NodeView] = {}
    for nodes, now_ns in looks:
        views: Mapping[str, NodeView] = MappingProxyType(
            {
                name: kept.setdefault(
                    (name, *facts), attested(name, B if facts[0] else A, facts[1])
                )
                for name, facts in nodes.items()
            }
        )
        judge.now_ns = now_ns
        verdicts.refresh(views, now_ns, judge)
        expected = [judge(views[name]) if name in views else "absent" for name in "abcde"]
        assert read(verdicts.of("abcde")) == expected


# --- The seeds' static map, kept insecure by name and narrow by rule


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
