"""A whole controller in this process, from its settings to its drain, and what is asked of it."""

import asyncio
import contextlib
import itertools
import json
import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import structlog

from controller.app import Tempo, run
from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.wiring.listeners import Addresses
from gpuwarden.clock import SystemClock
from gpuwarden.settings.loader import CONTROLLER as CONTROLLER_SETTINGS
from gpuwarden.settings.loader import Inputs, load
from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.builders.svids import new_svid
from tests.fakes.attest_client import AttestClient
from tests.fakes.eventually import DEADLINE_S, eventually
from tests.fakes.placement import args

TD = "example.org"
CONTROLLER = f"spiffe://{TD}/gpuwarden/controller"
_NUMBERS = itertools.count()
"""A socket's path must be short."""


class MovableClock(SystemClock):
    """The machine's clock, which a test moves forward."""

    ahead_ns = 0
    """Of all clocks."""
    wall_step_ns = 0
    """Of wall time alone."""

    def boottime_ns(self) -> int:
        return super().boottime_ns() + self.ahead_ns

    def wall_ns(self) -> int:
        return super().wall_ns() + self.ahead_ns + self.wall_step_ns


class OneNode:
    """A directory that knows node-1, without warning, as a real one."""

    def __init__(self) -> None:
        self.current = DirectorySnapshot({"node-1": KnownNode("uid-1")})

    def snapshot(self) -> DirectorySnapshot:
        return self.current

    def warning(self) -> str | None:
        return None


@dataclass
class RunningController:
    addresses: Addresses
    task: asyncio.Task[int]
    audit: Path
    clock: MovableClock
    workload_api: InsecureWorkloadApi | None

    async def get(self, path: str) -> tuple[int, str]:
        """From the port for operations."""
        url = f"http://{self.addresses.ops}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status, await answer.text()

    async def reasons(self) -> list[str]:
        """Why it is not ready."""
        _, text = await self.get("/readyz")
        found: list[str] = json.loads(text)["reasons"]
        return found

    async def warnings(self) -> list[str]:
        """What it warns of, ready or not."""
        _, text = await self.get("/readyz")
        found: list[str] = json.loads(text)["warnings"]
        return found

    async def reason(self, text: str, *, wanted: bool = True, within_s: float = DEADLINE_S) -> None:
        """Wait until a reason with this text is there, or none is."""

        async def there() -> bool | None:
            return any(text in x for x in await self.reasons()) is wanted or None

        await eventually(there, f"{text}: {wanted}", within_s=within_s)

    async def metric(self, name: str) -> float | None:
        _, text = await self.get("/metrics")
        for line in text.splitlines():
            key, _, value = line.rpartition(" ")
            if key == name:
                return float(value)
        return None

    async def metric_is(self, name: str, value: float) -> None:
        async def there() -> bool | None:
            return await self.metric(name) == value or None

        await eventually(there, f"{name} is {value:g}")

    def records(self) -> list[dict[str, Any]]:
        """Of its audit log, without checkpoints."""
        files = sorted(path for path in self.audit.iterdir() if path.suffix == ".jsonl")
        records = [json.loads(line) for file in files for line in file.read_bytes().splitlines()]
        return [record for record in records if record["kind"] != "checkpoint"]

    def kinds(self) -> list[str]:
        return [record["kind"] for record in self.records()]

    def client(self, node: str = "node-1") -> AttestClient:
        """An agent."""
        assert self.workload_api is not None
        port = int(self.addresses.agents.rpartition(":")[2])
        svid = new_svid(self.workload_api.ca, f"spiffe://{TD}/gpuwarden/agent/{node}")
        return AttestClient(svid, port, node=node)

    async def refusal(self, node: str = "node-1") -> str | None:
        """Of a stream that is not admitted."""
        async with self.client(node) as client:
            await client.hello()
            return (await client.ended()).reason

    async def filtered(self, pod: dict[str, Any]) -> dict[str, Any]:
        """The answer of /filter for node-1 and node-2."""
        return await self._asked("filter", args(pod, "node-1", "node-2"))

    async def _asked(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        url = f"http://{self.addresses.extender}/{verb}"
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
            found: dict[str, Any] = await answer.json()
            return found

    async def preempted(self, pod: dict[str, Any], victims: dict[str, Any]) -> Any:
        """What /preempt answers to victims by node."""
        body = {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": victims}
        return (await self._asked("preempt", body))["NodeNameToMetaVictims"]

    async def passes(self, pod: dict[str, Any], nodes: list[str], what: str) -> None:
        """Wait until /filter lets the pod go to these nodes."""

        async def there() -> bool | None:
            return (await self.filtered(pod))["NodeNames"] == nodes or None

        await eventually(there, what)


@contextlib.asynccontextmanager
async def running_controller(
    folder: Path,
    workload_api: InsecureWorkloadApi | str,
    directory: Any = None,
    *,
    exchange: Any = None,
    stop: asyncio.Event | None = None,
    leave_s: float = 0.05,
    **changes: Any,
) -> AsyncIterator[RunningController]:
    """Settings as keywords, `__` for the dot. With an `exchange` it has the Kubernetes API."""
    spiffe = workload_api if isinstance(workload_api, InsecureWorkloadApi) else None
    name = f"c{next(_NUMBERS)}"
    socket = spiffe.add(name, CONTROLLER) if spiffe else workload_api
    stop, clock = stop or asyncio.Event(), MovableClock()
    announced: list[Addresses] = []
    listening = asyncio.Event()

    def announce(addresses: Addresses) -> None:
        announced.append(addresses)
        listening.set()

    with restored_logging():
        task = asyncio.create_task(
            run(
                _settings(folder, str(socket), changes),
                directory=None if exchange else directory or OneNode(),
                exchange=exchange,
                announce=announce,
                stop=stop,
                clock=clock,
                tempo=Tempo(tick_s=0.02, policy_look_s=0.02, first_svid_s=0.5, leave_s=leave_s),
            )
        )
        waiting = asyncio.create_task(listening.wait())
        parts: set[asyncio.Task[Any]] = {task, waiting}
        await asyncio.wait(parts, timeout=DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if task.done():
            await task
        try:
            yield RunningController(announced[0], task, folder / "audit", clock, spiffe)
        finally:
            stop.set()
            await task
            if spiffe:
                spiffe.remove(name)


@contextlib.contextmanager
def restored_logging() -> Iterator[None]:
    """A controller configures the logging of its process, which here is the tests'."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.reset_defaults()


def _settings(folder: Path, workload_api: str, changes: dict[str, str]) -> Any:
    values = {
        "trustDomain": TD,
        "cluster": "test",
        "workloadApi": workload_api,
        "listen.agents": "127.0.0.1:0",
        "listen.extender": "127.0.0.1:0",
        "listen.ops": "127.0.0.1:0",
        "listen.local": str(folder / "run" / "fleet.sock"),
        "audit.dir": str(folder / "audit"),
        "audit.reserve": "0",
        "store.path": str(folder / "ledger.db"),
        "log.level": "error",
        "attestation.interval": "100ms",
        "attestation.challengeTtl": "100ms",
        "attestation.lease": "500ms",
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    inputs = Inputs(tuple((key, value, key) for key, value in values.items()))
    return load(CONTROLLER_SETTINGS, inputs)
