"""The Merkle tree of RFC 6962 over an audit log's records: roots, proofs and their verification.

Leaf i (from 0) is the line of record i + 1 without its LF. A tree grows from a
`Frontier` of at most 63 hashes. Proofs need the hashes of complete subtrees inside the
tree; those are stored once, in the order in which they become complete, and found by
`stored_index`. Sources: RFC 6962 section 2.1, RFC 9162 sections 2.1.3.2 and 2.1.4.2 for
the verification. Pure: keeps no file, reads none.
"""

from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Final, Self

HASH_BYTES: Final = 32
MAX_SIZE: Final = 1 << 53
"""Sizes travel in JSON."""
MAX_PROOF: Final = 63
"""Hashes in a proof at most (C2SP tlog-witness); this log needs 54."""
EMPTY_ROOT: Final = sha256(b"").digest()

Node = Callable[[int, int], bytes]
"""(level, offset) -> hash of the complete subtree over leaves offset * 2**level and following."""


class ProofError(Exception):
    """A proof that does not hold; the message is why."""


def leaf_hash(line: bytes) -> bytes:
    """Hash of a record's line without its LF."""
    return sha256(b"\0" + line).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Hash of two subtrees side by side."""
    return sha256(b"\1" + left + right).digest()


class Frontier:
    """What is needed of a tree to let it grow: its complete subtrees, largest first."""

    __slots__ = ("_peaks", "_size")

    def __init__(self) -> None:
        self._size = 0
        self._peaks: list[bytes] = []

    @classmethod
    def restore(cls, size: int, peaks: Sequence[bytes]) -> Self:
        """Go on from `size` and `peaks`; raises ValueError if they cannot belong together."""
        if not 0 <= size <= MAX_SIZE or len(peaks) != size.bit_count():
            raise ValueError(f"a tree of {size} leaves does not have {len(peaks)} peaks")
        if any(len(peak) != HASH_BYTES for peak in peaks):
            raise ValueError("a peak is not a SHA-256")
        frontier = cls()
        frontier._size, frontier._peaks = size, list(peaks)
        return frontier

    @property
    def size(self) -> int:
        """Leaves."""
        return self._size

    @property
    def peaks(self) -> tuple[bytes, ...]:
        """Hashes of the complete subtrees that make up the tree, largest first."""
        return tuple(self._peaks)

    def copy(self) -> "Frontier":
        """The same tree, to be grown on trial."""
        return Frontier.restore(self._size, self._peaks)

    def append(self, leaf: bytes) -> bytes:
        """Add a leaf's hash; return the hashes that became complete, to be stored, joined."""
        size, peaks = self._size, self._peaks
        completed = bytearray(leaf)
        while size & 1:
            leaf = node_hash(peaks.pop(), leaf)
            completed += leaf
            size >>= 1
        peaks.append(leaf)
        self._size += 1
        return bytes(completed)

    def root(self) -> bytes:
        """Root of the tree."""
        if not self._peaks:
            return EMPTY_ROOT
        *larger, root = self._peaks
        for peak in reversed(larger):
            root = node_hash(peak, root)
        return root


def stored_count(size: int) -> int:
    """How many hashes a tree of `size` leaves has stored."""
    return 2 * size - size.bit_count()


def stored_index(level: int, offset: int) -> int:
    """Place of the hash of a complete subtree: behind the leaf that completed it."""
    last_leaf = ((offset + 1) << level) - 1
    return stored_count(last_leaf) + level


def peaks_of(size: int) -> Iterator[tuple[int, int]]:
    """Level and offset of the complete subtrees that make up a tree, largest first."""
    first = 0
    for level in reversed(range(size.bit_length())):
        if size >> level & 1:
            yield level, first >> level
            first += 1 << level


def root_at(size: int, node: Node) -> bytes:
    """Root of the tree's first `size` leaves."""
    return Frontier.restore(size, [node(*peak) for peak in peaks_of(size)]).root()


def inclusion_proof(index: int, size: int, node: Node) -> tuple[bytes, ...]:
    """Prove that leaf `index` is in the tree of `size` leaves; raises ValueError outside of it."""
    if not 0 <= index < size:
        raise ValueError(f"leaf {index} is not in a tree of {size} leaves")
    return tuple(_path(index, 0, size, node))


