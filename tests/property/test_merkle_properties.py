"""The tree that grows leaf by leaf is the recursion of RFC 6962, and only true prefixes prove."""

from collections.abc import Sequence
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.audit.merkle import (
    Frontier,
    ProofError,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    root_at,
    stored_count,
    stored_index,
    verify_consistency,
    verify_inclusion,
)

LEAVES = st.lists(st.binary(max_size=4), min_size=1, max_size=70)


def naive(leaves: Sequence[bytes]) -> bytes:
    """MTH of RFC 6962 section 2.1, as written there."""
    if not leaves:
        return sha256().digest()
    if len(leaves) == 1:
        return sha256(b"\x00" + leaves[0]).digest()
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    return sha256(b"\x01" + naive(leaves[:k]) + naive(leaves[k:])).digest()


class Stored:
    def __init__(self, leaves: Sequence[bytes]) -> None:
        self.tree = Frontier()
        self.hashes = b"".join(self.tree.append(leaf_hash(leaf)) for leaf in leaves)

    def node(self, level: int, offset: int) -> bytes:
        at = 32 * stored_index(level, offset)
        return self.hashes[at : at + 32]


@settings(deadline=None)
@given(leaves=LEAVES, data=st.data())
def test_roots_and_proofs_are_those_of_the_recursion(
    leaves: list[bytes], data: st.DataObject
) -> None:
    stored, size = Stored(leaves), len(leaves)
    old = data.draw(st.integers(0, size))
    index = data.draw(st.integers(0, size - 1))
    root = naive(leaves)

    assert stored.tree.root() == root_at(size, stored.node) == root
    assert root_at(old, stored.node) == naive(leaves[:old])
    assert len(stored.hashes) == 32 * stored_count(size)
    path = inclusion_proof(index, size, stored.node)
    assert len(path) <= (size - 1).bit_length()
    verify_inclusion(leaf_hash(leaves[index]), index, size, root, path)
    proof = consistency_proof(old, size, stored.node)
    assert len(proof) <= (size - 1).bit_length() + 1
    verify_consistency(old, naive(leaves[:old]), size, root, proof)


@settings(deadline=None)
@given(leaves=LEAVES, data=st.data())
def test_a_changed_past_has_no_proof(leaves: list[bytes], data: st.DataObject) -> None:
    """Whatever is changed before `old`, the honest proof of the forked log does not hold."""
    old = data.draw(st.integers(1, len(leaves)))
    at = data.draw(st.integers(0, old - 1))
    forked = [*leaves[:at], leaves[at] + b"!", *leaves[at + 1 :]]
    fork = Stored(forked)

    with pytest.raises(ProofError):
        verify_consistency(
            old,
            naive(leaves[:old]),
            len(forked),
            fork.tree.root(),
            consistency_proof(old, len(forked), fork.node),
        )
