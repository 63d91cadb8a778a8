"""Answers of the scoring service: reads documents, scores, learns, and keeps what it learned.

Answers come from memory. What is learned is written at once; while the file does not take it, rows
wait here and are written when it does.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
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
from controller.scoring.learned import Change, Key, Learned, Observation, Row
from controller.scoring.parameters import Parameters
from controller.scoring.score import Job, NoneLargeEnoughError, Scored, Scorer
from controller.store.scores import FileLock, InUseError, Rows, ScoreFile, ScoresUnavailableError
from gpuwarden.clock import Clock

RETRY_S: Final = 5.0
"""After which a file that did not take what was learned is tried again."""
MOST_RUN_IDS: Final = 20_000
"""Ids of runs that are remembered; who reports again does so soon."""
_OFF: Final = "batch assignment is off: set score.enableSinkhorn (SCHEDULER_ENABLE_SINKHORN)"


class ScoreSink(Protocol):
    """Hears what is decided and learned; the recorder implements it."""

    def decided(self, job: Job, scored: Scored, ratio: float) -> None:
        """A job was scored, and counts."""

    def observed(self, seen: Observation, *, saved: bool) -> None:
        """A run was reported."""

    def repeated(self, seen: Observation) -> None:
        """A run was reported once more."""

    def forgotten(self, rows: int) -> None:
        """Rows went because there were too many."""

    def store_changed(self, problem: str) -> None:
        """The file takes everything again (empty), or does not, and why."""


class SwitchedOffError(Exception):
    """The settings do not allow it."""


class Saving:
    """Keeps the file at what memory has; used from one event loop."""

    def __init__(
        self, learned: Learned, path: Path, lock: FileLock, clock: Clock, sink: ScoreSink
    ) -> None:
        self._learned = learned
        self._file = ScoreFile(path, clock, self._found)
        self._lock = lock
        self._sink = sink
        self._one_at_a_time = asyncio.Lock()
        self._changed: dict[Key, None] = {}
        """Keys whose rows the file has not, has older, or has still."""
        self.problem = "the file has not been read yet"
        """Why what is learned is in memory alone; empty while it is durable."""

    @property
    def unsaved(self) -> int:
        """Rows that the file has not, or has older."""
        return len(self._changed)

    async def keep(self, change: Change) -> bool:
        """Write a change; whether it is durable. Does not try a file that is in trouble."""
        self._note(change)
        async with self._one_at_a_time:
            return not self.problem and await self._write()

    async def write(self) -> bool:
        """Open the file, unless it is open, and write what waits; whether all is durable."""
        async with self._one_at_a_time:
            return await self._write()

    async def checkpoint(self) -> None:
        """Fold the write-ahead log, where everything is durable."""
        if not self.problem:
            try:
                await self._file.checkpoint()
            except ScoresUnavailableError as error:
                self._tell(str(error))

    async def close(self) -> None:
        """Close the file, unless it hangs."""
        await self._file.close()

    async def _write(self) -> bool:
        try:
            self._lock.take()
            await self._file.open()
            while self._changed:
                await self._write_once()
        except (ScoresUnavailableError, InUseError, OSError) as error:
            self._tell(str(error))
            return False
        self._tell("")
        return True

    async def _write_once(self) -> None:
        keys, self._changed = self._changed, {}
        rows = self._learned.rows(keys)
        gone = tuple(keys.keys() - {row.key for row in rows})
        try:
            await self._file.write(Rows(rows, gone))
        except BaseException:
            self._changed = {**keys, **self._changed}
            raise

    def _found(self, rows: Sequence[Row]) -> None:
        """The file was read for the first time: what it has joins what was learned meanwhile."""
        self._note(Change((), self._learned.merge(rows).removed))

    def _note(self, change: Change) -> None:
        self._changed.update(dict.fromkeys((*change.written, *change.removed)))
        if change.removed:
            self._sink.forgotten(len(change.removed))

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
        self._run_ids: dict[str, None] = {}
        """Of the last runs, the oldest first; not kept on disk."""

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
        """`/v1/observe`; raises BadRequestError."""
        seen = read_observation(document)
        if self._gpu_types and seen.gpu_type not in self._gpu_types:
            expected = f"a type that is configured ({', '.join(sorted(self._gpu_types))})"
            raise BadRequestError("gpu_type", seen.gpu_type, expected)
        if not self._is_new(seen.run_id):
            self._sink.repeated(seen)
            saved = not self._saving.problem and await self._saving.write()
            return {"status": "ok", "learned": False, "saved": saved, "repeated": True}
        saved = await self._saving.keep(self._learned.observe(seen))
        self._sink.observed(seen, saved=saved)
        return {"status": "ok", "learned": seen.succeeded, "saved": saved}

    def _is_new(self, run_id: str) -> bool:
        """Whether the run was not reported lately; one without an id always is new."""
        if not run_id:
            return True
        is_new = run_id not in self._run_ids
        self._run_ids[run_id] = None
        if len(self._run_ids) > MOST_RUN_IDS:
            del self._run_ids[next(iter(self._run_ids))]
        return is_new

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
