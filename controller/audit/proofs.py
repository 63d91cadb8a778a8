"""Proofs by a log's tree for whoever asks: that a record is in it, that it continues another.

Reads the file of hashes beside the log while its writer appends to it. What is handed out has been
checked: a damaged tree must not accuse the log. Blocks; call it on a thread.
"""

import os
from pathlib import Path
from typing import Self

from controller.audit.tree import NAME, NoNodeError
from gpuwarden.audit.merkle import (
    HASH_BYTES,
    ProofError,
    consistency_proof,
    inclusion_proof,
    root_at,
    stored_index,
    verify_consistency,
    verify_inclusion,
)
from gpuwarden.regular_file import open_to_read


class NoProofError(Exception):
    """There is none; the message is why."""


def prove_inclusion(folder: Path, record: int, size: int) -> tuple[bytes, ...]:
    """That record `record` (from 1) is among the first `size`; raises NoProofError."""
    with _Tree(folder) as tree:
        try:
            proof = inclusion_proof(record - 1, size, tree.node)
            leaf, root = tree.node(0, record - 1), root_at(size, tree.node)
            verify_inclusion(leaf, record - 1, size, root, proof)
        except (ValueError, ProofError, NoNodeError) as error:
            raise NoProofError(str(error)) from None
    return proof


def prove_consistency(folder: Path, old: int, new: int) -> tuple[bytes, ...]:
    """That the tree of `new` records continues that of `old`; raises NoProofError."""
    with _Tree(folder) as tree:
        try:
            proof = consistency_proof(old, new, tree.node)
            roots = root_at(old, tree.node), root_at(new, tree.node)
            verify_consistency(old, roots[0], new, roots[1], proof)
        except (ValueError, ProofError, NoNodeError) as error:
            raise NoProofError(str(error)) from None
    return proof


class _Tree:
    """The file of hashes, open."""

    def __init__(self, folder: Path) -> None:
        try:
            self._file = open_to_read(folder / NAME)
        except OSError as error:
            raise NoProofError(f"the tree cannot be read: {error.strerror}") from None

    def __enter__(self) -> Self:
        self._file.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(None, None, None)

    def node(self, level: int, offset: int) -> bytes:
        """The hash of a complete subtree; raises NoNodeError."""
        place = stored_index(level, offset) * HASH_BYTES
        found = os.pread(self._file.fileno(), HASH_BYTES, place)
        if len(found) != HASH_BYTES or found == bytes(HASH_BYTES):
            raise NoNodeError(f"no hash at level {level}, offset {offset}")
        return found
