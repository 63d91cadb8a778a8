"""RFC 6962: roots and proofs over the eight leaves that other implementations test with."""

from typing import Any

from gpuwarden.audit.merkle import (
    EMPTY_ROOT,
    Frontier,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    root_at,
    stored_index,
)

LEAVES = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
"""From the tests of Certificate Transparency; the root of all eight is well known."""


def merkle() -> dict[str, Any]:
    stored: list[bytes] = []
    tree = Frontier()
    for leaf in LEAVES:
        completed = tree.append(leaf_hash(leaf))
        stored += [completed[at : at + 32] for at in range(0, len(completed), 32)]

    def node(level: int, offset: int) -> bytes:
        return stored[stored_index(level, offset)]

    sizes = range(1, len(LEAVES) + 1)
    return {
        "leaves": [leaf.hex() for leaf in LEAVES],
        "roots": [EMPTY_ROOT.hex(), *(root_at(size, node).hex() for size in sizes)],
        "storedHashes": [one.hex() for one in stored],
        "inclusion": [
            {
                "leaf": index,
                "size": size,
                "proof": [one.hex() for one in inclusion_proof(index, size, node)],
            }
            for size in sizes
            for index in range(size)
        ],
        "consistency": [
            {
                "old": old,
                "new": new,
                "proof": [one.hex() for one in consistency_proof(old, new, node)],
            }
            for new in sizes
            for old in range(new + 1)
        ],
    }
