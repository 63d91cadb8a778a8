"""A share of the fleet in a process of its own: forked early, told over a pipe what to do.

Forked, so that the CA's key needs no way between processes; therefore before anything
starts threads or gRPC.
"""

import asyncio
import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

import uvloop

from gpuwarden.settings.values import Address
from sandbox.fleet.hardware import NodeHardware
from sandbox.fleet.node import Surroundings
from sandbox.fleet.plan import Happening
from sandbox.fleet.share import Share
from sandbox.fleet.tally import Tally
from sandbox.spiffe.ca import InsecureCa

_TELL_S: Final = 0.5


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
            target=_main, args=(child, hardware, ca, seed), name="fleet share"
        )
        self._process.start()
        child.close()

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
                    self.report = self._orders.recv()
                    self._latencies += self.report.tally.latencies_ms
            except (EOFError, OSError):
                loop.remove_reader(self._orders.fileno())
                ended()

        loop.add_reader(self._orders.fileno(), read)

    def take_latencies(self) -> list[float]:
        """Of all reports since the last call."""
        taken, self._latencies = self._latencies, []
        return taken

    def close(self) -> None:
        """End the process if it still runs."""
        self._process.terminate()
        self._process.join()


def _main(
    orders: Connection, hardware: Mapping[int, NodeHardware], ca: InsecureCa, seed: int
) -> None:
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
                around = Surroundings(controllers, self._ca, (self._ca.certificate,), self._tally)
                self._share = Share(around, self._hardware, seed=self._seed)
                await self._share.start(per_second)
            case Live(happenings):
                if self._share is not None:
                    await self._share.live(happenings)

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(_TELL_S)
            self._orders.send(Report(self._tally.take(), alive=bool(self._work)))
