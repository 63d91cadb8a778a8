"""Proofs by the tree beside a log: they verify, and there is none where the tree is damaged."""

from pathlib import Path

import pytest

from controller.audit.proofs import NoProofError, prove_consistency, prove_inclusion
from controller.audit.tree import NAME
from gpuwarden.audit.merkle import (
    HASH_BYTES,
    Frontier,
    verify_consistency,
    verify_inclusion,
)

SIZE = 11


@pytest.fixture
def roots(tmp_path: Path) -> list[bytes]:
    """Roots of the first 0, 1, 2 … records; their tree is in the folder."""
    tree, found, stored = Frontier(), [Frontier().root()], b""
    for number in range(SIZE):
        stored += tree.append(leaf(number))
        found.append(tree.root())
    (tmp_path / NAME).write_bytes(stored)
    return found


def leaf(number: int) -> bytes:
    return bytes([number + 1]) * HASH_BYTES


def test_each_record_is_proven_to_be_in_each_tree(tmp_path: Path, roots: list[bytes]) -> None:
    for size in range(1, SIZE + 1):
        for record in range(1, size + 1):
            proof = prove_inclusion(tmp_path, record, size)
            verify_inclusion(leaf(record - 1), record - 1, size, roots[size], proof)


def test_each_tree_is_proven_to_continue_those_before(tmp_path: Path, roots: list[bytes]) -> None:
    for new in range(1, SIZE + 1):
        for old in range(1, new + 1):
            proof = prove_consistency(tmp_path, old, new)
            verify_consistency(old, roots[old], new, roots[new], proof)


@pytest.mark.parametrize(("record", "size"), [(0, 5), (6, 5), (1, SIZE + 9)])
@pytest.mark.usefixtures("roots")
def test_there_is_no_proof_of_what_is_not_in_it(tmp_path: Path, record: int, size: int) -> None:
    with pytest.raises(NoProofError):
        prove_inclusion(tmp_path, record, size)


@pytest.mark.parametrize(("old", "new"), [(6, 5), (5, SIZE + 9)])
@pytest.mark.usefixtures("roots")
def test_no_tree_continues_a_larger_one_or_is_larger_than_it_is(
    tmp_path: Path, old: int, new: int
) -> None:
    with pytest.raises(NoProofError):
        prove_consistency(tmp_path, old, new)


@pytest.mark.usefixtures("roots")
def test_a_damaged_tree_gives_no_proof(tmp_path: Path) -> None:
    stored = bytearray((tmp_path / NAME).read_bytes())
    stored[HASH_BYTES : 2 * HASH_BYTES] = bytes(HASH_BYTES)
    (tmp_path / NAME).write_bytes(stored)
    with pytest.raises(NoProofError, match="no hash at level 0, offset 1"):
        prove_inclusion(tmp_path, 1, 2)
    (tmp_path / NAME).write_bytes(stored[: HASH_BYTES // 2])
    with pytest.raises(NoProofError, match="no hash at level 0, offset 0"):
        prove_inclusion(tmp_path, 1, 1)


def test_without_a_tree_there_is_no_proof(tmp_path: Path) -> None:
    with pytest.raises(NoProofError, match="the tree cannot be read: No such file"):
        prove_inclusion(tmp_path, 1, 1)
