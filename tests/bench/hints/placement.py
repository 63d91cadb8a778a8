"""Who chooses nodes: kube-scheduler by /filter and /prioritize, and an oracle.

The verbs are the product's, called as HTTP calls them, or over its listener. Of kube-scheduler's
own scores only the one for preferred anti-affinity is there: the pods ask for nothing else.
"""

import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

import aiohttp
import msgspec

from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.placement.keys import RequirementRules
from controller.placement.snapshot import DeviceUse, Scenes
from controller.policy import DEFAULT_POLICY, NodeMode
from controller.recorders.http import ExtenderRecorder
from controller.web.extender.extender import Extender, ExtenderLimits, ExtenderServer
from controller.web.extender.verbs import ExtenderVerbs
from gpuwarden import __version__
from gpuwarden.moment import Moment, wall_ns
from gpuwarden.settings.values import Address
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.bench.hints.simulation import PLACES, Cluster, Running, Waiting
from tests.bench.hints.workload import GPUS_OF_A_NODE, MODELS, Workload
from tests.builders.fleet_views import NOW_NS, acceptance, fleet, gpu, hash_of, node
from tests.builders.scenes import WALL
from tests.fakes.recording_audit import RecordingAudit

EXTENDER_WEIGHT: Final = 5
"""In `deploy/scheduler/configuration.yaml`."""
_POINTS: Final = 10
"""What one point of an extender counts, before its weight."""
_ANTI_AFFINITY_WEIGHT: Final = 2
"""Of the plugin InterPodAffinity, by default."""
_MOST: Final = 100

Ask = Callable[[str, bytes], Awaitable[bytes]]
"""Asks the extender: verb and body."""

FLEET: Final = fleet(
    *(
        node(
            name,
            acceptance(
                hash_of("abcd"[MODELS.index(place.model)]),
                [
                    gpu(
                        at,
                        place.uuids[at],
                        product=place.model.product,
                        memory_mib=place.model.memory_mib,
                    )
                    for at in range(GPUS_OF_A_NODE)
                ],
            ),
            mode=NodeMode.ENV,
        )
        for name, place in PLACES.items()
    )
)
"""Attested, and always fresh."""
DIRECTORY: Final = DirectorySnapshot({name: KnownNode(f"uid-{name}") for name in PLACES})


def scenes(hint_weight: int) -> Scenes:
    """What verbs and webhook see of the fleet."""
    policy = replace(DEFAULT_POLICY, hint_weight=hint_weight)
    now = Moment(NOW_NS, wall_ns(WALL))
    return Scenes(lambda: FLEET, lambda: policy, lambda: now, nodes=lambda: DIRECTORY)


class Extending:
    """The extender's verbs over a fleet of which a simulation says what is busy."""

    def __init__(self, hint_weight: int) -> None:
        self._use = DeviceUse()
        self.verbs = ExtenderVerbs(
            scenes=scenes(hint_weight),
            not_ready=lambda: None,
            use=lambda _uid, _share: self._use,
            rules=RequirementRules(),
        )

    def says(self, busy: frozenset[str]) -> None:
        """Which GPUs others have."""
        if busy is not self._use.busy:
            self._use = DeviceUse(busy=busy)

    async def ask(self, verb: str, body: bytes) -> bytes:
        """Answer as over HTTP, without it."""
        answer = {"filter": self.verbs.filter, "prioritize": self.verbs.prioritize}[verb](body)
        if answer.status != 200:
            raise RuntimeError(f"/{verb}: status {answer.status}, expected 200")
        return answer.body


@asynccontextmanager
async def over_http(extending: Extending) -> AsyncIterator[Ask]:
    """The same verbs behind the product's listener."""
    recorder = ExtenderRecorder(Instruments(Process.CONTROLLER, __version__), RecordingAudit())
    limits = ExtenderLimits()
    server = ExtenderServer(
        Extender(extending.verbs, note=lambda _: None, metrics=recorder, limits=limits),
        address=Address("127.0.0.1", 0),
        tls=None,
        observer=recorder,
        limits=limits,
    )
    _, port = await server.start()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:

            async def ask(verb: str, body: bytes) -> bytes:
                async with session.post(f"/{verb}", data=body) as response:
                    response.raise_for_status()
                    return await response.read()

            yield ask
    finally:
        await server.stop()


class KubeScheduler:
    """Filters, scores, takes the best node, and one of equals by chance."""

    def __init__(self, extending: Extending, ask: Ask, seed: int) -> None:
        self._extending = extending
        self._ask = ask
        self._draw = random.Random(seed)  # noqa: S311 -- the same draws every time

    async def place(self, pod: Waiting, cluster: Cluster) -> str | None:
        """A node; None where none can take the pod now."""
        self._extending.says(cluster.busy)
        answer = await self._ask("filter", _args(pod, [*PLACES]))
        passed: list[str] = json.loads(answer)["NodeNames"]
        if not passed:
            return None
        scores = json.loads(await self._ask("prioritize", _args(pod, passed)))
        points = {x["Host"]: x["Score"] * _POINTS * EXTENDER_WEIGHT for x in scores}
        apart = anti_affinity({name: cluster.on(name) for name in passed}, pod)
        total = {name: points[name] + _ANTI_AFFINITY_WEIGHT * apart[name] for name in passed}
        most = max(total.values())
        return self._draw.choice([name for name in passed if total[name] == most])


def anti_affinity(on: Mapping[str, Sequence[Running]], pod: Waiting) -> dict[str, int]:
    """Kube-scheduler's score for preferred anti-affinity, 0 to 100: its own and that of others."""
    own = pod.job.type.name
    met = {
        name: sum((x.pod.job.type.name in pod.avoided) + (own in x.pod.avoided) for x in runs)
        for name, runs in on.items()
    }
    least, most = min(met.values()), max(met.values())
    if least == most:
        return dict.fromkeys(met, 0)
    return {name: _MOST * (most - count) // (most - least) for name, count in met.items()}


def _args(pod: Waiting, names: Sequence[str]) -> bytes:
    return msgspec.json.encode({"Pod": pod.document, "Nodes": None, "NodeNames": names})


class Oracle:
    """Knows all run times and slowdowns, and takes the free node that costs the least now.

    It never waits for a better one, so it is no strict bound.
    """

    def __init__(self, truth: Workload) -> None:
        self._truth = truth

    async def place(self, pod: Waiting, cluster: Cluster) -> str | None:
        """A node; None where none can take the pod now."""
        kind = pod.job.type
        able = [
            name
            for name, place in PLACES.items()
            if kind.fits(place.model) and len(cluster.free(name)) >= kind.gpus
        ]
        return min(able, key=lambda x: self._cost(pod, x, cluster), default=None)

    def _cost(self, pod: Waiting, name: str, cluster: Cluster) -> float:
        """Its own run time, and what it makes others lose meanwhile."""
        own, slowdown = pod.job.type.name, self._truth.slowdown
        others = [x.pod.job.type.name for x in cluster.on(name)]
        lost = sum(slowdown[own, other] + slowdown[other, own] for other in others)
        return self._truth.seconds[own, PLACES[name].model.gpu_type] * (1 + lost)
