"""App.

Holds: supervision, listeners, ticks, exposition, app.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NoReturn

from controller.access import owner_of_socket
from controller.fleet.enrollment import EnrollmentUnavailableError, NodeDirectory
from controller.kube.client import Exchange
from controller.operations.fleet import LOOK_SECONDS
from controller.placement.snapshot import StaticHashesError
from controller.policies.file import PolicyInvalidError
from controller.recorders.gauges import FleetGauges, SvidFacts, count_fleet
from controller.recorders.trust import CONTROLLER
from controller.rpc.interceptor import AuthorizationInterceptor, local_caller, tls_caller
from controller.rpc.server import (
    AddService,
    ListenError,
    RpcServer,
    SocketInUseError,
    agents_server,
    local_server,
    set_serving,
)
from controller.rpc.services import SupportService
from controller.settings import ControllerSettings
from controller.web.extender import ListenRefusedError
from controller.web.server import HttpServer, OpsServer, TlsFilesError, ops_app
from controller.wiring.binding import IdKeysError
from controller.wiring.controller import announce_settings, assemble, record_settings
from controller.wiring.parts import NodesUnknownError, Parts
from controller.wiring.serving import SupportDesk, SupportPorts
from controller.wiring.stores import StoreMissingError
from gpuwarden import __version__
from gpuwarden.clock import Clock, SystemClock
from gpuwarden.identity.keeper import SvidKeeper
from gpuwarden.identity.offer import exactly
from gpuwarden.identity.server_credentials import server_credentials
from gpuwarden.identity.spiffe_id import controller_id
from gpuwarden.moment import NS_PER_MS
from gpuwarden.settings.loader import Loaded
from gpuwarden.settings.values import Address
from gpuwarden.telemetry import logs, names, tracing
from gpuwarden.telemetry.logs import EventLogger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event, Process
from gpuwarden.wire.v1.attestation_pb2_grpc import add_AttestationServiceServicer_to_server
from gpuwarden.wire.v1.fleet_pb2_grpc import add_FleetServiceServicer_to_server
from gpuwarden.wire.v1.operator_pb2_grpc import add_OperatorServiceServicer_to_server
from gpuwarden.wire.v1.placement_pb2_grpc import add_PlacementServiceServicer_to_server
from gpuwarden.wire.v1.support_pb2_grpc import add_SupportServiceServicer_to_server

# --- supervision
# Runs the parts of a process that never end, and notices when one of them does.
#
# Every long-lived task is made here, so that none fails unseen: an unexpected end is
# logged once and ends the process, because half a controller is worse than a restarted
# one. Must not know what the tasks do.

Fault = Callable[[str, BaseException | None], None]
"""Told which task ended and why; None where it returned although it never should."""


class Supervisor:
    """Owns tasks from `watch` to `stop`; one event loop."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    def watch(self, name: str, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run `coroutine` until `stop`; its end before that is a fault."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Cancel all tasks and wait until they are gone."""
        self._stopping = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if not self._stopping:
            self._fault(task.get_name(), error)


# --- listeners
# The listeners of a controller, opened in order and closed together.
#
# First what is asked from inside (probes, the unix socket), then scheduler, webhooks and
# HTTP API, the agents' last: evidence that arrives finds everything behind it open. The
# port of the probes closes last. Must not know what is answered on any of them.

_CALLS_BESIDE_STREAMS: Final = 1000


@dataclass(frozen=True, slots=True)
class Addresses:
    """What the listeners were bound to; ports are never 0 here."""

    agents: str
    extender: str
    ops: str
    local: str
    admission: str = ""
    """Empty without webhooks."""
    api: str = ""
    """Empty without the HTTP API."""


class Listeners:
    """One for the process: `open` once, `close`, and `close_ops` at the very end."""

    def __init__(
        self,
        parts: Parts,
        ops: OpsServer,
        support: SupportService,
        instruments: Instruments,
        log: EventLogger,
    ) -> None:
        self._parts = parts
        self._ops = ops
        self._support = support
        self._instruments = instruments
        self._log = log
        self._rpc: list[RpcServer] = []

    async def open(self, before_agents: Callable[[], Awaitable[None]]) -> Addresses:
        """Open all of them; no agent is heard before `before_agents` is over.

        Raises OSError or SocketInUseError for an address that cannot be had; `close` closes
        what was opened until then.
        """
        parts = self._parts
        ops = await self._ops.start()
        await self._serve(self._local_server())
        extender = await parts.extender.start()
        admission = await _started(parts.admission)
        api = await _started(parts.api)
        await before_agents()
        agents = self._agents_server()
        await self._serve(agents)
        return Addresses(
            agents.address,
            str(Address(*extender)),
            str(ops),
            str(parts.settings.listen.local),
            admission,
            api,
        )

    def announce(self, addresses: Addresses) -> None:
        """A line in the log for each listener that is open."""
        for listener, address in asdict(addresses).items():
            if address:
                self._log.info(Event.LISTENER_OPEN, listener=listener, address=address)

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """What has to run, each once: certificate files that change are taken into use."""
        parts, tasks = self._parts, {}
        if parts.settings.extender.tls.cert is not None:
            tasks["certificates"] = parts.extender.watch_certificates()
        if parts.admission is not None:
            tasks["admission certificates"] = parts.admission.watch_certificates()
        if parts.api is not None:
            tasks["api certificates"] = parts.api.watch_certificates()
        return tasks

    async def set_serving(self, *, ready: bool) -> None:
        """Publish readiness to who asks over gRPC."""
        for server in self._rpc:
            await set_serving(server, ready=ready)

    def close(self, grace_s: float) -> Sequence[asyncio.Future[None]]:
        """Begin to close all but the port of the probes; running answers may end in time."""
        parts = self._parts
        closing = [one.stop(grace_s) for one in self._rpc]
        others = (parts.extender, parts.admission, parts.api)
        closing.extend(one.stop(grace_s) for one in others if one is not None)
        return [asyncio.ensure_future(one) for one in closing]

    async def close_ops(self) -> None:
        """Close the port of the probes."""
        await self._ops.stop()

    def _local_server(self) -> RpcServer:
        parts, path = self._parts, self._parts.settings.listen.local
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        return local_server(
            path=path,
            interceptor=AuthorizationInterceptor(
                authenticate=local_caller(owner_of_socket(os.geteuid())),
                observer=parts.journal,
                clock=parts.clock,
            ),
            services=self._services(),
        )

    def _agents_server(self) -> RpcServer:
        parts, settings = self._parts, self._parts.settings
        return agents_server(
            address=str(settings.listen.agents),
            credentials=server_credentials(
                parts.svids, self._handshake_failed, on_offer=self._handshake_begun
            ),
            interceptor=AuthorizationInterceptor(
                authenticate=tls_caller(
                    lambda: parts.conditions.known().roots,
                    trust_domain=settings.trust_domain,
                    path_prefix=settings.path_prefix,
                ),
                observer=parts.journal,
                clock=parts.clock,
            ),
            services=(
                lambda server: add_AttestationServiceServicer_to_server(parts.attestation, server),
                *self._services(),
            ),
            max_calls=settings.limits.streams + _CALLS_BESIDE_STREAMS,
        )

    def _services(self) -> tuple[AddService, ...]:
        """What both gRPC servers serve."""
        parts = self._parts
        return (
            lambda server: add_FleetServiceServicer_to_server(parts.fleet, server),
            lambda server: add_OperatorServiceServicer_to_server(parts.operator, server),
            lambda server: add_PlacementServiceServicer_to_server(parts.placement, server),
            lambda server: add_SupportServiceServicer_to_server(self._support, server),
        )

    async def _serve(self, server: RpcServer) -> None:
        self._rpc.append(server)
        await set_serving(server, ready=False)
        await server.start()

    def _handshake_begun(self) -> None:
        """Called on gRPC's threads; how the handshake ends, gRPC tells nobody."""
        self._instruments.counter(names.HANDSHAKES).labels("svid").inc()

    def _handshake_failed(self, text: str) -> None:
        """Called on gRPC's threads, once per handshake without usable material of ours."""
        self._instruments.counter(names.TLS_MATERIAL_REFUSED).labels("agents").inc()
        self._instruments.counter(names.HANDSHAKES).labels("no-svid").inc()
        self._log.error(Event.TLS_MATERIAL_REFUSED, reason=text)


