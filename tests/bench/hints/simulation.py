"""A discrete-event simulation: jobs arrive, wait, run beside others on a node, and end.

It knows neither scores nor hints: a `Placer` chooses nodes, an `Admission` makes pods and hears who
ended.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from tests.bench.hints.workload import (
    GPUS_OF_A_NODE,
    MODELS,
    NODES_OF_A_TYPE,
    GpuModel,
    Job,
    Workload,
)

_BESIDE: Final = 0.5
"""A job counts as beside another one if it was there for so much of the other's time."""


@dataclass(frozen=True, slots=True)
class Place:
    """A node."""

    name: str
    model: GpuModel
    uuids: tuple[str, ...]


PLACES: Final = {
    place.name: place
    for place in (
        Place(name, model, tuple(f"GPU-{name}-{at}" for at in range(GPUS_OF_A_NODE)))
        for model in MODELS
        for number in range(NODES_OF_A_TYPE)
        for name in (f"{model.product.split()[1].split('-')[0].lower()}-{number}",)
    )
}


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod that was admitted."""

    job: Job
    document: Mapping[str, Any]
    priority: int = 0
    avoided: tuple[str, ...] = ()
    """Job types that its anti-affinity keeps away from."""

    @property
    def asks(self) -> tuple[int, int]:
        """Equal where two pods pass on the same nodes."""
        return self.job.type.memory_gib, self.job.type.gpus


@dataclass(slots=True)
class Running:
    """A pod that runs."""

    pod: Waiting
    place: Place
    gpus: tuple[str, ...]
    began: float
    left: float
    """Seconds that it would still take with the node to itself."""
    slowed: float = 0.0
    beside: dict[str, float] = field(default_factory=dict)
    """For how long which job types were there."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a job."""

    job: Job
    node: str
    gpu_type: str
    gpus: tuple[str, ...]
    began: float
    ended: float
    alone: float
    """What it would have taken with the node to itself."""
    beside: tuple[str, ...]


class Cluster:
    """Who runs where, and how fast."""

    def __init__(self, truth: Workload) -> None:
        self._truth = truth
        self._on: dict[str, dict[int, Running]] = {name: {} for name in PLACES}
        self._as_of = dict.fromkeys(PLACES, 0.0)
        self.busy: frozenset[str] = frozenset()

    def on(self, node: str) -> Sequence[Running]:
        """The pods of a node."""
        return tuple(self._on[node].values())

    def running(self) -> Sequence[Running]:
        """All that run."""
        return [run for runs in self._on.values() for run in runs.values()]

    def free(self, node: str) -> list[str]:
        """GPUs that nobody has."""
        return [uuid for uuid in PLACES[node].uuids if uuid not in self.busy]

    def has_room(self, gpus: int) -> bool:
        """Whether any node has so many free."""
        return any(len(self.free(name)) >= gpus for name in PLACES)

    def start(self, pod: Waiting, node: str, now: float) -> None:
        """Give a pod the first free GPUs of a node."""
        place, gpus = PLACES[node], self.free(node)[: pod.job.type.gpus]
        if len(gpus) < pod.job.type.gpus or not pod.job.type.fits(place.model):
            raise RuntimeError(f"{node} cannot run {pod.job.type.name}, expected a node that can")
        self._advance(node, now)
        left = self._truth.alone(pod.job, place.model.gpu_type)
        self._on[node][pod.job.number] = Running(pod, place, tuple(gpus), now, left)
        self.busy |= {*gpus}
        self._slow(node)

    def next_end(self) -> tuple[float, Running] | None:
        """Who ends first if nobody starts."""
        ends = (
            (self._as_of[run.place.name] + run.left * (1 + run.slowed), run)
            for run in self.running()
        )
        return min(ends, key=lambda x: (x[0], x[1].pod.job.number), default=None)

    def end(self, run: Running, now: float) -> Ended:
        """Take a pod away."""
        node, job = run.place.name, run.pod.job
        self._advance(node, now)
        del self._on[node][job.number]
        self.busy -= {*run.gpus}
        self._slow(node)
        least = _BESIDE * (now - run.began)
        return Ended(
            job,
            node,
            run.place.model.gpu_type,
            run.gpus,
            run.began,
            now,
            self._truth.alone(job, run.place.model.gpu_type),
            tuple(sorted(name for name, there in run.beside.items() if there >= least)),
        )

    def _advance(self, node: str, now: float) -> None:
        passed = now - self._as_of[node]
        runs = self._on[node]
        for run in runs.values():
            run.left -= passed / (1 + run.slowed)
            for other in {x.pod.job.type.name for x in runs.values() if x is not run}:
                run.beside[other] = run.beside.get(other, 0.0) + passed
        self._as_of[node] = now

    def _slow(self, node: str) -> None:
        runs = self._on[node].values()
        for run in runs:
            run.slowed = sum(
                self._truth.slowdown[run.pod.job.type.name, other.pod.job.type.name]
                for other in runs
                if other is not run
            )


class Placer(Protocol):
    """Chooses nodes: kube-scheduler with its extender, or one who knows the truth."""

    async def place(self, pod: Waiting, cluster: Cluster) -> str | None:
        """A node; None where none can take the pod now."""


class Admission(Protocol):
    """Makes pods of jobs: with hints or without."""

    async def admit(self, job: Job, cluster: Cluster) -> Waiting:
        """The pod as it is stored."""

    def learn(self, ended: Ended) -> None:
        """Hear of a job that ended."""


async def simulate(truth: Workload, admission: Admission, placer: Placer) -> list[Ended]:
    """All jobs, as they ended."""
    cluster, arriving, ended = Cluster(truth), deque(truth.jobs), list[Ended]()
    waiting: list[Waiting] = []
    stuck: set[tuple[int, int]] = set()
    """What found no node since the last end: nothing else makes one pass."""
    while arriving or waiting or cluster.busy:
        first = cluster.next_end()
        arrives = arriving[0].arrives if arriving else math.inf
        if first is not None and first[0] <= arrives:
            now = first[0]
            ended.append(cluster.end(first[1], now))
            admission.learn(ended[-1])
            stuck.clear()
        elif arriving:
            now = arrives
            waiting.append(await admission.admit(arriving.popleft(), cluster))
            waiting.sort(key=lambda x: (-x.priority, x.job.number))
        else:
            raise RuntimeError(f"{len(waiting)} pods can never run, expected a node for each")
        for pod in tuple(waiting):
            if pod.asks not in stuck and cluster.has_room(pod.job.type.gpus):
                node = await placer.place(pod, cluster)
                if node is None:
                    stuck.add(pod.asks)
                else:
                    cluster.start(pod, node, now)
                    waiting.remove(pod)
    return ended
