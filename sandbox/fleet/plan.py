"""What happens to the nodes of a simulated fleet, and when: decided in advance by a seed.

Pure. Nodes are numbers; times are seconds from the moment the whole fleet stands.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What can happen to a node."""

    DROP = "drop"
    """Its connections break; the agent comes back by itself."""
    RESTART = "restart"
    """The agent dies without a word and starts again with another instance id."""
    ROTATE = "rotate"
    """It gets a new SVID."""
    UPGRADE = "upgrade"
    """It comes back with another driver, so with another class hash."""


@dataclass(frozen=True, slots=True)
class Happening:
    """One thing that happens to one node."""

    at_s: float
    kind: Kind
    node: int


@dataclass(frozen=True, slots=True)
class Rates:
    """Share of the fleet per minute, 0 to 1 (more is allowed), and the part that is upgraded."""

    drop: float = 0.0
    restart: float = 0.0
    rotate: float = 0.0
    upgrade: float = 0.0
    """Part of the fleet that rolls to the next driver, evenly over the whole time."""


def plan(seed: int, nodes: int, seconds: float, rates: Rates) -> tuple[Happening, ...]:
    """Everything that happens in `seconds`, in time order; equal arguments, equal plans."""
    draw = random.Random(seed)  # noqa: S311 - the same plan every time is the point
    happenings = [
        *_scattered(draw, nodes, seconds, Kind.DROP, rates.drop),
        *_scattered(draw, nodes, seconds, Kind.RESTART, rates.restart),
        *_scattered(draw, nodes, seconds, Kind.ROTATE, rates.rotate),
        *_rolling(draw, nodes, seconds, rates.upgrade),
    ]
    return tuple(sorted(happenings, key=lambda one: (one.at_s, one.kind, one.node)))


def _scattered(
    draw: random.Random, nodes: int, seconds: float, kind: Kind, per_minute: float
) -> Iterator[Happening]:
    for _ in range(round(nodes * per_minute * seconds / 60)):
        yield Happening(draw.uniform(0, seconds), kind, draw.randrange(nodes))


def _rolling(draw: random.Random, nodes: int, seconds: float, part: float) -> Iterator[Happening]:
    """One node after the other, each once."""
    chosen = draw.sample(range(nodes), round(nodes * min(1.0, part)))
    for position, node in enumerate(chosen):
        yield Happening(seconds * (position + 0.5) / len(chosen), Kind.UPGRADE, node)
