"""Tells the scorer of runs that have ended; whoever leads does, the other replicas keep up.

Every replica notes every run. The leader reports them one after the other and keeps what the
scorer does not take, or takes and does not save. The others forget a run after a while, when the
leader has reported it; who leads next reports those that it has not forgotten. So a run is told
again where the leader changed just then, or the scorer could not save it: its id is the pod's UID,
by which gpuwarden's own scorer knows it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NoReturn

from controller.admission.hints.score import Breaker, ScoreError, ScoreFault
from controller.fleet.view import NodeView
from controller.runs.observation import EndedRun, is_saved, observation, observation_body
from controller.scoring.learned import Observation
from gpuwarden.moment import NS_PER_S

DELIVER_SECONDS: Final = 1.0
MOST_WAITING: Final = 10_000
KEPT_NS: Final = 24 * 3600 * NS_PER_S
"""How long the leader tries to report a run."""
FORGOTTEN_NS: Final = 120 * NS_PER_S
"""After which who does not lead takes a run for reported."""
UNSAVED_NS: Final = 30 * NS_PER_S
"""How long the scorer is left alone with a run that it did not save."""


class Report(StrEnum):
    """What became of a run that was to be reported, besides the faults of the scorer."""

    REPORTED = "reported"
    UNSAVED = "unsaved"
    """The scorer has learned from it and could not save that: it is told again."""
    LOST = "lost"
    """It waited for too long, or too many did."""


@dataclass(frozen=True, slots=True)
class RunNote:
    """What became of a run, or of a try to report it; for metrics and the log."""

    ended: EndedRun
    result: str
    """A word of `Report`, `Unreported` or `ScoreFault`."""
    detail: str = ""

    @property
    def is_fault(self) -> bool:
        """Whether the scorer is to blame, or has been for too long."""
        return self.result in {*ScoreFault, Report.UNSAVED, Report.LOST}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSources:
    """What the reporter asks; all but the scorer answer from memory."""

    tell: Callable[[bytes], Coroutine[Any, Any, bytes]]
    """Posts an observation and returns the answer; raises ScoreError."""
    node: Callable[[str], NodeView | None]
    gpus: Callable[[str], tuple[str, ...]]
    """UUIDs of the GPUs that the ledger has for a pod, by its UID."""
    leads: Callable[[], bool]
    note: Callable[[RunNote], None]
    boottime_ns: Callable[[], int]


@dataclass(frozen=True, slots=True)
class _Waiting:
    ended: EndedRun
    body: bytes
    seen_ns: int


class RunReporter:
    """One for the process; used from one event loop."""

    def __init__(self, sources: RunSources) -> None:
        self._sources = sources
        self._waiting: deque[_Waiting] = deque()
        self._unsaved: deque[_Waiting] = deque()
        """The scorer has taken these and not saved them."""
        self._asks_again_ns = 0
        """CLOCK_BOOTTIME until which it is not told of those again."""
        self._breaker = Breaker()

    @property
    def is_open(self) -> bool:
        """Whether the scorer has failed too often, and has not taken a run since."""
        return self._breaker.is_open

    @property
    def unsaved(self) -> int:
        """Runs that the scorer has taken and not saved."""
        return len(self._unsaved)

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, NoReturn]]:
        """What has to run, once."""
        return {"hint runs": self.follow()}

    def ended(self, ended: EndedRun) -> None:
        """A run has ended; returns at once."""
        sources, now_ns = self._sources, self._sources.boottime_ns()
        found = observation(ended, sources.gpus(ended.uid), sources.node(ended.node), now_ns)
        if isinstance(found, Observation):
            self._waiting.append(_Waiting(ended, observation_body(found), now_ns))
        elif sources.leads():
            sources.note(RunNote(ended, found.value))
        if len(self._waiting) + len(self._unsaved) > MOST_WAITING:
            first = (self._unsaved or self._waiting).popleft()
            if sources.leads():  # else the leader may have reported it
                sources.note(RunNote(first.ended, Report.LOST.value))

    async def follow(self, seconds: float = DELIVER_SECONDS) -> NoReturn:
        """Report what is due, forever; ends by cancellation only."""
        while True:
            await asyncio.sleep(seconds)
            await self.deliver()

    async def deliver(self) -> None:
        """Report what is due, until there is nothing, or the scorer does not take one."""
        sources = self._sources
        self._forget()
        while (due := self._due()) and sources.leads() and self._lets():
            first = due.popleft()
            try:
                saved = is_saved(await sources.tell(first.body))
            except ScoreError as error:
                sources.note(RunNote(first.ended, error.fault.value, str(error)))
                if error.fault is not ScoreFault.REFUSED:
                    self._breaker = self._breaker.failed(sources.boottime_ns())
                    self._waiting.append(first)  # behind the others: it may be to blame itself
                    return
            else:
                self._taken(first, saved=saved)
            self._breaker = self._breaker.succeeded()

    def _due(self) -> deque[_Waiting]:
        """What is told next: new runs first, so that the scorer knows them at least."""
        rests = self._sources.boottime_ns() < self._asks_again_ns
        return self._waiting if self._waiting or rests else self._unsaved

    def _lets(self) -> bool:
        return self._breaker.lets(self._sources.boottime_ns())

    def _taken(self, waiting: _Waiting, *, saved: bool) -> None:
        """The scorer has it; once it saves one, it is told of all that it did not save."""
        if saved:
            self._asks_again_ns = 0
            self._sources.note(RunNote(waiting.ended, Report.REPORTED.value))
            return
        self._unsaved.append(waiting)
        self._asks_again_ns = self._sources.boottime_ns() + UNSAVED_NS
        text = "the scorer learned from it and could not save that"
        self._sources.note(RunNote(waiting.ended, Report.UNSAVED.value, text))

    def _forget(self) -> None:
        """What is too old: as the leader it is lost, else the leader has reported it."""
        sources, leads = self._sources, self._sources.leads()
        since_ns = sources.boottime_ns() - (KEPT_NS if leads else FORGOTTEN_NS)
        for queue in (self._waiting, self._unsaved):
            for waiting in [x for x in queue if x.seen_ns <= since_ns]:
                queue.remove(waiting)
                if leads:
                    sources.note(RunNote(waiting.ended, Report.LOST.value))
