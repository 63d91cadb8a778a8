"""One simulated node: the agent's own links and streams around made-up hardware.

Everything from the Attester to the TLS tunnel is the agent's code. A node lives in the
event loop of its fleet and shares nothing with other nodes but the tally.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta

from cryptography import x509

from agent.attester import Attester
from agent.gpu.reading import InventoryReading
from agent.session.client import Line, SessionPorts
from agent.session.dialer import TunnelLine
from agent.session.machine import About, End, Verdict
from agent.session.replicas import LinkPorts, ReplicaLink, UsedStreamIds
from agent.witness import CheckpointWitness
from gpuwarden.clock import Clock, SystemClock
from gpuwarden.evidence.model import GpuProcess
from gpuwarden.identity.spiffe_id import SpiffeId, agent_id, controller_id
from gpuwarden.identity.svid import Svid
from gpuwarden.identity.tunnel import Tunnel
from gpuwarden.moment import NS_PER_MS
from gpuwarden.settings.values import Address
from sandbox.fleet.hardware import NodeHardware, reading_of
from sandbox.fleet.tally import Tally
from sandbox.nodes import CLUSTER, TRUST_DOMAIN
from sandbox.spiffe.ca import InsecureCa

PREFIX = "/gpuwarden"
VERSION = "simulated"
_STREAM_IDS = 64


See = Callable[[InventoryReading], Awaitable[InventoryReading]]


@dataclass(frozen=True, slots=True)
class FleetEnvironment:
    """What all nodes of a fleet share."""

    controllers: Sequence[Address]
    ca: InsecureCa
    roots: tuple[x509.Certificate, ...]
    tally: Tally
    svid_ttl: timedelta = timedelta(hours=1)
    clock: Clock = field(default_factory=SystemClock)


class SimulatedNode:
    """One node; `start` and the four things that can happen to it, all from one event loop."""

    def __init__(
        self,
        around: FleetEnvironment,
        hardware: NodeHardware,
        draw: random.Random,
        see: See | None = None,
    ) -> None:
        """`see` adds to each reading who uses the GPUs; without it nobody is asked."""
        self.hardware = hardware
        self._see = see
        self.accepted_hash = ""
        """Class hash of the last acceptance."""
        self.instance_id = ""
        self._around = around
        self._draw = draw
        self._id = agent_id(TRUST_DOMAIN, PREFIX, hardware.name)
        self._svid = self._issue(generation=1)
        self._reading = reading_of(hardware.scenario, hardware.host)
        self._dialer = _Dialer(controller_id(TRUST_DOMAIN, PREFIX))
        self._links: list[ReplicaLink] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._recorder = _Recorder(around.tally, around.clock, self._accepted)
        self._witness = CheckpointWitness(
            (),
            (),
            changed=lambda: None,
            alarmed=lambda alarm: around.tally.alarms.update([alarm.code]),
            wall_ms=lambda: around.clock.wall_ns() // NS_PER_MS,
        )

    @property
    def name(self) -> str:
        """Name of the node."""
        return self.hardware.name

    def start(self) -> None:
        """Start the agent with an instance id of its own."""
        self.instance_id = self._draw.randbytes(16).hex()
        ports = self._ports()
        for address in self._around.controllers:
            link = ReplicaLink(ports, address, superseded=lambda _address: None)
            link.identity_changed(self._svid)
            self._links.append(link)
            self._tasks.append(asyncio.create_task(link.run(), name=self.name))

    async def stop(self) -> None:
        """End the agent in good order."""
        for link in self._links:
            link.halt()
        await self._over(self._tasks)
        self._forget()

    async def drop(self) -> None:
        """Break every connection, as a network does."""
        await self._dialer.sever()

    async def restart(self) -> None:
        """The process dies without a word; the next one has another instance id."""
        for task in self._tasks:
            task.cancel()
        await self._over(self._tasks)
        self._forget()
        self.start()

    def rotate(self) -> None:
        """A new SVID; the agent moves its streams over by itself."""
        self._svid = self._issue(self._svid.generation + 1)
        for link in self._links:
            link.identity_changed(self._svid)

    async def upgrade(self) -> None:
        """The driver was exchanged: the agent's process ends with the old one."""
        self.hardware = self.hardware.upgraded()
        self._reading = reading_of(self.hardware.scenario, self.hardware.host)
        await self.restart()

    def use(self, processes: tuple[GpuProcess, ...]) -> None:
        """These processes, and no others, use its GPUs from now on."""
        self._reading = replace(self._reading, processes=processes)

    def _forget(self) -> None:
        self._links.clear()
        self._tasks.clear()
        self._recorder.process_ended()

    @staticmethod
    async def _over(tasks: Sequence[asyncio.Task[None]]) -> None:
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task

    def _issue(self, generation: int) -> Svid:
        issued = self._around.ca.issue(str(self._id), ttl=self._around.svid_ttl)
        return Svid(self._id, issued.private_key, issued.chain, self._around.roots, generation)

    def _ports(self) -> LinkPorts:
        around = self._around
        attester = Attester(
            node_name=self.name,
            trust_domain=TRUST_DOMAIN,
            cluster=CLUSTER,
            controller=controller_id(TRUST_DOMAIN, PREFIX),
            instance_id=self.instance_id,
            boot_id=self.hardware.host.boot_id,
            agent_version=VERSION,
        )
        recorder = self._recorder
        session = SessionPorts(
            attester=attester,
            dialer=self._dialer,
            read=self._read,
            roots=lambda: around.roots,
            witness=self._witness,
            recorder=recorder,
            stream_ids=UsedStreamIds(_STREAM_IDS),
            clock=around.clock,
        )
        return LinkPorts(session=session, jitter=self._draw.random)

    def _accepted(self, attestation_hash: str) -> None:
        self.accepted_hash = attestation_hash

    async def _read(self) -> InventoryReading:
        self._recorder.read_begun()
        return self._reading if self._see is None else await self._see(self._reading)


