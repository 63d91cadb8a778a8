"""Evidence that waits for a record that cites it: handed out once, bounded per node and in all."""

from controller.audit.held_evidence import HeldEvidence
from gpuwarden.audit.archived_evidence import ArchivedEvidence


def evidence(size: int = 1) -> ArchivedEvidence:
    return ArchivedEvidence("type", b"x" * size, b"", (), (), 0)


def test_what_is_held_is_handed_out_once() -> None:
    held, one = HeldEvidence(), evidence()
    assert held.take("a") is None
    held.hold("node/n1", "a", one)
    assert held.take("a") is one
    assert held.take("a") is None
    assert held._digests == {}  # nodes come and go


def test_of_each_node_the_last_few_are_held() -> None:
    held = HeldEvidence()
    held.hold("node/other", "other", evidence())
    for number in range(5):
        held.hold("node/n1", str(number), evidence())
    assert held.take("0") is None
    assert all(held.take(str(number)) for number in range(1, 5))
    assert held.take("other") is not None


def test_what_was_handed_out_makes_room() -> None:
    held = HeldEvidence()
    for digest in "abc":
        held.hold("node/n1", digest, evidence())
    assert held.take("b") is not None
    held.hold("node/n1", "d", evidence())
    assert [bool(held.take(x)) for x in "acd"] == [True, True, True]


def test_what_was_handed_out_counts_no_more_among_the_last_few() -> None:
    held = HeldEvidence()
    held.hold("node/n1", "a", evidence())
    assert held.take("a") is not None
    for number in range(5):
        held.hold("node/n1", str(number), evidence())
    assert held.take("0") is None
    assert held.take("1") is not None


def test_in_all_the_oldest_makes_way() -> None:
    held = HeldEvidence(max_bytes=10)
    held.hold("node/n1", "a", evidence(4))
    held.hold("node/n2", "b", evidence(6))
    held.hold("node/n3", "c", evidence(4))
    assert held.take("a") is None
    assert held.take("b") is not None
    held.hold("node/n4", "d", evidence(6))
    assert [bool(held.take(x)) for x in "cd"] == [True, True]


def test_the_same_evidence_counts_once() -> None:
    held = HeldEvidence(max_bytes=10)
    for _ in range(2):
        held.hold("node/n1", "a", evidence(6))
    held.hold("node/n1", "b", evidence(4))
    assert [bool(held.take(x)) for x in "ab"] == [True, True]


def test_nothing_is_held_where_nothing_may_be() -> None:
    held = HeldEvidence(0)
    held.hold("node/n1", "a", evidence())
    assert held.take("a") is None
