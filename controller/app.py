"""The life of a controller: start, serve, drain. The composition root of the process.

Start: audit log, store, SVID, then the listeners, the agents' last, so that whoever can
reach us finds everything behind it. Drain, within 5 s of SIGTERM and in this order:

1. say so (`/readyz`, health), take no new calls or connections;
2. end streams and watches with a clear status, let running answers end;
3. stop what runs by itself;
4. write what the audit log still holds, and its `log.stop`;
5. close the rest.

Must not decide anything about evidence or pods.
"""

import asyncio
import hashlib
import os
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

from controller.audit.record import Record
from controller.binding.id_keys import IdKeysError
from controller.composition.assembly import assemble
from controller.composition.parts import Parts
from controller.composition.surroundings import NodesUnknownError
from controller.denial_follower import LOOK_SECONDS
from controller.fleet.directory import NodeDirectory
from controller.fleet.enrollment import EnrollmentUnavailableError
from controller.fleet_gauges import FleetGauges, count_fleet
from controller.kube.api import Exchange
from controller.ops import OpsServer, ops_app
from controller.policy_file import PolicyInvalidError
from controller.rpc.caller import owner_of_socket
from controller.rpc.interceptor import (
    AuthorizationInterceptor,
    local_caller,
    tls_caller,
)
from controller.rpc.local_socket import SocketInUseError
from controller.rpc.server import (
    ListenError,
    RpcServer,
    agents_server,
    local_server,
    set_serving,
)
from controller.rpc.support_service import SupportService
from controller.scheduling.extender import ListenRefusedError
from controller.scheduling.serving_tls import TlsFilesError
from controller.settings import ControllerSettings
from controller.static_hashes import StaticHashesError
from controller.store.opening import StoreMissingError
from controller.supervision import Supervisor
from controller.support.desk import SupportDesk
from controller.support.ports import SupportPorts
from controller.trust_journal import CONTROLLER
from gpuwarden import __version__
from gpuwarden.audit.record import RecordKind
from gpuwarden.clock import Clock, SystemClock
from gpuwarden.identity.keeper import SvidKeeper
from gpuwarden.identity.offer import exactly
from gpuwarden.identity.server_credentials import server_credentials
from gpuwarden.identity.spiffe_id import controller_id
from gpuwarden.settings.key import ENV_PREFIX
from gpuwarden.settings.loader import Loaded
from gpuwarden.settings.report import effective, render
from gpuwarden.settings.values import Address
from gpuwarden.telemetry import logs, names, tracing
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event, Process
from gpuwarden.wire.v1.attestation_pb2_grpc import add_AttestationServiceServicer_to_server
from gpuwarden.wire.v1.fleet_pb2_grpc import add_FleetServiceServicer_to_server
from gpuwarden.wire.v1.operator_pb2_grpc import add_OperatorServiceServicer_to_server
from gpuwarden.wire.v1.placement_pb2_grpc import add_PlacementServiceServicer_to_server
from gpuwarden.wire.v1.support_pb2_grpc import add_SupportServiceServicer_to_server