class _Dialer:
    """Real tunnels that can be severed."""

    def __init__(self, controller: SpiffeId) -> None:
        self._controller = controller
        self._open: set[Tunnel] = set()

    @asynccontextmanager
    async def dial(self, svid: Svid, address: Address) -> AsyncIterator[Line]:
        """A tunnel that presents `svid`."""
        tunnel = Tunnel(svid, address.host, address.port, self._controller)
        async with tunnel:
            self._open.add(tunnel)
            try:
                yield TunnelLine(tunnel)
            finally:
                self._open.discard(tunnel)

    async def sever(self) -> None:
        """Break all connections."""
        for tunnel in tuple(self._open):
            await tunnel.close()


class _Recorder:
    """Counts what happens on the streams of one agent."""

    def __init__(self, tally: Tally, clock: Clock, accepted: Callable[[str], None]) -> None:
        self._tally = tally
        self._clock = clock
        self._accepted = accepted
        self._begun_ns: int | None = None
        self._opened: set[int] = set()

    def process_ended(self) -> None:
        """Streams that could not end in good order are gone as well."""
        self._tally.streams -= len(self._opened)
        self._opened.clear()
        self._begun_ns = None

    def read_begun(self) -> None:
        """A challenge came and was believed."""
        self._begun_ns = self._clock.boottime_ns()

    def record_opened(self, replica: Address, stream: int) -> None:
        """Hello was sent."""
        del replica
        self._opened.add(stream)
        self._tally.streams += 1
        self._tally.opened += 1

    def record_verdict(self, replica: Address, stream: int, verdict: Verdict, about: About) -> None:
        """A verdict came."""
        del replica, stream, about
        latency_ms = None
        if self._begun_ns is not None:
            latency_ms = (self._clock.boottime_ns() - self._begun_ns) / 1e6
            self._begun_ns = None
        self._tally.judged(verdict.code, latency_ms)
        if verdict.accepted:
            self._accepted(verdict.attestation_hash)

    def record_lost_round(self, replica: Address, stream: int) -> None:
        """The reading took too long: never here."""
        del replica, stream
        self._tally.lost_rounds += 1

    def record_end(self, replica: Address, stream: int, end: End) -> None:
        """A stream is over."""
        del replica
        if stream in self._opened:
            self._opened.discard(stream)
            self._tally.streams -= 1
        self._tally.ends[end.reason] += 1

    def add_replica(self, replica: Address) -> None:
        """Not of interest."""

    def remove_replica(self, replica: Address) -> None:
        """Not of interest."""

    def record_unresolved(self, controller: Address, detail: str) -> None:
        """Addresses are literal here."""

    def record_superseded(self, replica: Address) -> None:
        """Counted by the verdict."""
