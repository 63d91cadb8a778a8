"""What a benchmark run has found: rows with goals, and the points of the growth curves.

Values only; `page` shows them, `__main__` keeps them as JSON.
"""

from enum import StrEnum

import msgspec


class Bound(StrEnum):
    """Which side of a goal is the good one."""

    AT_MOST = "at most"
    AT_LEAST = "at least"


class Goal(msgspec.Struct, frozen=True):
    """What a row has to reach."""

    bound: Bound
    value: float
    of_ratio: bool = True
    """Whether it is about ours over the peer's, or about our number itself."""

    def holds(self, value: float) -> bool:
        """Whether `value` reaches the goal."""
        return value <= self.value if self.bound is Bound.AT_MOST else value >= self.value


class Row(msgspec.Struct, frozen=True):
    """One line of the table."""

    group: str
    work: str
    unit: str
    ours: float
    peer: float | None = None
    peer_name: str = ""
    goal: Goal | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours over the peer's."""
        return None if not self.peer else self.ours / self.peer

    @property
    def holds(self) -> bool | None:
        """Whether the goal is reached; None without one."""
        value = self.ratio if self.goal is not None and self.goal.of_ratio else self.ours
        return None if self.goal is None or value is None else self.goal.holds(value)


class Point(msgspec.Struct, frozen=True):
    """One measurement at one size of the fleet."""

    nodes: int
    value: float


class Curve(msgspec.Struct, frozen=True):
    """How one cost grows with the fleet."""

    title: str
    unit: str
    points: tuple[Point, ...]


class Report(msgspec.Struct, frozen=True):
    """A whole run."""

    machine: dict[str, str]
    rows: tuple[Row, ...]
    curves: tuple[Curve, ...]
