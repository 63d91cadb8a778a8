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
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from controller.binding.id_keys import IdKeysError
from controller.composition.assembly import assemble
from controller.composition.parts import Parts
from controller.composition.surroundings import NodesUnknownError
from controller.denial_follower import LOOK_SECONDS
from controller.effective_settings import announce_settings, record_settings
from controller.exposition import Exposition
from controller.fleet.directory import NodeDirectory
from controller.fleet.enrollment import EnrollmentUnavailableError
from controller.kube.api import Exchange
from controller.listeners import Addresses, Listeners
from controller.ops import OpsServer, ops_app
from controller.policy_file import PolicyInvalidError
from controller.rpc.local_socket import SocketInUseError
from controller.rpc.server import ListenError
from controller.rpc.support_service import SupportService
from controller.scheduling.extender import ListenRefusedError
from controller.scheduling.serving_tls import TlsFilesError
from controller.settings import ControllerSettings
from controller.static_hashes import StaticHashesError
from controller.store.opening import StoreMissingError
from controller.supervision import Supervisor
from controller.support.desk import SupportDesk
from controller.support.ports import SupportPorts
from controller.ticks import Ticks
from gpuwarden import __version__
from gpuwarden.clock import Clock, SystemClock
from gpuwarden.identity.keeper import SvidKeeper
from gpuwarden.identity.offer import exactly
from gpuwarden.identity.spiffe_id import controller_id
from gpuwarden.settings.loader import Loaded
from gpuwarden.telemetry import logs, tracing
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event, Process

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