async def _started(server: HttpServer | None) -> str:
    """The address that it was bound to; empty where there is no such listener."""
    return "" if server is None else str(Address(*await server.start()))


# --- ticks
# What time alone brings about: leases that end, readiness, the clock's honesty.
#
# Decides none of it: the registry, the conditions and the clock's anchor do.


class Ticks:
    """One for the process; `follow` once."""

    def __init__(
        self, parts: Parts, listeners: Listeners, instruments: Instruments, log: EventLogger
    ) -> None:
        self._parts = parts
        self._listeners = listeners
        self._instruments = instruments
        self._log = log

    async def follow(self, seconds: float) -> NoReturn:
        """Look around every so many seconds; ends by cancellation only."""
        ready = False
        while True:
            await asyncio.sleep(seconds)
            parts = self._parts
            changes = parts.registry.tick(parts.clock.boottime_ns())
            parts.journal.changed(changes, CONTROLLER)
            self._look_at_clock()
            if ready is not parts.conditions.readiness().ready:
                ready = not ready
                await self._listeners.set_serving(ready=ready)

    def _look_at_clock(self) -> None:
        state, clock = self._parts.conditions.state, self._parts.clock
        boottime_ns, wall_ns = clock.boottime_ns(), clock.wall_ns()
        suspect = state.anchor.suspect(boottime_ns, wall_ns)
        if suspect is not state.clock_suspect:
            state.clock_suspect = suspect
            offset_ms = state.anchor.offset_ns(boottime_ns, wall_ns) // NS_PER_MS
            self._log.error(Event.CLOCK_SUSPECT, suspect=suspect, offset_ms=offset_ms)
        self._instruments.gauge(names.CLOCK_SUSPECT).set(suspect)


