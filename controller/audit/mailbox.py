"""The bounded queue between those who report events and the thread that writes them.

Nobody waits here but the writer. Ordinary records may fill three quarters; the rest is
kept for grants, refusals and revocations.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from controller.audit.record import Record
from gpuwarden.audit.record import RecordKind

GROUP_RECORDS = 64
"""Records that are made durable together at most."""
GROUP_SECONDS = 0.005
"""Longest time that a record without a waiter is held back to gather a group."""

ORDINARY = frozenset({RecordKind.FILTER_DECISION, RecordKind.EVIDENCE_ROUND})
"""Kinds that go first when room runs out."""


class Ticket:
    """The waiting side of a grant: told once, from the writer's thread, how it went."""

    def __init__(self, tell: Callable[[str | None], None]) -> None:
        self._tell = tell
        self.abandoned = False
        """Set by the waiter when it has given up: the record must not be written any more."""

    def settle(self, failure: str | None) -> None:
        """Tell the waiter that the record is durable (None), or why it is not."""
        self._tell(failure)


@dataclass(frozen=True, slots=True)
class Letter:
    """A record on its way into the log."""

    record: Record
    wall_ns: int
    sent_ns: int
    """CLOCK_BOOTTIME, for the lag."""
    ticket: Ticket | None = None

    @property
    def ordinary(self) -> bool:
        """Whether it may be dropped first."""
        return self.ticket is None and self.record.kind in ORDINARY


class Mailbox:
    """First in, first out; every method may be called from any thread."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._ordinary_limit = limit * 3 // 4
        self._letters: deque[Letter] = deque()
        self._urgent = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._letters)

    def put(self, letter: Letter) -> bool:
        """Take the letter; False when there is no room for it."""
        with self._changed:
            limit = self._ordinary_limit if letter.ordinary else self._limit
            if len(self._letters) >= limit:
                return False
            self._letters.append(letter)
            self._urgent |= letter.ticket is not None
            if self._urgent or len(self._letters) in {1, GROUP_RECORDS}:
                self._changed.notify()
            return True

    def wake(self) -> None:
        """End the writer's present wait."""
        with self._changed:
            self._urgent = True
            self._changed.notify()

    def take(self, timeout: float) -> list[Letter]:
        """Return the next group, oldest first; empty after `timeout` seconds or a `wake`.

        A waiting grant is taken at once, with what is there; other records wait up to
        GROUP_SECONDS for company.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._letters or self._urgent, timeout)
            self._changed.wait_for(
                lambda: self._urgent or not 0 < len(self._letters) < GROUP_RECORDS, GROUP_SECONDS
            )
            count = min(len(self._letters), GROUP_RECORDS)
            group = [self._letters.popleft() for _ in range(count)]
            self._urgent = any(letter.ticket for letter in self._letters)
            return group

    def put_back(self, letters: Iterable[Letter]) -> int:
        """Put unwritten letters without waiters back in front; returns how many had no room."""
        lost = 0
        with self._changed:
            for letter in reversed(list(letters)):
                if len(self._letters) >= self._limit:
                    lost += 1
                else:
                    self._letters.appendleft(letter)
        return lost

    def take_out(self, choose: Callable[[Letter], bool]) -> list[Letter]:
        """Remove and return the letters that `choose` picks."""
        with self._changed:
            chosen = [letter for letter in self._letters if choose(letter)]
            self._letters = deque(letter for letter in self._letters if not choose(letter))
            self._urgent = any(letter.ticket for letter in self._letters)
        return chosen

    def oldest_ns(self) -> int | None:
        """When the oldest waiting letter was sent."""
        with self._changed:
            return self._letters[0].sent_ns if self._letters else None
