"""Keeps equal values once: nodes of a fleet differ in few of the facts that each sends. Pure.

What differs between all nodes (UUIDs, serials) is better not put here.
"""

from functools import lru_cache
from typing import TypeVar

import msgspec

from gpuwarden.evidence.model import Inventory

T = TypeVar("T")

_VALUES = 4096
"""Values that are remembered; rare ones are forgotten again."""


@lru_cache(_VALUES)
def shared(value: T) -> T:
    """The first of equal values, in place of the others."""
    return value


def compacted(inventory: Inventory) -> Inventory:
    """An equal inventory that shares with others what is large."""
    return msgspec.structs.replace(
        inventory,
        gpus=tuple(
            msgspec.structs.replace(
                gpu,
                nvlinks=shared(gpu.nvlinks),
                board_part_number=shared(gpu.board_part_number),
                product=shared(gpu.product),
                vbios=shared(gpu.vbios),
                fabric=shared(gpu.fabric),
            )
            for gpu in inventory.gpus
        ),
    )
