"""Roots that the world knows, proofs that RFC 6962 prints, and what a verifier must not take."""

import json
from hashlib import sha256

import pytest

from gpuwarden.audit.merkle import (
    EMPTY_ROOT,
    Frontier,
    ProofError,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    node_hash,
    root_at,
    stored_count,
    stored_index,
    verify_consistency,
    verify_inclusion,
)
from tests.golden.generate import FOLDER
from tests.golden.merkle import LEAVES

KNOWN_ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
"""As published with the tests of Certificate Transparency."""
VECTORS = json.loads((FOLDER / "merkle.json").read_text())


def grown(leaves: list[bytes]) -> tuple[Frontier, list[bytes]]:
    tree, stored = Frontier(), bytearray()
    for leaf in leaves:
        stored += tree.append(leaf_hash(leaf))
    return tree, [bytes(stored[at : at + 32]) for at in range(0, len(stored), 32)]


TREE, STORED = grown(LEAVES)


def node(level: int, offset: int) -> bytes:
    return STORED[stored_index(level, offset)]


def proof(texts: list[str]) -> list[bytes]:
    return [bytes.fromhex(text) for text in texts]


@pytest.mark.parametrize("size", range(9))
def test_roots_are_the_known_ones(size: int) -> None:
    assert grown(LEAVES[:size])[0].root().hex() == KNOWN_ROOTS[size]
    assert root_at(size, node).hex() == KNOWN_ROOTS[size]


def test_the_empty_tree_is_the_hash_of_nothing() -> None:
    assert Frontier().root() == sha256(b"").digest() == EMPTY_ROOT
    assert (Frontier().size, Frontier().peaks) == (0, ())


def test_leaves_and_nodes_cannot_be_taken_for_each_other() -> None:
    assert leaf_hash(b"\1" + b"a" * 64) != node_hash(b"a" * 32, b"a" * 32)


def test_vectors_hold_as_another_party_would_check_them() -> None:
    roots = proof(VECTORS["roots"])
    assert VECTORS["roots"] == KNOWN_ROOTS
    for one in VECTORS["inclusion"]:
        leaf = leaf_hash(bytes.fromhex(VECTORS["leaves"][one["leaf"]]))
        verify_inclusion(leaf, one["leaf"], one["size"], roots[one["size"]], proof(one["proof"]))
    for one in VECTORS["consistency"]:
        old, new = one["old"], one["new"]
        verify_consistency(old, roots[old], new, roots[new], proof(one["proof"]))


def test_proofs_of_the_examples_in_the_rfc() -> None:
    """Section 2.1.3: the tree of seven leaves, its audit paths and its proofs."""
    b, c, d, f, j = (leaf_hash(LEAVES[at]) for at in (1, 2, 3, 5, 6))
    g, h, i, k = node(1, 0), node(1, 1), node(1, 2), node(2, 0)
    right = node_hash(i, j)
    assert inclusion_proof(0, 7, node) == (b, h, right)
    assert inclusion_proof(3, 7, node) == (c, g, right)
    assert inclusion_proof(4, 7, node) == (f, j, k)
    assert inclusion_proof(6, 7, node) == (i, k)
    assert consistency_proof(3, 7, node) == (c, d, g, right)
    assert consistency_proof(4, 7, node) == (right,)
    assert consistency_proof(6, 7, node) == (i, j, k)


def test_a_tree_goes_on_from_its_frontier() -> None:
    for size in range(8):
        half = grown(LEAVES[:size])[0]
        again = Frontier.restore(size, half.peaks)
        trial = half.copy()
        for leaf in LEAVES[size:]:
            again.append(leaf_hash(leaf))
        assert again.root() == TREE.root()
        assert trial.size == size


@pytest.mark.parametrize(
    ("size", "peaks"),
    [(1, []), (3, [b"a" * 32]), (-1, []), (1, [b"short"]), (1 << 54, [b"a" * 32])],
)
def test_a_frontier_that_cannot_be_is_refused(size: int, peaks: list[bytes]) -> None:
    with pytest.raises(ValueError, match=r"leaves|SHA-256"):
        Frontier.restore(size, peaks)


def test_stored_hashes_stand_where_they_are_looked_for() -> None:
    assert [stored_count(size) for size in range(9)] == [0, 1, 3, 4, 7, 8, 10, 11, 15]
    assert len(STORED) == stored_count(8)
    assert node(3, 0) == TREE.root()


@pytest.mark.parametrize(("index", "size"), [(-1, 3), (3, 3), (0, 0)])
def test_no_path_leads_outside_of_the_tree(index: int, size: int) -> None:
    with pytest.raises(ValueError, match="not in a tree"):
        inclusion_proof(index, size, node)
    with pytest.raises(ProofError, match="not in a tree"):
        verify_inclusion(b"a" * 32, index, size, b"b" * 32, ())


