"""Two controllers behind one address, killed and started again while pods come and go."""

import itertools
import threading
from collections.abc import Iterator, Mapping

import pytest

from sandbox.fleet.hardware import NEXT_DRIVER
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.waiting import until
from tests.e2e.product.hardware import h100_node
from tests.e2e.product.installation import Installation
from tests.e2e.product.pods import managed
from tests.e2e.product.stage import Stage

CLASSES = {"": ("pair-0", "pair-1"), NEXT_DRIVER: ("pair-2", "pair-3")}
"""Nodes by driver, each driver a class of its own."""
NODES = tuple(itertools.chain.from_iterable(CLASSES.values()))
AT_ONCE = 4
PAUSE_S = 0.1


class Load:
    """Managed pods all the time: a few at once, each replaced when it is bound."""

    def __init__(self, stage: Stage, allowed: Mapping[str, tuple[str, ...]]) -> None:
        self._stage = stage
        self._turns = itertools.cycle(allowed.items())
        self._waiting: dict[str, tuple[str, ...]] = {}
        self._numbers = itertools.count()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self.bound = 0
        self.wrong: list[str] = []
        self._thread.start()

    def goes_on(self, why: str) -> None:
        """Wait for some more pods to be bound: nothing is stuck for good."""
        target = self.bound + 2 * AT_ONCE
        until(f"pods are bound {why}", lambda: self.bound >= target, timeout_s=60)

    def end(self) -> None:
        """No more pods; those that still wait are to be bound as well."""
        self._ending.set()
        self._thread.join(60)

    @property
    def left(self) -> list[str]:
        """Pods that are not bound."""
        return list(self._waiting)

    def _run(self) -> None:
        while not self._ending.is_set() or self._waiting:
            self._look()
            while len(self._waiting) < AT_ONCE and not self._ending.is_set():
                required, nodes = next(self._turns)
                name = f"load-{next(self._numbers)}"
                self._stage.pods.create(managed(name, {"required-hash": required}))
                self._waiting[name] = nodes
            threading.Event().wait(PAUSE_S)

    def _look(self) -> None:
        for name, nodes in tuple(self._waiting.items()):
            node = self._stage.pods.get(name)["spec"].get("nodeName")
            if node:
                self.bound += 1
                self.wrong += [] if node in nodes else [f"{name} on {node}"]
                del self._waiting[name]
                self._stage.remove(name)


def seen(installation: Installation) -> list[int]:
    """How many nodes each controller trusts."""
    return [one.nodes("eligible") for one in installation.controllers]


@pytest.fixture
def stage(lab: Lab) -> Iterator[Stage]:
    lab.fake_nodes.add_all(NODES)
    installation = Installation(lab, "replicas", replicas=2)
    try:
        installation.start()
        for driver, nodes in CLASSES.items():
            for name in nodes:
                installation.agents.start(h100_node(name, driver=driver))
        until("both see all nodes", lambda: seen(installation) == [len(NODES)] * 2)
        yield Stage(lab, installation)
    finally:
        installation.close()
        for name in NODES:
            lab.fake_nodes.delete(name)


def test_replicas_that_die_and_come_back_under_load(stage: Stage) -> None:
    agents, service = stage.gpuwarden.agents, stage.gpuwarden.service
    first, second = stage.gpuwarden.controllers
    load = Load(stage, {agents.hash_of(nodes[0]): nodes for nodes in CLASSES.values()})
    load.goes_on("with both")
    first.kill()
    load.goes_on("with the second alone")
    first.resume_service()
    second.kill()
    load.goes_on("with the first alone, which was started again")
    first.kill()
    until("nobody is ready", lambda: service.ready == 0)
    second.resume_service()
    load.goes_on("after both were down")
    first.resume_service()
    until("both are ready", lambda: service.ready == 2)
    load.goes_on("with both again")
    load.end()
    assert load.left == []
    assert load.wrong == []
    until("both see all nodes again", lambda: seen(stage.gpuwarden) == [len(NODES)] * 2)
