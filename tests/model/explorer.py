"""Visits every state of a world, breadth first, and says how one was come to that must not be."""

import gc
from collections import deque
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tests.model.ledger_world import BrokenError

S = TypeVar("S", bound=Hashable)


class Steps(Protocol[S]):
    """A world's states, and every step out of one."""

    def start(self) -> S:
        """The first state."""

    def demand_invariants(self, world: S) -> None:
        """Raise BrokenError for a state that must not be."""

    def is_at_rest(self, world: S) -> bool:
        """Whether everything is over and nothing was lost forever."""

    def out_of(self, world: S) -> Iterator[tuple[str, S]]:
        """Names of steps, and the states that they lead to."""


@dataclass(frozen=True)
class Explored:
    """What was visited."""

    states: int
    complete: bool
    """False where the bound came first."""
    stuck: tuple[str, ...] = ()
    """The way to a state out of which nothing leads to rest; empty where there is none."""


class FoundError(AssertionError):
    """A way into a state that must not be."""


def explore(steps: Steps[S], *, most: int, looks_for_stuck: bool = True) -> Explored:
    """Visit at most `most` states; raises FoundError."""
    with _no_search_for_garbage():
        return _explore(steps, most, looks_for_stuck=looks_for_stuck)


@contextmanager
def _no_search_for_garbage() -> Iterator[None]:
    """Everything that is made is kept, and there are no cycles: Python would find none."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _explore(steps: Steps[S], most: int, *, looks_for_stuck: bool) -> Explored:
    start = steps.start()
    numbers: dict[S, int] = {start: 0}
    came: list[tuple[int, str]] = [(0, "")]
    before: list[list[int]] = [[]]
    rest: list[int] = []
    waiting = deque([start])
    while waiting:
        world = waiting.popleft()
        number = numbers[world]
        try:
            steps.demand_invariants(world)
        except BrokenError as error:
            raise FoundError(f"{error}\n" + "\n".join(_way(came, number))) from None
        if steps.is_at_rest(world):
            rest.append(number)
        for name, after in steps.out_of(world):
            found = numbers.get(after)
            if found is None:
                if len(came) >= most:
                    return Explored(len(came), complete=False)
                found = numbers[after] = len(came)
                came.append((number, name))
                before.append([])
                waiting.append(after)
            before[found].append(number)
    stuck = _stuck(before, rest) if looks_for_stuck else None
    return Explored(
        len(came), complete=True, stuck=() if stuck is None else tuple(_way(came, stuck))
    )


def _stuck(before: list[list[int]], rest: list[int]) -> int | None:
    reaches = bytearray(len(before))
    waiting = list(rest)
    for number in rest:
        reaches[number] = 1
    while waiting:
        for number in before[waiting.pop()]:
            if not reaches[number]:
                reaches[number] = 1
                waiting.append(number)
    found = reaches.find(0)
    return None if found < 0 else found


def _way(came: list[tuple[int, str]], number: int) -> list[str]:
    names = []
    while number:
        number, name = came[number]
        names.append(name)
    return names[::-1]
