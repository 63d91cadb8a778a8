"""Answers of the scoring service: reads documents, scores, learns, and keeps what it learned.

Answers come from memory. What is learned is written at once; while the database does not take it,
runs wait here and are written when it does.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from controller.scoring.assignment import NotEnoughError, transport_plan, whole_assignment
from controller.scoring.documents import (
    BadRequestError,
    GangRequest,
    none_large_enough,
    read_gang,
    read_observation,
    read_score,
    score_answer,
)
from controller.scoring.learned import Before, Key, Learned, Observation, Row
from controller.scoring.parameters import Parameters
from controller.scoring.score import Job, NoneLargeEnoughError, Scored, Scorer
from controller.store.learned_rows import (
    MOST_RUN_IDS,
    News,
    Rows,
    ScoreStore,
    ScoresUnavailableError,
)
from gpuwarden.counted import counted

EXCHANGE_S: Final = 5.0
"""After which what waits is written, and what others wrote is read."""
MOST_WAITING: Final = 100_000
"""Names of job types, in runs that wait for the database."""
_OFF: Final = "batch assignment is off: set score.enableSinkhorn (SCHEDULER_ENABLE_SINKHORN)"


class ScoreSink(Protocol):
    """Hears what is decided and learned; the recorder implements it."""

    def decided(self, job: Job, scored: Scored, ratio: float) -> None:
        """A job was scored, and counts."""

    def observed(self, seen: Observation, *, saved: bool) -> None:
        """A run was reported."""

    def repeated(self, seen: Observation) -> None:
        """A run was reported once more, here or to another replica."""

    def forgotten(self, rows: int) -> None:
        """Rows went because there were too many."""

    def store_changed(self, problem: str) -> None:
        """The database takes everything again (empty), or does not, and why."""

    def read_whole(self, before: int, after: int) -> None:
        """All rows were read; so many were remembered before, and after."""


class SwitchedOffError(Exception):
    """The settings do not allow it."""


class TooManyWaitError(Exception):
    """So much waits for the database that no more is learned; says how many runs, and for what."""


@dataclass(slots=True)
class _Waiting:
    """A run that is not in the database."""

    seen: Observation
    is_repeated: bool = False
    """It was there: another replica was told of it, too."""


class Saving:
    """Keeps memory and database together; used from one event loop.

    Memory is what the database had at the last exchange, and then the runs that wait, in order.
    When others wrote meanwhile, those runs are taken back and learned again on top of that, unless
    it is these runs that the others wrote.
    """

    def __init__(self, learned: Learned, store: ScoreStore, sink: ScoreSink) -> None:
        self._learned = learned
        self._store = store
        self._sink = sink
        self._one_at_a_time = asyncio.Lock()
        self._waiting: list[_Waiting] = []
        self._sent = 0
        """How many of those are in the last write."""
        self._going = 0
        """How many rows go with it."""
        self._durable: dict[Key, Row | None] = {}
        """Rows as the database has them, where memory has them otherwise; None: none there."""
        self._durable_before: dict[Key, Row | None] = {}
        """The same of rows that are being written."""
        self._run_ids: dict[str, None] = {}
        """Of the last runs as the database has them, the oldest first."""
        self.problem = "the database has not been read yet"
        """Why what is learned is in memory alone; empty while it is durable."""

    @property
    def unsaved(self) -> int:
        """Rows that the database has not, or has older."""
        return len(self._durable.keys() | self._durable_before.keys())

    def knows(self, run_id: str) -> bool:
        """Whether a run was learned lately, as far as this replica has heard."""
        return run_id in self._run_ids or any(x.seen.run_id == run_id for x in self._waiting)

    async def keep(self, seen: Observation) -> tuple[bool, bool]:
        """Learn from a run and write that; whether it is durable, and whether it was known.

        Does not try a database that is in trouble. Raises TooManyWaitError.
        """
        names = sum(1 + len(x.seen.colocated) for x in self._waiting)
        if names >= MOST_WAITING:
            runs = counted(len(self._waiting), "run")
            raise TooManyWaitError(f"{runs} waiting for the database: {self.problem}")
        waiting = _Waiting(seen)
        self._waiting.append(waiting)
        self._note(self._learned.observe(seen))
        async with self._one_at_a_time:
            saved = not self.problem and await self._write(at_least_once=False)
        return saved, waiting.is_repeated

    async def write(self) -> bool:
        """Take what others wrote, and write what waits; whether all is durable."""
        async with self._one_at_a_time:
            return await self._write(at_least_once=True)

    async def checkpoint(self) -> None:
        """Put the database's files in order, where everything is durable."""
        if not self.problem:
            try:
                await self._store.checkpoint()
            except ScoresUnavailableError as error:
                self._tell(str(error))

    async def close(self) -> None:
        """End the use of the database."""
        await self._store.close()

    async def _write(self, *, at_least_once: bool) -> bool:
        try:
            if at_least_once:
                await self._exchange()
            while self._durable:
                await self._exchange()
        except ScoresUnavailableError as error:
            self._tell(str(error))
            return False
        self._tell("")
        return True

    async def _exchange(self) -> None:
        try:
            await self._store.exchange(self._join)
            self._remember(x.seen.run_id for x in self._waiting[: self._sent])
            del self._waiting[: self._sent]
            self._sent = 0
            if self._going:
                self._sink.forgotten(self._going)
        except BaseException:
            self._durable |= self._durable_before
            raise
        finally:
            self._durable_before = {}

    def _join(self, news: News) -> Rows:
        """Memory takes the news; the answer is what is to be written."""
        if news.kept:
            del self._waiting[: self._sent]
        if news.is_any:
            had = len(self._learned)
            rows: dict[Key, Row | None] = dict(self._durable)
            if news.is_whole:
                rows = dict.fromkeys(row.key for row in self._learned.rows())
            rows |= dict.fromkeys(news.removed)
            rows |= {row.key: row for row in news.rows}
            self._durable = {}
            self._note(self._learned.correct(rows))
            if news.is_whole:
                self._run_ids.clear()
            self._remember(news.run_ids)
            self._leave_out_known()
            for waiting in self._waiting:
                self._note(self._learned.observe(waiting.seen))
            if news.is_whole:
                self._sink.read_whole(had, len(self._learned))
        self._sent = len(self._waiting)
        keys, self._durable = self._durable, {}
        self._durable_before = keys
        written = self._learned.rows(keys)
        left = {row.key for row in written}
        gone = tuple(key for key, row in keys.items() if row is not None and key not in left)
        self._going = len(gone)
        return Rows(written, gone, tuple(x.seen.run_id for x in self._waiting if x.seen.run_id))

    def _remember(self, run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            if run_id:
                self._run_ids[run_id] = None
        while len(self._run_ids) > MOST_RUN_IDS:
            del self._run_ids[next(iter(self._run_ids))]

    def _leave_out_known(self) -> None:
        """Runs that others learned meanwhile do not wait any more."""
        for waiting in self._waiting:
            waiting.is_repeated = waiting.seen.run_id in self._run_ids
            if waiting.is_repeated:
                self._sink.repeated(waiting.seen)
        self._waiting = [x for x in self._waiting if not x.is_repeated]

    def _note(self, before: Before) -> None:
        for key, row in before.items():
            self._durable.setdefault(key, row)

    def _tell(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            self._sink.store_changed(problem)


class ScoreService:
    """What the paths answer; used from one event loop."""

    def __init__(
        self,
        parameters: Parameters,
        learned: Learned,
        saving: Saving,
        sink: ScoreSink,
        *,
        gpu_types: Mapping[str, float],
        node_label: str,
    ) -> None:
        self._parameters = parameters
        self._learned = learned
        self._scorer = Scorer(parameters, learned)
        self._saving = saving
        self._sink = sink
        self._gpu_types = gpu_types
        self._node_label = node_label

    @property
    def problem(self) -> str:
        """Why what is learned is not durable; empty while it is."""
        return self._saving.problem

    async def score(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """`/v1/score`; raises BadRequestError."""
        request = read_score(document, self._gpu_types)
        try:
            scored = self._scorer.score(request.job, counts=request.counts)
        except NoneLargeEnoughError as error:
            raise none_large_enough(error, request.job.gpu_mem_gb) from None
        if request.counts:
            self._sink.decided(request.job, scored, self._scorer.exploration_ratio)
        return score_answer(scored, self._node_label, request.warnings)

    async def observe(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """`/v1/observe`; raises BadRequestError, TooManyWaitError."""
        seen = read_observation(document)
        if self._gpu_types and seen.gpu_type not in self._gpu_types:
            expected = f"a type that is configured ({', '.join(sorted(self._gpu_types))})"
            raise BadRequestError("gpu_type", seen.gpu_type, expected)
        if seen.run_id and self._saving.knows(seen.run_id):
            self._sink.repeated(seen)
            saved = not self._saving.problem and await self._saving.write()
            return {"status": "ok", "learned": False, "saved": saved, "repeated": True}
        saved, is_repeated = await self._saving.keep(seen)
        if is_repeated:
            return {"status": "ok", "learned": False, "saved": saved, "repeated": True}
        self._sink.observed(seen, saved=saved)
        return {"status": "ok", "learned": seen.succeeded, "saved": saved}

    async def assign(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """`/v1/assign`; raises BadRequestError, SwitchedOffError."""
        if not self._parameters.enable_sinkhorn:
            raise SwitchedOffError(_OFF)
        request = read_gang(document, self._gpu_types)
        scored = [self._one_of(request, at) for at in range(len(request.jobs))]
        types = list(request.capacity)
        costs = [[x.get(name, float("inf")) for name in types] for x in scored]
        capacities = [request.capacity[name] for name in types]
        try:
            plan = await asyncio.to_thread(transport_plan, costs, capacities)
            given = whole_assignment(plan, costs, capacities)
        except NotEnoughError as error:
            got = dict(request.capacity)
            raise BadRequestError("capacity", got, f"more room: {error}") from None
        return {
            "assignments": [
                {
                    "name": name,
                    "gpu_type": types[at],
                    "shares": {x: round(y, 5) for x, y in zip(types, row, strict=True)},
                }
                for name, at, row in zip(request.names, given, plan, strict=True)
            ],
            "warnings": [text for job in request.jobs for text in job.warnings],
        }

    def _one_of(self, request: GangRequest, at: int) -> dict[str, float]:
        job = request.jobs[at].job
        try:
            scored = self._scorer.score(job, counts=False)
        except NoneLargeEnoughError as error:
            found = none_large_enough(error, job.gpu_mem_gb)
            raise BadRequestError(
                f"jobs[{at}].{found.field}", job.gpu_mem_gb, f"at most {error.largest:g}"
            ) from None
        return {x.gpu_type: x.relative_cost for x in scored.candidates}
