"""Makes proofs from a log's files: that a record is in it, and that it only grew.

The files are read once to verify them and once more for the few hashes that a proof needs,
so the size of a log does not matter. Hashes from before the first file, whose records are
past retention, come from the file `tree`, if there is one. Every proof is checked before
it is given away. Reads only.
"""

from base64 import b64decode
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gpuwarden.audit.chain import Broken, Verified
from gpuwarden.audit.checkpoint import TreeHead
from gpuwarden.audit.files import lines_of, verify_files
from gpuwarden.audit.merkle import (
    HASH_BYTES,
    Frontier,
    Node,
    ProofError,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    peaks_of,
    root_at,
    stored_count,
    stored_index,
    verify_consistency,
    verify_inclusion,
)
from gpuwarden.audit.record import RecordKind, decode_record

TREE_FILE = "tree"
"""In the log's folder: all stored hashes of its tree."""
T = TypeVar("T")


class NoProofError(Exception):
    """There is no such proof; the message is why."""


@dataclass(frozen=True, slots=True)
class Inclusion:
    """A record is in the log that a signed checkpoint is about."""

    record: int
    leaf: bytes
    note: str
    proof: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Consistency:
    """An earlier state of a log is a prefix of a later one."""

    old: TreeHead
    new: TreeHead
    proof: tuple[bytes, ...]


class VerifiedLog:
    """The files of one log, verified; raises NoProofError where they are broken."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        result = verify_files(paths).result
        if isinstance(result, Broken):
            raise NoProofError(f"the log is broken at record {result.seq}: {result.what}")
        self.found: Verified = result

    def inclusion(self, seq: int) -> Inclusion:
        """Prove record `seq` against the last checkpoint; raises NoProofError."""
        first, certified = self.found.first_seq, self.found.tree.certified
        if not first <= seq <= certified:
            raise NoProofError(
                f"record {seq} is not among those that the last checkpoint covers:"
                f" {first} to {certified}"
            )
        leaf, proof, root = self._computed(
            lambda node: (
                node(0, seq - 1),
                inclusion_proof(seq - 1, certified, node),
                root_at(certified, node),
            )
        )
        verify_inclusion(leaf, seq - 1, certified, root, proof)
        return Inclusion(seq, leaf, self.found.tree.note, proof)

    def consistency(self, old: int, new: int) -> Consistency:
        """Prove that the first `old` records are the first of `new`; raises NoProofError."""
        last = self.found.head.seq
        if not 0 <= old <= new <= last:
            raise NoProofError(f"expected 0 <= {old} <= {new} <= {last}, the last record")
        old_root, new_root, proof = self._computed(
            lambda node: (
                root_at(old, node),
                root_at(new, node),
                consistency_proof(old, new, node),
            )
        )
        try:
            verify_consistency(old, old_root, new, new_root, proof)
        except ProofError as error:
            raise NoProofError(f"the file {TREE_FILE!r} is damaged: {error}") from error
        return Consistency(TreeHead(old, old_root), TreeHead(new, new_root), proof)

    def _computed(self, compute: Callable[[Node], T]) -> T:
        """Run `compute` with the hashes that it asks for, found in one pass over the files."""
        asked: set[tuple[int, int]] = set()

        def ask(level: int, offset: int) -> bytes:
            asked.add((level, offset))
            return b"\0" * HASH_BYTES

        compute(ask)
        found = self._hashes({stored_index(*where) for where in asked})
        return compute(lambda level, offset: found[stored_index(level, offset)])

    def _hashes(self, wanted: set[int]) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        frontier, at = None, 0
        for line in lines_of(self._paths):
            if frontier is None:
                frontier = _before(line[:-1])
                at = stored_count(frontier.size)
                peaks = zip(peaks_of(frontier.size), frontier.peaks, strict=True)
                found = {stored_index(*where): peak for where, peak in peaks}
            completed = frontier.append(leaf_hash(line[:-1]))
            for begin in range(0, len(completed), HASH_BYTES):
                if at in wanted:
                    found[at] = completed[begin : begin + HASH_BYTES]
                at += 1
        return found | self._older(wanted - found.keys())

    def _older(self, wanted: set[int]) -> dict[int, bytes]:
        """Hashes from before the first file."""
        found: dict[int, bytes] = {}
        with suppress(OSError), (self._paths[0].parent / TREE_FILE).open("rb") as file:
            for index in wanted:
                file.seek(index * HASH_BYTES)
                one = file.read(HASH_BYTES)
                if len(one) == HASH_BYTES and any(one):
                    found[index] = one
        if wanted - found.keys():
            raise NoProofError(
                f"the tree before record {self.found.first_seq} is needed, and neither its"
                f" records nor the file {TREE_FILE!r} hold it"
            )
        return found


def _before(first_line: bytes) -> Frontier:
    """The tree before a verified log's first record; raises NoProofError."""
    record = decode_record(first_line)
    if record.seq == 1:
        return Frontier()
    if record.kind != RecordKind.LOG_ROTATE or "frontier" not in record.refs:
        raise NoProofError(f"record {record.seq} does not say what the tree before it was")
    peaks = [b64decode(peak) for peak in record.refs["frontier"]]
    return Frontier.restore(record.seq - 1, peaks)