# --- exposition
# What Prometheus reads of a controller: gauges set as it asks, then everything rendered.
#
# Reads the parts only. Counters are moved where things happen, not here.


class Exposition:
    """One for the process; `render` for each request."""

    def __init__(
        self, parts: Parts, instruments: Instruments, svid_facts: Callable[[], SvidFacts]
    ) -> None:
        self._parts = parts
        self._instruments = instruments
        self._svid_facts = svid_facts
        self._gauges = FleetGauges(instruments)

    def render(self) -> bytes:
        """The page in Prometheus' text format."""
        parts = self._parts
        self._gauges.set_fleet(count_fleet(parts.registry.snapshot(), parts.clock.boottime_ns()))
        self._gauges.set_svid(self._svid_facts())
        if parts.cluster is not None:
            parts.cluster.set_gauges()
        if parts.binding is not None:
            parts.binding.set_gauges()
        self._instruments.gauge(names.READY).set(parts.conditions.readiness().ready)
        self._instruments.gauge(names.SPIRE_AGE).set(parts.spire.age_s(parts.clock.boottime_ns()))
        self._instruments.gauge(names.AUDIT_QUEUE).set(parts.audit.waiting)
        certified = parts.audit.published
        self._instruments.gauge(names.AUDIT_CHECKPOINT).set(certified.head.size if certified else 0)
        return self._instruments.render()


# --- app
# The life of a controller: start, serve, drain. The composition root of the process.
#
# Start: audit log, store, SVID, then the listeners, the agents' last, so that whoever can
# reach us finds everything behind it. Drain, within 5 s of SIGTERM and in this order:
#
# 1. say so (`/readyz`, health), take no new calls or connections;
# 2. end streams and watches with a clear status, let running answers end;
# 3. stop what runs by itself;
# 4. write what the audit log still holds, and its `log.stop`;
# 5. close the rest.
#
# Must not decide anything about evidence or pods.

SERVICE: Final = "controller"
EXIT_OK: Final = 0
EXIT_FAULT: Final = 1
EXIT_BAD_CONFIGURATION: Final = 2
DRAIN_SECONDS: Final = 5.0
_GRACE_SECONDS: Final = 1.5
_AUDIT_SECONDS: Final = 2.0
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class Tempo:
    """How often the process looks around, and how long it waits for its first SVID; seconds."""

    tick_s: float = 0.25
    policy_look_s: float = 2.0
    store_look_s: float = LOOK_SECONDS
    first_svid_s: float = 3.0


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the nodes come from; one of both at least."""

    directory: NodeDirectory | None
    exchange: Exchange | None


class StartError(Exception):
    """The controller cannot start; one line for people, and the exit status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


