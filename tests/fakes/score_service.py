"""A scoring service on a file, and what it told."""

import sqlite3
from pathlib import Path
from typing import Any

from controller.scorer.service import Saving, ScoreService, ScoreSink
from controller.scoring.learned import Learned, Observation
from controller.scoring.parameters import Parameters
from controller.scoring.score import Job, Scored
from controller.store.learned_rows import ScoreStore
from controller.store.scores import ScoreFile
from gpuwarden.clock import SystemClock

RUN = {"job_type": "train", "gpu_type": "A100-80GB", "measured_runtime_s": 100}
SCORE = {"job_type": "train", "candidate_gpu_types": ["A100-80GB"]}
REFUSING = "CREATE TRIGGER full BEFORE INSERT ON learned BEGIN SELECT RAISE(ABORT, 'full'); END"


class Heard:
    """Implements `ScoreSink`."""

    def __init__(self) -> None:
        self.decisions: list[str] = []
        self.saved: list[bool] = []
        self.problems: list[str] = []
        self.gone = 0
        self.whole: list[tuple[int, int]] = []
        self.again: list[str] = []

    def decided(self, job: Job, scored: Scored, ratio: float) -> None:
        del job, ratio
        self.decisions.append(scored.decision.value)

    def observed(self, seen: Observation, *, saved: bool) -> None:
        del seen
        self.saved.append(saved)

    def repeated(self, seen: Observation) -> None:
        self.again.append(seen.run_id)

    def forgotten(self, rows: int) -> None:
        self.gone += rows

    def store_changed(self, problem: str) -> None:
        self.problems.append(problem)

    def read_whole(self, before: int, after: int) -> None:
        self.whole.append((before, after))


class Running:
    """A service on a database, a file if no other is given."""

    def __init__(
        self,
        path: Path = Path("/nowhere"),
        sink: ScoreSink | None = None,
        *,
        store: ScoreStore | None = None,
        **parameters: Any,
    ) -> None:
        self.path = path
        self.heard = Heard()
        sink = sink or self.heard
        given = Parameters(**parameters)
        self.learned = Learned(given)
        self.saving = Saving(self.learned, store or ScoreFile(path, SystemClock()), sink)
        self.service = ScoreService(
            given, self.learned, self.saving, sink, gpu_types={}, node_label="class"
        )

    async def runs(self) -> float:
        answer = await self.service.score({**SCORE, "dry_run": True})
        return float(answer["terms"]["runs"])

    def observation(self, job_type: str) -> Observation:
        return Observation(job_type=job_type, gpu_type="A100-80GB", runtime_s=1.0)

    def scored(self, candidates: tuple[str, ...]) -> tuple[Job, Scored]:
        job = Job(job_type="train", candidates=candidates)
        return job, self.service._scorer.score(job)

    async def end(self) -> None:
        await self.saving.close()

    def sql(self, text: str) -> None:
        connection = sqlite3.connect(self.path)
        connection.execute(text)
        connection.commit()
        connection.close()
