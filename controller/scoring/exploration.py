"""Keeps the share of explorations among the last decisions below the cap."""

from collections import deque
from enum import StrEnum


class DecisionType(StrEnum):
    """How a GPU type was chosen."""

    EXPLOIT = "exploit"
    """The job has run on it."""
    EXPLORE = "explore"
    """It has not, and has on another candidate."""
    FORCED = "forced"
    """It has run on no candidate, so there was nothing else to choose."""


class ExplorationWindow:
    """The last decisions; in memory, so that a restart begins with none."""

    def __init__(self, cap: float, decisions: int) -> None:
        self._cap = cap
        self._last: deque[bool] = deque(maxlen=decisions)
        self._explored = 0

    @property
    def ratio(self) -> float:
        """Share of explorations among the last decisions."""
        return self._explored / len(self._last) if self._last else 0.0

    def allows_one(self) -> bool:
        """Whether one more keeps the share at the cap, or one decision above it."""
        size = self._last.maxlen or 0
        leaving = len(self._last) == size and self._last[0]
        after = min(len(self._last) + 1, size)
        return self._cap > 0 and self._explored - leaving <= self._cap * after

    def note(self, decision: DecisionType) -> None:
        """Remember a decision that counts."""
        if len(self._last) == self._last.maxlen:
            self._explored -= self._last[0]
        self._last.append(decision is DecisionType.EXPLORE)
        self._explored += self._last[-1]
