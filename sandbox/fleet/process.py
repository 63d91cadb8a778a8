"""A share of the fleet in a process of its own, and how a fleet is divided among processes.

A process is forked, so that the CA's key needs no way between processes. So it is forked before
anything starts threads or gRPC. It gets its orders over a pipe.
"""

import asyncio
import contextlib
import multiprocessing
import random
import resource
import select
import signal
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

import uvloop

from gpuwarden.settings.values import Address
from sandbox.fleet.hardware import NodeHardware
from sandbox.fleet.node import FleetEnvironment, SimulatedNode
from sandbox.fleet.plan import Happening, Kind
from sandbox.fleet.tally import Tally
from sandbox.spiffe.ca import InsecureCa

# --- how many processes a fleet needs


MAX_NODES: Final = 2000
"""Nodes of one process, whatever the limit: one event loop turns for all of them."""
PER_NODE: Final = 8
"""A stream takes four descriptors in the agent's process, while its SVID rotates eight."""
PER_STREAM: Final = 2
"""Descriptors in the controller: one connection, while the SVID rotates two."""
SPARE: Final = 256
"""Files, pipes, libraries and listeners of any of the processes."""


class TooFewDescriptorsError(Exception):
    """A fleet of this size does not fit below the limit; the text names what would."""


def raise_limit() -> int:
    """Raise the soft limit (RLIMIT_NOFILE) to the hard one; returns what holds then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def processes_for(nodes: int, limit: int) -> int:
    """How many processes a fleet is divided among, each of which may open `limit` descriptors.

    Raises TooFewDescriptorsError where the controller, which has all streams, may not.
    """
    wanted = nodes * PER_STREAM + SPARE
    if limit < wanted:
        most = max(0, (limit - SPARE) // PER_STREAM)
        raise TooFewDescriptorsError(
            f"{nodes} nodes need {wanted} open files in the controller, and this machine allows"
            f" {limit} (hard limit, `ulimit -Hn`); raise it, or simulate at most {most} nodes"
        )
    fitting = min(MAX_NODES, (limit - SPARE) // PER_NODE)
    return -(-nodes // fitting)


# --- the nodes of one process


MAX_UNACCEPTED: Final = 40
"""Agents of a process that have been started and not been accepted yet."""
_LOOK_S: Final = 0.05


class Share:
    """Nodes by their number in the whole fleet."""

    def __init__(
        self, around: FleetEnvironment, hardware: Mapping[int, NodeHardware], *, seed: int
    ) -> None:
        self.tally = around.tally
        self.nodes = {
            number: SimulatedNode(around, one, random.Random(f"{seed} {number}"))  # noqa: S311 - repeatable on purpose
            for number, one in hardware.items()
        }
        self._busy: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def start(self, per_second: float) -> None:
        """Start all agents, at most so many a second, and no faster than they are accepted.

        Handshakes that a busy machine does not finish in time are begun again, so without
        the second bound a fleet that starts too fast never stands.
        """
        loop = asyncio.get_running_loop()
        due, waiting = loop.time(), list[SimulatedNode]()
        for node in self.nodes.values():
            while len(waiting) >= MAX_UNACCEPTED:
                await asyncio.sleep(_LOOK_S)
                waiting = [one for one in waiting if not one.accepted_hash]
                due = max(due, loop.time())
            await _until(due)
            node.start()
            waiting.append(node)
            due += 1 / per_second

    async def live(self, happenings: Sequence[Happening]) -> None:
        """Carry out what happens to nodes of this share; returns after the last of it."""
        begun = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as tasks:
            for one in happenings:
                if one.node in self.nodes:
                    await _until(begun + one.at_s)
                    tasks.create_task(self._happen(one))

    async def stop(self) -> None:
        """End all agents in good order."""
        await asyncio.gather(*(node.stop() for node in self.nodes.values()))

    async def _happen(self, one: Happening) -> None:
        node = self.nodes[one.node]
        async with self._busy[one.node]:
            match one.kind:
                case Kind.DROP:
                    await node.drop()
                case Kind.RESTART:
                    await node.restart()
                case Kind.ROTATE:
                    node.rotate()
                case Kind.UPGRADE:
                    await node.upgrade()
        self.tally.happened[one.kind] += 1


async def _until(time: float) -> None:
    await asyncio.sleep(max(0.0, time - asyncio.get_running_loop().time()))


# --- the process


_TELL_S: Final = 0.5
_END_S: Final = 10.0
"""For a process that was told to end, before it is killed."""
_KILLED_S: Final = 10.0
"""For one that was killed, until the kernel has ended it."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start all agents towards these controllers."""

    controllers: tuple[Address, ...]
    per_second: float