SERVICE: Final = "controller"
EXIT_OK: Final = 0
EXIT_FAULT: Final = 1
EXIT_BAD_CONFIGURATION: Final = 2
DRAIN_SECONDS: Final = 5.0
_GRACE_SECONDS: Final = 1.5
_AUDIT_SECONDS: Final = 2.0
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
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
        self._gauges = FleetGauges(self._instruments)
        self._ops = OpsServer(
            ops_app(self._parts.conditions.readiness, self._render_metrics), settings.listen.ops
        )
        self._support = SupportService(SupportDesk(self._support_ports()).parts)
        self._rpc: list[RpcServer] = []
        self._audit_open = False
        self._drained = False
        self.addresses = Addresses("", "", "", "")

    async def start(self) -> None:
        """Open everything; raises StartError."""
        parts, settings = self._parts, self._parts.settings
        self._announce_settings()
        self._audit_open = True
        await parts.audit.open()
        for part in (parts.cluster, parts.hints, parts.binding):
            for name, task in ({} if part is None else part.tasks()).items():
                self._supervisor.watch(name, task)
        await self._read_store()
        self._log.info(Event.STORE_OPENED, **parts.store.facts())
        self._keeper.subscribe(self._svid_changed)
        self._keeper.start()
        self._record_settings()
        try:
            self.addresses = await self._listen(settings)
        except (OSError, ListenError, SocketInUseError) as error:
            raise StartError(str(error), EXIT_FAULT) from error
        parts.conditions.state.listening_since_ns = parts.clock.boottime_ns()
        self._supervisor.watch("ticks", self._tick_for_ever())
        self._supervisor.watch("denials", parts.denials.follow(self._tempo.store_look_s))
        self._supervisor.watch("policy", parts.policy.follow(self._tempo.policy_look_s))
        if settings.extender.tls.cert is not None:
            self._supervisor.watch("certificates", parts.extender.watch_certificates())
        if parts.admission is not None:
            watch = parts.admission.watch_certificates()
            self._supervisor.watch("admission certificates", watch)
        if parts.api is not None:
            self._supervisor.watch("api certificates", parts.api.watch_certificates())
        for listener, address in asdict(self.addresses).items():
            if address:
                self._log.info(Event.LISTENER_OPEN, listener=listener, address=address)
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
        closing = [asyncio.ensure_future(one.stop(_GRACE_SECONDS)) for one in self._rpc]
        closing.append(asyncio.ensure_future(parts.extender.stop(_GRACE_SECONDS)))
        if parts.admission is not None:
            closing.append(asyncio.ensure_future(parts.admission.stop(_GRACE_SECONDS)))
        if parts.api is not None:
            closing.append(asyncio.ensure_future(parts.api.stop(_GRACE_SECONDS)))
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
        await self._ops.stop()
        await asyncio.to_thread(self._keeper.close)
        self._log.info(Event.PROCESS_STOPPED, status=self._status)

    async def _listen(self, settings: ControllerSettings) -> Addresses:
        """The agents' port last: evidence that arrives finds everything behind it open."""
        parts = self._parts
        ops = await self._ops.start()
        path = settings.listen.local
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        local = local_server(
            path=path,
            interceptor=AuthorizationInterceptor(
                authenticate=local_caller(owner_of_socket(os.geteuid())),
                observer=parts.journal,
                clock=parts.clock,
            ),
            services=(
                lambda server: add_FleetServiceServicer_to_server(parts.fleet, server),
                lambda server: add_OperatorServiceServicer_to_server(parts.operator, server),
                lambda server: add_PlacementServiceServicer_to_server(parts.placement, server),
                lambda server: add_SupportServiceServicer_to_server(self._support, server),
            ),
        )
        await self._serve_rpc(local)
        extender = await parts.extender.start()
        admission = ""
        if parts.admission is not None:
            admission = str(Address(*await parts.admission.start()))
        api = "" if parts.api is None else str(Address(*await parts.api.start()))
        await self._first_policy()
        await self._first_svid()
        if parts.spire.poller is not None:
            following = parts.spire.poller.follow(parts.revocation.carry_out)
            self._supervisor.watch("spire", following)
            await parts.spire.first(self._tempo.first_svid_s)
        agents = agents_server(
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
                lambda server: add_FleetServiceServicer_to_server(parts.fleet, server),
                lambda server: add_OperatorServiceServicer_to_server(parts.operator, server),
                lambda server: add_PlacementServiceServicer_to_server(parts.placement, server),
                lambda server: add_SupportServiceServicer_to_server(self._support, server),
            ),
            max_calls=settings.limits.streams + _CALLS_BESIDE_STREAMS,
        )
        await self._serve_rpc(agents)
        return Addresses(
            agents.address, str(Address(*extender)), str(ops), str(path), admission, api
        )

    async def _serve_rpc(self, server: RpcServer) -> None:
        self._rpc.append(server)
        await set_serving(server, ready=False)
        await server.start()

    async def _tick_for_ever(self) -> None:
        """What time alone brings about: leases that end, readiness, the clock's honesty."""
        ready = False
        while True:
            await asyncio.sleep(self._tempo.tick_s)
            parts = self._parts
            changes = parts.registry.tick(parts.clock.boottime_ns())
            parts.journal.changed(changes, CONTROLLER)
            self._look_at_clock()
            if ready is not parts.conditions.readiness().ready:
                ready = not ready
                for server in self._rpc:
                    await set_serving(server, ready=ready)

    def _look_at_clock(self) -> None:
        state, clock = self._parts.conditions.state, self._parts.clock
        boottime_ns, wall_ns = clock.boottime_ns(), clock.wall_ns()
        suspect = state.anchor.suspect(boottime_ns, wall_ns)
        if suspect is not state.clock_suspect:
            state.clock_suspect = suspect
            offset_ms = state.anchor.offset_ns(boottime_ns, wall_ns) // 1_000_000
            self._log.error(Event.CLOCK_SUSPECT, suspect=suspect, offset_ms=offset_ms)
        self._instruments.gauge(names.CLOCK_SUSPECT).set(suspect)

    def _render_metrics(self) -> bytes:
        parts = self._parts
        self._gauges.set_fleet(count_fleet(parts.registry.snapshot(), parts.clock.boottime_ns()))
        self._gauges.set_svid(self._keeper.facts())
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

    def _support_ports(self) -> SupportPorts:
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
            metrics=self._render_metrics,
        )

    def _announce_settings(self) -> None:
        self._log.info(
            Event.CONFIG_EFFECTIVE,
            digest=_digest(self._loaded),
            settings={key: entry["value"] for key, entry in effective(self._loaded).items()},
        )
        for key, source in self._loaded.sources.items():
            if _is_alias(source):
                self._log.info(Event.CONFIG_ALIAS, key=key, source=source)
        for warning in self._parts.conditions.insecure:
            self._log.warning(Event.CONFIG_INSECURE, warning=warning)

    def _record_settings(self) -> None:
        self._parts.audit.note(
            Record(
                RecordKind.CONFIG_CHANGE,
                actor=CONTROLLER,
                subject="settings",
                decision="in-force",
                refs={
                    "config": _digest(self._loaded),
                    "policy": self._parts.policy.current.digest,
                    "store": self._parts.store.facts(),
                    "version": __version__,
                    "insecure": list(self._parts.conditions.insecure),
                },
            )
        )

    def _svid_changed(self) -> None:
        """Called on the keeper's thread."""
        is_there = self._keeper.current() is not None
        event = Event.SVID_UPDATED if is_there else Event.SVID_SOURCE_FAILED
        self._log.info(event, state=self._keeper.state())

    def _handshake_begun(self) -> None:
        """Called on gRPC's threads; how the handshake ends, gRPC tells nobody."""
        self._instruments.counter(names.HANDSHAKES).labels("svid").inc()

    def _handshake_failed(self, text: str) -> None:
        """Called on gRPC's threads, once per handshake without usable material of ours."""
        self._instruments.counter(names.TLS_MATERIAL_REFUSED).labels("agents").inc()
        self._instruments.counter(names.HANDSHAKES).labels("no-svid").inc()
        self._log.error(Event.TLS_MATERIAL_REFUSED, reason=text)

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


def _is_alias(source: str) -> bool:
    """Whether a value came from a variable that is not named as ours are."""
    kind, _, variable = source.partition(" ")
    return kind == "environment" and not variable.startswith(ENV_PREFIX)


def _digest(loaded: Loaded[ControllerSettings]) -> str:
    """SHA-256 of the effective configuration as `config print` shows it."""
    return hashlib.sha256(render(loaded).encode()).hexdigest()