def consistency_proof(old: int, new: int, node: Node) -> tuple[bytes, ...]:
    """Prove that the tree of `old` leaves is a prefix of that of `new`.

    Empty where there is nothing to prove: from the empty tree, and between equal sizes.
    """
    if not 0 <= old <= new:
        raise ValueError(f"a tree of {old} leaves is no prefix of one of {new}")
    if old in {0, new}:
        return ()
    return tuple(_subproof(old, 0, new, node, whole=True))


def verify_inclusion(
    leaf: bytes, index: int, size: int, root: bytes, proof: Sequence[bytes]
) -> None:
    """Accept a leaf's hash as that of leaf `index` of the tree; raises ProofError."""
    if not 0 <= index < size:
        raise ProofError(f"leaf {index} is not in a tree of {size} leaves")
    node, last, found = index, size - 1, leaf
    for sibling in _checked(proof):
        if last == 0:
            raise ProofError("the proof is too long")
        if node & 1 or node == last:
            found = node_hash(sibling, found)
            while node and not node & 1:
                node, last = node >> 1, last >> 1
        else:
            found = node_hash(found, sibling)
        node, last = node >> 1, last >> 1
    if last:
        raise ProofError("the proof is too short")
    if found != root:
        raise ProofError("the proof leads to another root")


def verify_consistency(
    old: int, old_root: bytes, new: int, new_root: bytes, proof: Sequence[bytes]
) -> None:
    """Accept the tree of `old` leaves as a prefix of that of `new`; raises ProofError."""
    if not 0 <= old <= new:
        raise ProofError(f"a tree of {old} leaves is no prefix of one of {new}")
    if old in {0, new}:
        if proof:
            raise ProofError("the proof is too long")
        if old_root != (new_root if old else EMPTY_ROOT):
            raise ProofError("the same size has another root")
        return
    _verify_prefix(old, old_root, new, new_root, _checked(proof))


def _verify_prefix(
    old: int, old_root: bytes, new: int, new_root: bytes, proof: Sequence[bytes]
) -> None:
    path = [old_root, *proof] if old & (old - 1) == 0 else list(proof)
    if not path:
        raise ProofError("the proof is too short")
    node, last = old - 1, new - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    first = second = path[0]
    for sibling in path[1:]:
        if last == 0:
            raise ProofError("the proof is too long")
        if node & 1 or node == last:
            first, second = node_hash(sibling, first), node_hash(sibling, second)
            while node and not node & 1:
                node, last = node >> 1, last >> 1
        else:
            second = node_hash(second, sibling)
        node, last = node >> 1, last >> 1
    if last:
        raise ProofError("the proof is too short")
    if (first, second) != (old_root, new_root):
        raise ProofError("the proof leads to another root")


def _checked(proof: Sequence[bytes]) -> Sequence[bytes]:
    if len(proof) > MAX_PROOF or any(len(one) != HASH_BYTES for one in proof):
        raise ProofError(f"a proof is at most {MAX_PROOF} hashes of {HASH_BYTES} bytes")
    return proof


def _split(size: int) -> int:
    """Largest power of two below `size`."""
    return 1 << (size - 1).bit_length() - 1


def _range(first: int, end: int, node: Node) -> bytes:
    """Hash over leaves first to end; `first` is aligned as in the tree."""
    size = end - first
    if size & (size - 1) == 0:
        level = size.bit_length() - 1
        return node(level, first >> level)
    middle = first + _split(size)
    return node_hash(_range(first, middle, node), _range(middle, end, node))


def _path(index: int, first: int, end: int, node: Node) -> Iterator[bytes]:
    if end - first == 1:
        return
    middle = first + _split(end - first)
    if index < middle:
        yield from _path(index, first, middle, node)
        yield _range(middle, end, node)
    else:
        yield from _path(index, middle, end, node)
        yield _range(first, middle, node)


def _subproof(old: int, first: int, end: int, node: Node, *, whole: bool) -> Iterator[bytes]:
    """SUBPROOF of RFC 6962 for the leaves first to end, of which those before `old` are old."""
    if old == end:
        if not whole:
            yield _range(first, end, node)
        return
    middle = first + _split(end - first)
    if old <= middle:
        yield from _subproof(old, first, middle, node, whole=whole)
        yield _range(middle, end, node)
    else:
        yield from _subproof(old, middle, end, node, whole=False)
        yield _range(first, middle, node)