@dataclass(frozen=True, slots=True)
class Live:
    """Let this happen."""

    happenings: tuple[Happening, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """End all agents and the process."""


Order = Start | Live | Stop


@dataclass(frozen=True, slots=True)
class Report:
    """Sent twice a second."""

    tally: Tally
    alive: bool
    """Whether something is still to happen."""


class ShareProcess:
    """The parent's side."""

    def __init__(self, hardware: Mapping[int, NodeHardware], ca: InsecureCa, seed: int) -> None:
        """Fork."""
        self.report = Report(Tally(), alive=False)
        """The latest one; its latencies are since the last `take_latencies`."""
        self._latencies: list[float] = []
        context = multiprocessing.get_context("fork")
        self._orders, child = context.Pipe()
        self._process = context.Process(
            target=_main, args=(child, self._orders, hardware, ca, seed), name="fleet share"
        )
        self._process.start()
        child.close()

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process.pid is not None  # noqa: S101 -- it was started
        return self._process.pid

    def tell(self, order: Order) -> None:
        """Give an order; a process that is gone takes none."""
        with contextlib.suppress(OSError):
            self._orders.send(order)

    def listen(self, ended: Callable[[], None]) -> None:
        """Follow the reports in the running loop; `ended` where the process is gone."""
        loop = asyncio.get_running_loop()

        def read() -> None:
            try:
                while self._orders.poll():
                    self._receive()
            except (EOFError, OSError):
                loop.remove_reader(self._orders.fileno())
                ended()

        loop.add_reader(self._orders.fileno(), read)

    def follow(self) -> None:
        """Follow the reports, in a thread of its own; returns where the process is gone."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._receive()

    def take_latencies(self) -> list[float]:
        """Of all reports since the last call."""
        taken, self._latencies = self._latencies, []
        return taken

    def close(self) -> None:
        """End the process if it still runs."""
        self._process.terminate()
        self._process.join(_END_S)
        self._process.kill()
        self._process.join(_KILLED_S)

    def _receive(self) -> None:
        self.report = self._orders.recv()
        self._latencies += self.report.tally.latencies_ms


def _main(
    orders: Connection,
    parents: Connection,
    hardware: Mapping[int, NodeHardware],
    ca: InsecureCa,
    seed: int,
) -> None:
    parents.close()  # else the parent's end would never be seen
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    uvloop.run(_Child(orders, hardware, ca, seed).run())


class _Child:
    def __init__(
        self, orders: Connection, hardware: Mapping[int, NodeHardware], ca: InsecureCa, seed: int
    ) -> None:
        self._orders = orders
        self._hardware = hardware
        self._ca = ca
        self._seed = seed
        self._tally = Tally()
        self._share: Share | None = None
        self._work: set[asyncio.Task[None]] = set()
        self._received: asyncio.Queue[Order] = asyncio.Queue()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._orders.fileno(), self._receive)
        telling = asyncio.create_task(self._tell())
        while not isinstance(order := await self._received.get(), Stop):
            task = asyncio.create_task(self._obey(order))
            self._work.add(task)
            task.add_done_callback(self._work.discard)
        loop.remove_reader(self._orders.fileno())
        for task in (*self._work, telling):
            task.cancel()
        if self._share is not None:
            await self._share.stop()

    def _receive(self) -> None:
        try:
            self._received.put_nowait(self._orders.recv())
        except EOFError:  # the parent is gone
            self._received.put_nowait(Stop())

    async def _obey(self, order: Start | Live) -> None:
        match order:
            case Start(controllers, per_second):
                around = FleetEnvironment(
                    controllers, self._ca, (self._ca.certificate,), self._tally
                )
                self._share = Share(around, self._hardware, seed=self._seed)
                await self._share.start(per_second)
            case Live(happenings):
                if self._share is not None:
                    await self._share.live(happenings)

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(_TELL_S)
            if _has_room(self._orders):  # a full pipe would stop all agents
                self._orders.send(Report(self._tally.take(), alive=bool(self._work)))


def _has_room(pipe: Connection) -> bool:
    """Whether a report can be sent without waiting: Linux says so while most of it is free."""
    return bool(select.select([], [pipe], [], 0)[1])
