"""The order of evidence levels. Pure."""

from controller.fleet.view import Level

RANK: dict[Level, int] = {level: rank for rank, level in enumerate(Level)}
"""`none` is 0, then L0 to L3."""


def highest(*levels: Level) -> Level:
    """The strictest of some demanded levels."""
    return max(levels, key=RANK.__getitem__)
