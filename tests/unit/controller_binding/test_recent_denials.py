"""Denials are remembered for a while, and not too many of them."""

from controller.binding.decision import RecentDenials

S = 1_000_000_000


def test_a_denial_lasts_for_a_while() -> None:
    denials = RecentDenials(kept_ns=5 * S)
    denials.add("pod-1", "n1", 0)
    denials.add("pod-1", "n2", 3 * S)
    denials.add("pod-2", "n1", 3 * S)
    assert denials.nodes("pod-1", 4 * S) == {"n1", "n2"}
    assert denials.nodes("pod-1", 5 * S) == {"n2"}
    assert denials.nodes("pod-3", 4 * S) == frozenset()
    assert denials.ended(5 * S) == {"n1"}
    assert denials.ended(5 * S) == frozenset()
    assert denials.nodes("pod-1", 5 * S) == {"n2"}
    assert denials.ended(8 * S) == {"n1", "n2"}
    assert len(denials) == 0
    assert denials.nodes("pod-2", 8 * S) == frozenset()


def test_another_denial_begins_anew() -> None:
    denials = RecentDenials(kept_ns=5 * S)
    denials.add("pod", "n1", 0)
    denials.add("pod", "n2", 1 * S)
    denials.add("pod", "n1", 4 * S)
    assert denials.ended(6 * S) == {"n2"}
    assert denials.nodes("pod", 8 * S) == {"n1"}
    assert len(denials) == 1


def test_the_oldest_goes_first() -> None:
    denials = RecentDenials(kept_ns=5 * S, most=2)
    for number in range(4):
        denials.add(f"pod-{number}", "n", number)
    assert len(denials) == 2
    assert [bool(denials.nodes(f"pod-{x}", 4)) for x in range(4)] == [False, False, True, True]
