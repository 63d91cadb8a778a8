"""Which connections of a listener stay, and which gives way when there is no room for another.

A connection waits for a whole request, is answered, or is idle between two requests. One that is
answered never gives way. Pure: the caller gives the time, in seconds of a clock that only advances.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

C = TypeVar("C", bound=Hashable)


class Phase(Enum):
    """What a connection does."""

    WAITING = auto()
    """No whole head of a request has come; TLS may not even be agreed."""
    IDLE = auto()
    """Its last request was answered; nothing of another has come."""
    BUSY = auto()
    """A request is received, decided or answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionBounds:
    """How many there may be, and how long each phase may last (seconds)."""

    connections: int
    head_s: float
    idle_s: float
    busy_s: float

    def of(self, phase: Phase) -> float:
        """How long this phase may last."""
        match phase:
            case Phase.WAITING:
                return self.head_s
            case Phase.IDLE:
                return self.idle_s
            case Phase.BUSY:
                return self.busy_s


class ConnectionTable(Generic[C]):
    """The open connections of one listener, oldest first in each phase."""

    def __init__(self, bounds: ConnectionBounds) -> None:
        self._bounds = bounds
        self._since: dict[Phase, dict[C, float]] = {phase: {} for phase in Phase}
        self._phases: dict[C, Phase] = {}

    def __len__(self) -> int:
        return len(self._phases)

    def __contains__(self, connection: C) -> bool:
        return connection in self._phases

    @property
    def is_full(self) -> bool:
        """Whether another connection needs one to give way."""
        return len(self._phases) >= self._bounds.connections

    def in_the_way(self) -> C | None:
        """The connection that gives way to another; None where every one is answered.

        The oldest of those that wait, or of those that are idle, whichever are more. So a crowd
        that never asks pushes out its own, and so does a crowd that asked once and stays.
        """
        waiting, idle = self._since[Phase.WAITING], self._since[Phase.IDLE]
        larger = waiting if len(waiting) >= len(idle) else idle
        return next(iter(larger), None)

    def add(self, connection: C, now: float) -> None:
        """A connection that was accepted."""
        self._phases[connection] = Phase.WAITING
        self._since[Phase.WAITING][connection] = now

    def move(self, connection: C, phase: Phase, now: float) -> None:
        """A connection enters a phase, or begins it again; one that has ended is ignored."""
        if connection in self._phases:
            del self._since[self._phases[connection]][connection]
            self._phases[connection] = phase
            self._since[phase][connection] = now

    def remove(self, connection: C) -> None:
        """A connection has ended; no matter whether it was ever added."""
        phase = self._phases.pop(connection, None)
        if phase is not None:
            del self._since[phase][connection]

    def all(self) -> tuple[C, ...]:
        """All of them."""
        return tuple(self._phases)

    def count(self, phase: Phase) -> int:
        """How many are in it."""
        return len(self._since[phase])

    def phase(self, connection: C) -> Phase | None:
        """What it does; None once it has ended."""
        return self._phases.get(connection)

    def overdue(self, now: float) -> list[tuple[C, Phase]]:
        """The connections whose phase has lasted too long, with that phase."""
        found: list[tuple[C, Phase]] = []
        for phase, connections in self._since.items():
            limit = self._bounds.of(phase)
            for connection, since in connections.items():
                if now - since < limit:
                    break
                found.append((connection, phase))
        return found