async def run(
    loaded: Loaded[ControllerSettings],
    *,
    directory: NodeDirectory | None = None,
    exchange: Exchange | None = None,
    announce: Callable[[Addresses], None] = lambda _addresses: None,
    stop: asyncio.Event | None = None,
    clock: Clock | None = None,
    tempo: Tempo = Tempo(),
) -> int:
    """Serve until SIGTERM, SIGINT or `stop`; returns the exit status.

    The nodes come from `directory`, or from the Kubernetes API behind `exchange`.
    `announce` is told the addresses once all listeners are open. Raises StartError.
    """
    settings = loaded.settings
    logs.configure(settings.log.level, settings.log.format, service=SERVICE)
    end_tracing = tracing.configure(
        settings.telemetry.otlp,
        service="gpuwarden-controller",
        version=__version__,
        headers=settings.telemetry.otlp_headers,
    )
    controller = _Controller(
        loaded,
        Sources(directory, exchange),
        stop or asyncio.Event(),
        clock or SystemClock(),
        tempo,
    )
    disobey_signals = controller.obey_signals()
    try:
        await controller.start()
        announce(controller.addresses)
        return await controller.serve()
    finally:
        await controller.drain()
        await asyncio.to_thread(end_tracing)
        disobey_signals()


class _Controller:
    """One controller from start to drain."""

    def __init__(
        self,
        loaded: Loaded[ControllerSettings],
        sources: Sources,
        stop: asyncio.Event,
        clock: Clock,
        tempo: Tempo,
    ) -> None:
        self._loaded = loaded
        self._stop = stop
        self._status = EXIT_OK
        self._log = logs.logger(SERVICE)
        settings = loaded.settings
        self._tempo = tempo
        self._instruments = Instruments(Process.CONTROLLER, __version__)
        self._keeper = SvidKeeper.dialing(
            settings.workload_api,
            exactly(controller_id(settings.trust_domain, settings.path_prefix)),
            clock,
        )
        self._parts = _assembled(
            lambda: assemble(
                settings,
                directory=sources.directory,
                exchange=sources.exchange,
                svids=self._keeper,
                instruments=self._instruments,
                clock=clock,
            )
        )
        self._supervisor = Supervisor(self._fault)
        exposition = Exposition(self._parts, self._instruments, self._keeper.facts)
        self._listeners = Listeners(
            self._parts,
            OpsServer(
                ops_app(self._parts.conditions.readiness, exposition.render), settings.listen.ops
            ),
            SupportService(SupportDesk(self._support_ports(exposition)).parts),
            self._instruments,
            self._log,
        )
        self._audit_open = False
        self._drained = False
        self.addresses = Addresses("", "", "", "")

    async def start(self) -> None:
        """Open everything; raises StartError."""
        parts = self._parts
        announce_settings(self._loaded, parts, self._log)
        self._audit_open = True
        await parts.audit.open()
        for part in (parts.cluster, parts.hints, parts.binding):
            for name, task in ({} if part is None else part.tasks()).items():
                self._supervisor.watch(name, task)
        await self._read_store()
        self._log.info(Event.STORE_OPENED, **parts.store.facts())
        self._keeper.subscribe(self._svid_changed)
        self._keeper.start()
        record_settings(self._loaded, parts)
        try:
            self.addresses = await self._listeners.open(self._before_agents)
        except (OSError, ListenError, SocketInUseError) as error:
            raise StartError(str(error), EXIT_FAULT) from error
        parts.conditions.state.listening_since_ns = parts.clock.boottime_ns()
        ticks = Ticks(parts, self._listeners, self._instruments, self._log)
        self._supervisor.watch("ticks", ticks.follow(self._tempo.tick_s))
        self._supervisor.watch("denials", parts.denials.follow(self._tempo.store_look_s))
        self._supervisor.watch("policy", parts.policy.follow(self._tempo.policy_look_s))
        for name, watching in self._listeners.tasks().items():
            self._supervisor.watch(name, watching)
        self._listeners.announce(self.addresses)
        self._log.info(Event.PROCESS_STARTED, version=__version__)

    async def _read_store(self) -> None:
        """Raises StartError unless the store may come later: nothing is accepted until then."""
        denials = self._parts.denials
        if self._parts.store.may_come_later:
            await denials.look()
            return
        try:
            await denials.begin()
        except EnrollmentUnavailableError as error:
            raise StartError(f"store: {error}", EXIT_FAULT) from error

    async def _before_agents(self) -> None:
        """What must be known, or waited for a little, before an agent is heard."""
        parts = self._parts
        await self._first_policy()
        await self._first_svid()
        if parts.spire.poller is not None:
            following = parts.spire.poller.follow(parts.revocation.carry_out)
            self._supervisor.watch("spire", following)
            await parts.spire.first(self._tempo.first_svid_s)

    async def _first_svid(self) -> None:
        """Wait a little for an SVID, so that the first handshakes succeed, but not for ever."""
        loop, come = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(come.set)

        unsubscribe = self._keeper.subscribe(wake)
        try:
            async with asyncio.timeout(self._tempo.first_svid_s):
                while self._keeper.current() is None and not self._stop.is_set():
                    await come.wait()
                    come.clear()
        except TimeoutError:
            self._log.warning(Event.SVID_SOURCE_FAILED, state=self._keeper.state())
        finally:
            unsubscribe()

    async def _first_policy(self) -> None:
        """Wait until it is known what counts: until then no agent is heard."""
        policy = self._parts.policy
        while policy.unknown is not None and not self._stop.is_set():
            await policy.look()
            await asyncio.sleep(self._tempo.tick_s)

    async def serve(self) -> int:
        """Until a signal, a fault or `stop`."""
        await self._stop.wait()
        return self._status

    def obey_signals(self) -> Callable[[], None]:
        """From the start to the end, so that a second signal cannot cut the drain short."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._signalled, number)

        def disobey() -> None:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

        return disobey

    async def drain(self) -> None:
        """See the module; does nothing the second time."""
        if self._drained:
            return
        self._drained = True
        parts = self._parts
        parts.conditions.state.draining = True
        closing = self._listeners.close(_GRACE_SECONDS)
        await asyncio.sleep(0)  # the listeners are closed before the streams are told to go
        parts.fleet.drain()
        parts.table.end_all()
        await asyncio.gather(*closing, return_exceptions=True)
        await self._supervisor.stop()
        if self._audit_open and not await parts.audit.close(_AUDIT_SECONDS):
            self._log.error(
                Event.AUDIT_UNAVAILABLE, reason="the disk was too slow to close the log"
            )
        await parts.store.close()
        if parts.binding is not None:
            await parts.binding.ledger.close()
        if parts.cluster is not None:
            await parts.cluster.close()
        await self._listeners.close_ops()
        await asyncio.to_thread(self._keeper.close)
        self._log.info(Event.PROCESS_STOPPED, status=self._status)

    def _support_ports(self, exposition: Exposition) -> SupportPorts:
        parts = self._parts
        return SupportPorts(
            loaded=self._loaded,
            conditions=parts.conditions,
            fleet=parts.known_fleet.snapshot,
            streams=parts.table,
            refusals=parts.refusals,
            alarms=parts.journal.alarms,
            audit=parts.audit,
            store_facts=parts.store.facts,
            metrics=exposition.render,
        )

    def _svid_changed(self) -> None:
        """Called on the keeper's thread."""
        is_there = self._keeper.current() is not None
        event = Event.SVID_UPDATED if is_there else Event.SVID_SOURCE_FAILED
        self._log.info(event, state=self._keeper.state())

    def _signalled(self, number: signal.Signals) -> None:
        self._log.info(Event.PROCESS_STOPPING, signal=number.name)
        self._stop.set()

    def _fault(self, task: str, error: BaseException | None) -> None:
        self._status = EXIT_FAULT
        self._log.error(Event.PROCESS_FAULT, task=task, exc_info=error)
        self._stop.set()


def _assembled(make: Callable[[], Parts]) -> Parts:
    try:
        return make()
    except (
        PolicyInvalidError,
        StaticHashesError,
        ListenRefusedError,
        TlsFilesError,
        IdKeysError,
        StoreMissingError,
        NodesUnknownError,
    ) as error:
        raise StartError(str(error), EXIT_BAD_CONFIGURATION) from error