def test_a_larger_tree_is_no_prefix_of_a_smaller_one() -> None:
    with pytest.raises(ValueError, match="no prefix"):
        consistency_proof(4, 3, node)
    with pytest.raises(ProofError, match="no prefix"):
        verify_consistency(4, b"a" * 32, 3, b"b" * 32, ())
    with pytest.raises(ValueError, match="no prefix"):
        consistency_proof(-1, 3, node)
    with pytest.raises(ProofError, match="no prefix"):
        verify_consistency(-1, b"a" * 32, 3, b"b" * 32, [b"a" * 32])


@pytest.mark.parametrize("old", range(9))
@pytest.mark.parametrize("new", range(9))
def test_every_change_of_a_proof_of_consistency_is_noticed(old: int, new: int) -> None:
    if old > new:
        return
    whole = list(consistency_proof(old, new, node))
    roots = root_at(old, node), root_at(new, node)
    verify_consistency(old, roots[0], new, roots[1], whole)
    wrong = [[*whole, b"a" * 32], *(whole[:at] + whole[at + 1 :] for at in range(len(whole)))]
    wrong += [whole[:at] for at in range(len(whole))]
    wrong += [[*whole[:at], b"a" * 32, *whole[at + 1 :]] for at in range(len(whole))]
    wrong += [[*whole[:at], b"short", *whole[at + 1 :]] for at in range(len(whole))]
    for changed in wrong:
        with pytest.raises(ProofError):
            verify_consistency(old, roots[0], new, roots[1], changed)
    with pytest.raises(ProofError):
        verify_consistency(old, b"x" * 32, new, roots[1], whole)
    if old:  # that the empty tree is a prefix of every tree is not a matter of roots
        with pytest.raises(ProofError):
            verify_consistency(old, roots[0], new, b"x" * 32, whole)


@pytest.mark.parametrize("size", range(1, 9))
def test_every_change_of_a_proof_of_inclusion_is_noticed(size: int) -> None:
    root = root_at(size, node)
    for index in range(size):
        leaf = leaf_hash(LEAVES[index])
        whole = list(inclusion_proof(index, size, node))
        verify_inclusion(leaf, index, size, root, whole)
        wrong = [[*whole, b"a" * 32], *(whole[:at] + whole[at + 1 :] for at in range(len(whole)))]
        wrong += [[*whole[:at], b"a" * 32, *whole[at + 1 :]] for at in range(len(whole))]
        for changed in wrong:
            with pytest.raises(ProofError):
                verify_inclusion(leaf, index, size, root, changed)
        with pytest.raises(ProofError):
            verify_inclusion(b"x" * 32, index, size, root, whole)


def test_every_proof_of_a_larger_tree_holds() -> None:
    _, hashes = grown([b"%d" % number for number in range(40)])

    def larger(level: int, offset: int) -> bytes:
        return hashes[stored_index(level, offset)]

    roots = [root_at(size, larger) for size in range(41)]
    for new in range(41):
        for old in range(new + 1):
            found = consistency_proof(old, new, larger)
            verify_consistency(old, roots[old], new, roots[new], found)
        for index in range(new):
            path = inclusion_proof(index, new, larger)
            verify_inclusion(larger(0, index), index, new, roots[new], path)


A, B, C, D = (bytes([x]) * 32 for x in range(4))


def test_a_proof_of_inclusion_has_its_length_even_where_the_root_fits() -> None:
    """Otherwise an inner node passes as a record, or a record of another tree as one of this."""
    with pytest.raises(ProofError, match="too short"):
        verify_inclusion(node_hash(A, B), 0, 2, node_hash(A, B), [])
    with pytest.raises(ProofError, match="too long"):
        verify_inclusion(A, 0, 1, node_hash(B, A), [B])


def test_a_proof_of_consistency_has_its_length_even_where_the_roots_fit() -> None:
    with pytest.raises(ProofError, match="too short"):
        verify_consistency(3, A, 4, node_hash(A, B), [A, B])
    with pytest.raises(ProofError, match="too short"):
        verify_consistency(3, A, 4, node_hash(A, B), [])
    old, new = node_hash(C, A), node_hash(C, node_hash(A, B))
    verify_consistency(3, old, 4, new, [A, B, C])
    with pytest.raises(ProofError, match="too long"):
        verify_consistency(3, node_hash(D, old), 4, node_hash(D, new), [A, B, C, D])


def test_sizes_of_a_frontier_are_bounded() -> None:
    assert Frontier.restore(2**53, [A]).size == 2**53
    for size, peaks in ((2**53 + 1, [A, B]), (-1, [A]), (2, [A, B]), (3, [A])):
        with pytest.raises(ValueError, match="peaks"):
            Frontier.restore(size, peaks)


def test_a_proof_is_bounded() -> None:
    with pytest.raises(ProofError, match="at most"):
        verify_inclusion(b"a" * 32, 0, 2, b"b" * 32, [b"c" * 32] * 64)
    with pytest.raises(ProofError, match="too long"):
        verify_inclusion(b"a" * 32, 0, 2, b"b" * 32, [b"c" * 32] * 63)
