"""What an agent session needs from the outside, small enough to look into."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from agent.attester import Signer
from agent.gpu.inventory import KnownGpu
from agent.gpu.reading import GpuEvent, InventoryReading
from agent.gpu.source import StuckCall
from agent.session.client import DialError, Line
from agent.session.machine import About, End, Verdict
from agent.witness import CheckpointWitness
from gpuwarden.audit.witness import Shown
from gpuwarden.evidence.model import LogAlarm, WitnessedCheckpoint
from gpuwarden.identity.svid import Svid
from gpuwarden.identity.svid_watcher import SvidFacts
from gpuwarden.settings.values import Address
from tests.builders.attesting import SvidSigner, reading


@dataclass
class FakeSvids:
    """An SvidSource whose SVID a test changes."""

    svid: Svid | None = None
    subscribers: list[Callable[[], None]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    def current(self) -> Svid | None:
        return self.svid

    def state(self) -> str:
        return "no SVID: not asked yet" if self.svid is None else f"SVID {self.svid.spiffe_id}"

    def subscribe(self, notify: Callable[[], None]) -> Callable[[], None]:
        self.subscribers.append(notify)
        return lambda: self.subscribers.remove(notify)

    def facts(self) -> SvidFacts:
        return SvidFacts(0.0, 0, 0, 0, watching=False)

    def start(self) -> None:
        self.calls.append("start")

    def close(self) -> None:
        self.calls.append("close")

    def change(self, svid: Svid | None) -> None:
        self.svid = svid
        for notify in self.subscribers:
            notify()


@dataclass(frozen=True)
class PlainLine:
    """A way to a controller without TLS."""

    target: str
    signer: Signer

    def fault(self) -> str:
        return ""


@dataclass
class PlainDialer:
    """Dials `sockets[address]` in the clear; an address without a socket cannot be dialled."""

    sockets: dict[Address, Path]
    dialled: list[tuple[Address, int]] = field(default_factory=list)

    @asynccontextmanager
    async def dial(self, svid: Svid, address: Address) -> AsyncIterator[Line]:
        self.dialled.append((address, svid.generation))
        if address not in self.sockets:
            raise DialError(f"no way to {address}")
        yield PlainLine(f"unix:{self.sockets[address]}", SvidSigner(svid))


@dataclass
class FakeGpus:
    """A GpuInventorySource and GpuEventSource; `hold` makes readings wait, `fault` fail."""

    answer: InventoryReading = field(default_factory=reading)
    fault: Exception | None = None
    begun: int = 0
    hold: asyncio.Event | None = None
    news: asyncio.Queue[GpuEvent] = field(default_factory=asyncio.Queue)
    known: tuple[KnownGpu, ...] = ()
    stuck_call: StuckCall | None = None
    closed: bool = False

    def stuck(self, now: float) -> StuckCall | None:
        del now
        return self.stuck_call

    async def aclose(self) -> None:
        self.closed = True

    async def read(self) -> InventoryReading:
        self.begun += 1
        if self.hold is not None:
            await self.hold.wait()
        if self.fault is not None:
            raise self.fault
        return self.answer

    async def events(self) -> AsyncIterator[GpuEvent]:
        while True:
            yield await self.news.get()


@dataclass
class FakeWitness(CheckpointWitness):
    """Remembers what it was shown and reports what a test sets."""

    seen: list[Shown] = field(default_factory=list)
    known: tuple[WitnessedCheckpoint, ...] = ()
    accused: tuple[LogAlarm, ...] = ()

    def checkpoints(self) -> tuple[WitnessedCheckpoint, ...]:
        return self.known

    def alarms(self) -> tuple[LogAlarm, ...]:
        return self.accused

    def witness(self, shown: Shown) -> None:
        self.seen.append(shown)


@dataclass
class RecordingRecorder:
    """All recorders of the session package; `until` waits for something to be heard."""

    heard: list[tuple[object, ...]] = field(default_factory=list)
    waiters: list[tuple[Callable[[], bool], asyncio.Event]] = field(default_factory=list)

    def record_opened(self, replica: Address, stream: int) -> None:
        self.hear("record_opened", replica, stream)

    def record_verdict(self, replica: Address, stream: int, verdict: Verdict, about: About) -> None:
        self.hear("record_verdict", replica, stream, verdict, about)

    def record_lost_round(self, replica: Address, stream: int) -> None:
        self.hear("record_lost_round", replica, stream)

    def record_end(self, replica: Address, stream: int, end: End) -> None:
        self.hear("record_end", replica, stream, end)

    def add_replica(self, replica: Address) -> None:
        self.hear("add_replica", replica)

    def remove_replica(self, replica: Address) -> None:
        self.hear("remove_replica", replica)

    def record_unresolved(self, controller: Address, detail: str) -> None:
        self.hear("record_unresolved", controller, detail)

    def record_superseded(self, replica: Address) -> None:
        self.hear("record_superseded", replica)

    def record_reading(self, reading: InventoryReading, seconds: float) -> None:
        self.hear("record_reading", reading, seconds)

    def names(self) -> list[object]:
        return [entry[0] for entry in self.heard]

    def of(self, name: str) -> list[tuple[object, ...]]:
        return [entry[1:] for entry in self.heard if entry[0] == name]

    async def until(self, holds: Callable[[], bool], seconds: float = 10.0) -> None:
        event = asyncio.Event()
        self.waiters.append((holds, event))
        if holds():
            return
        async with asyncio.timeout(seconds):
            await event.wait()

    def hear(self, *entry: object) -> None:
        self.heard.append(entry)
        for holds, event in self.waiters:
            if holds():
                event.set()
