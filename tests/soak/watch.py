"""In which phase a soak is, told now and then; a phase that exceeds its limit is given up.

Every wait of the soak has a limit of its own below that of its phase. This is for what has none:
a call of the operating system, a lock, a library.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tests.soak.report import Stuck

LINE_S: Final = 30.0
SLACK_S: Final = 60.0
"""For what a wait has begun when its time is over, for example calls."""
_LOOK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Phase:
    """What a soak does, and for how long at most."""

    name: str
    limit_s: float


START: Final = Phase("the cluster starts", 600)
WORK_ENDS: Final = Phase("kills and rotations come to their end", 360)
BIND: Final = Phase("the last pods are bound", 120)
AGREE: Final = Phase("ledger and API agree", 120)
EMPTY: Final = Phase("all pods are deleted, no GPU is held", 120)
CLIENT_ENDS: Final = Phase("the pods' client comes to its end", 60)
LOOK: Final = Phase("logs are read and verified", 600)
CLEAN_UP: Final = Phase("the cluster is removed", 240)
_AFTER_LOAD: Final = (WORK_ENDS, BIND, AGREE, EMPTY, CLIENT_ENDS, LOOK, CLEAN_UP)


def during(minutes: float) -> Phase:
    """The phase that was asked for."""
    return Phase("pods come and go", minutes * 60)


def longest_s(minutes: float) -> float:
    """When a soak has ended, whatever happens to it."""
    phases = (START, during(minutes), *_AFTER_LOAD)
    return sum(phase.limit_s + SLACK_S for phase in phases)


class Watch:
    """Where the soak is. `enter` and `note` are called by who does it, `look` by the watch."""

    def __init__(
        self,
        say: Callable[[str], None],
        give_up: Callable[[Stuck], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state: Callable[[], str] = lambda: "no pods yet"
        """How pods and errors stand, in a line."""
        self._say = say
        self._give_up = give_up
        self._clock = clock
        self._lock = threading.Lock()
        self._begun = self._told = clock()
        self._entered = self._begun
        self._phase = START
        self._outstanding: tuple[str, ...] = ()

    def start(self) -> None:
        """Look from now on; to the end of the process, which may be late as well."""
        threading.Thread(target=self._go_on, name="watch", daemon=True).start()

    def enter(self, phase: Phase) -> None:
        """The next phase begins; nothing is known to be outstanding."""
        with self._lock:
            self._phase, self._entered, self._outstanding = phase, self._clock(), ()

    def note(self, outstanding: Sequence[str]) -> None:
        """What the phase waits for now."""
        with self._lock:
            self._outstanding = tuple(outstanding)

    def stuck(self, why: str = "") -> Stuck:
        """Where it is now, for the report; `why`: what ended it, if not time."""
        with self._lock:
            after_s = self._clock() - self._entered
            return Stuck(self._phase.name, round(after_s, 1), self._outstanding, why)

    def look(self) -> bool:
        """Say a line where it is time for one; whether it goes on."""
        now = self._clock()
        with self._lock:
            is_over = now - self._entered > self._phase.limit_s + SLACK_S
        if is_over:
            self._give_up(self.stuck("its limit is exceeded"))
            return False
        if now - self._told >= LINE_S:
            self._told = now
            self._say(self._line(now))
        return True

    def _line(self, now: float) -> str:
        with self._lock:
            phase, outstanding = self._phase.name, self._outstanding
        left = f"; {len(outstanding)} outstanding, such as {outstanding[0]}" if outstanding else ""
        return f"{now - self._begun:5.0f} s  {phase}: {self.state()}{left}"

    def _go_on(self) -> None:
        while self.look():
            time.sleep(_LOOK_S)
