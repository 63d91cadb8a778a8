"""The life of a controller: start, serve, drain.

Start: audit log, store, SVID, then the listeners, the agents' last, so that whoever can reach this
process finds everything behind it. Drain, within 5 s of SIGTERM and in this order:

1. report it (`/readyz`, health), and let each connection of the scheduler, the API server and the
   HTTP API end with its next answer, for 1 s at most;
2. take no new calls or connections;
3. end streams and watches with a clear status, let running answers end;
4. deliver what still is to be exported, for 10 s more at most;
5. stop what runs by itself;
6. write what the audit log still holds, and its `log.stop`;
7. send log records and spans that still wait to an OpenTelemetry collector, and close the rest.

Must not decide anything about evidence or pods.
"""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from controller.fleet.directory import NodeDirectory
from controller.fleet.enrollment import EnrollmentUnavailableError
from controller.kube.api.client import Exchange
from controller.operations.quarantine_reconciler import RECONCILE_SECONDS
from controller.placement.static_hashes import StaticHashesError
from controller.recorders.trust import CONTROLLER
from controller.rpc.server import ListenError, SocketInUseError
from controller.settings import ControllerSettings
from controller.web.extender.extender import ListenRefusedError
from controller.web.tls import TlsFilesError
from controller.wiring.binding import IdKeysError
from controller.wiring.controller import (
    NodesUnknownError,
    Parts,
    announce_settings,
    assemble,
    record_settings,
)
from controller.wiring.listeners import Addresses
from controller.wiring.stores import StoreKindError
from controller.wiring.telemetry import OTLP_SERVICE
from gpuwarden import __version__
from gpuwarden.clock import Clock, SystemClock
from gpuwarden.identity.spiffe_id import controller_id
from gpuwarden.identity.svid import exactly
from gpuwarden.identity.svid_watcher import SvidWatcher
from gpuwarden.moment import NS_PER_MS
from gpuwarden.policy.document import PolicyInvalidError
from gpuwarden.settings.loader import Loaded
from gpuwarden.telemetry import logs, names, trace_export
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
_REFUSED: Final = (
    PolicyInvalidError,
    StaticHashesError,
    ListenRefusedError,
    TlsFilesError,
    IdKeysError,
    StoreKindError,
    NodesUnknownError,
)
"""What `assemble` raises for settings that cannot be used."""


@dataclass(frozen=True, slots=True)
class Tempo:
    """How often the process polls, and how long it waits for its first SVID; seconds."""

    tick_s: float = 0.25
    policy_look_s: float = 2.0
    store_look_s: float = RECONCILE_SECONDS
    first_svid_s: float = 3.0
    leave_s: float = 1.0
    """For clients that keep connections, to go to another replica before this one closes them."""


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
    `announce` gets the addresses once all listeners are open. Raises StartError.
    """
    settings = loaded.settings
    logs.configure(settings.log.level, settings.log.format, service=SERVICE)
    end_tracing = trace_export.start(
        settings.telemetry.otlp,
        service=OTLP_SERVICE,
        version=__version__,
        headers=settings.telemetry.otlp_headers,
    )
    controller = _Controller(
        loaded,
        directory=directory,
        exchange=exchange,
        stop=stop or asyncio.Event(),
        clock=clock or SystemClock(),
        tempo=tempo,
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
        *,
        directory: NodeDirectory | None,
        exchange: Exchange | None,
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
        self._svid_watcher = SvidWatcher.dialing(
            settings.workload_api,
            exactly(controller_id(settings.trust_domain, settings.path_prefix)),
            clock,
        )
        try:
            self._parts = assemble(
                loaded,
                directory=directory,
                exchange=exchange,
                svids=self._svid_watcher,
                instruments=self._instruments,
                clock=clock,
            )
        except _REFUSED as error:
            raise StartError(str(error), EXIT_BAD_CONFIGURATION) from error
        self._listeners = self._parts.listeners
        self._supervisor = Supervisor(self._fault)
        self._audit_open = False
        self._drained = False
        self.addresses = Addresses("", "", "", "")

    async def start(self) -> None:
        """Open everything; raises StartError."""
        parts = self._parts
        announce_settings(self._loaded, parts, self._log)
        if parts.log_records is not None:
            parts.log_records.start()
        self._audit_open = True
        await parts.audit.open()
        for part in (
            parts.cluster,
            parts.hints,
            parts.waiting_events,
            parts.binding,
            parts.certificates,
            parts.export,
            parts.labels,
            parts.runs,
        ):
            for name, task in ({} if part is None else part.tasks()).items():
                self._supervisor.watch(name, task)
        await self._read_store()
        self._log.info(Event.STORE_OPENED, **parts.store.facts())
        self._svid_watcher.subscribe(self._svid_changed)
        self._svid_watcher.start()
        record_settings(self._loaded, parts)
        try:
            self.addresses = await self._listeners.open(
                self._await_certificates, self._prepare_for_agents
            )
        except (OSError, ListenError, SocketInUseError, TlsFilesError) as error:
            if self._stop.is_set():
                return
            raise StartError(str(error), EXIT_FAULT) from error
        parts.conditions.state.listening_since_ns = parts.clock.boottime_ns()
        self._supervisor.watch("ticks", Ticks(parts, self._instruments).follow(self._tempo.tick_s))
        self._supervisor.watch("denials", parts.denials.follow(self._tempo.store_look_s))
        self._supervisor.watch("policy", parts.policy.run(self._tempo.policy_look_s))
        for name, watching in self._listeners.tasks().items():
            self._supervisor.watch(name, watching)
        self._listeners.announce(self.addresses)
        self._log.info(Event.PROCESS_STARTED, version=__version__)

    async def _read_store(self) -> None:
        """Raises StartError, unless the store may come later; nothing is accepted until then."""
        denials = self._parts.denials
        if self._parts.store.may_come_later:
            await denials.reconcile()
            return
        try:
            await denials.begin()
        except EnrollmentUnavailableError as error:
            raise StartError(f"store: {error}", EXIT_FAULT) from error

    async def _prepare_for_agents(self) -> None:
        """Wait for what must be known before an agent is heard, and a little for what helps."""
        parts = self._parts
        await self._await_policy()
        await self._await_svid()
        if parts.spire.poller is not None:
            following = parts.spire.poller.follow(parts.revocation.carry_out)
            self._supervisor.watch("spire", following)
            await parts.spire.poller.await_snapshot(self._tempo.first_svid_s)

    async def _await_certificates(self) -> None:
        """Wait until the files are there of each listener whose certificate is managed."""
        certificates = self._parts.certificates
        if certificates is None:
            return
        waiting = [asyncio.ensure_future(x.wait()) for x in (certificates.complete, self._stop)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for one in waiting:
            one.cancel()

    async def _await_svid(self) -> None:
        """Wait up to `first_svid_s` for an SVID, so that the first handshakes succeed."""
        loop, come = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(come.set)

        unsubscribe = self._svid_watcher.subscribe(wake)
        try:
            async with asyncio.timeout(self._tempo.first_svid_s):
                while self._svid_watcher.current() is None and not self._stop.is_set():
                    await come.wait()
                    come.clear()
        except TimeoutError:
            self._log.warning(Event.SVID_SOURCE_FAILED, state=self._svid_watcher.state())
        finally:
            unsubscribe()

    async def _await_policy(self) -> None:
        """Wait until a policy is in force; until then no agent is heard."""
        policy = self._parts.policy
        while policy.unknown is not None and not self._stop.is_set():
            await policy.reload()
            await asyncio.sleep(self._tempo.tick_s)

    async def serve(self) -> int:
        """Until a signal, a fault or `stop`."""
        await self._stop.wait()
        return self._status

    def obey_signals(self) -> Callable[[], None]:
        """Stop at a signal, until the returned function is called.

        Holds during the drain too, so that a second signal cannot cut it short.
        """
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._signalled, number)

        def disobey() -> None:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

        return disobey

    async def drain(self) -> None:
        """End everything in the order that the module names; does nothing the second time."""
        if self._drained:
            return
        self._drained = True
        parts = self._parts
        parts.conditions.state.draining = True
        await self._listeners.leave(self._tempo.leave_s)
        closing = self._listeners.close(_GRACE_SECONDS)
        await asyncio.sleep(0)  # lets the listeners close before the streams end
        parts.fleet.drain()
        parts.audit_reader.drain()
        parts.streams.end_all()
        await asyncio.gather(*closing, return_exceptions=True)
        if parts.export is not None:
            await parts.export.flush()
        await self._supervisor.stop()
        if parts.export is not None:
            await parts.export.close()
        if parts.scorer is not None:
            await parts.scorer.close()
        if self._audit_open and not await parts.audit.close(_AUDIT_SECONDS):
            self._log.error(
                Event.AUDIT_UNAVAILABLE, reason="the disk was too slow to close the log"
            )
        await parts.store.close()
        if parts.cluster is not None:
            await parts.cluster.close()
        await self._listeners.close_ops()
        await asyncio.to_thread(self._svid_watcher.close)
        if parts.log_records is not None and self._audit_open:
            await asyncio.to_thread(parts.log_records.close)
        self._log.info(Event.PROCESS_STOPPED, status=self._status)

    def _svid_changed(self) -> None:
        """Called on the thread of the SVID watcher."""
        is_there = self._svid_watcher.current() is not None
        if is_there:
            self._log.info(Event.SVID_UPDATED, state=self._svid_watcher.state())
        else:
            self._log.warning(Event.SVID_SOURCE_FAILED, state=self._svid_watcher.state())

    def _signalled(self, number: signal.Signals) -> None:
        self._log.info(Event.PROCESS_STOPPING, signal=number.name)
        self._stop.set()

    def _fault(self, task: str, error: BaseException | None) -> None:
        self._status = EXIT_FAULT
        self._log.error(Event.PROCESS_FAULT, task=task, exc_info=error)
        self._stop.set()


# --- what runs by itself

Fault = Callable[[str, BaseException | None], None]
"""Gets the name of the task that ended and its error; None where it returned."""


class Supervisor:
    """Runs the tasks that never end, from `watch` to `stop`; one event loop.

    Every long-lived task is made here, so that none fails unseen. An unexpected end is reported
    once, and its receiver ends the process: a controller that does half of its work is worse than
    one that is restarted.
    """

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


class Ticks:
    """What time alone brings about: leases that end, readiness, a wall clock that was moved.

    One for the process; `follow` once. The registry, the conditions and the clock's anchor decide.
    """

    def __init__(self, parts: Parts, instruments: Instruments) -> None:
        self._parts = parts
        self._instruments = instruments
        self._log = logs.logger(SERVICE)

    async def follow(self, seconds: float) -> NoReturn:
        """Check every so many seconds; ends by cancellation only."""
        ready = False
        while True:
            await asyncio.sleep(seconds)
            parts = self._parts
            changes = parts.registry.tick(parts.clock.boottime_ns())
            parts.recorder.changed(changes, CONTROLLER)
            self._look_at_clock()
            if ready is not parts.conditions.readiness().ready:
                ready = not ready
                await parts.listeners.set_serving(ready=ready)

    def _look_at_clock(self) -> None:
        state, clock = self._parts.conditions.state, self._parts.clock
        boottime_ns, wall_ns = clock.boottime_ns(), clock.wall_ns()
        suspect = state.anchor.suspect(boottime_ns, wall_ns)
        if suspect is not state.clock_suspect:
            state.clock_suspect = suspect
            offset_ms = state.anchor.offset_ns(boottime_ns, wall_ns) // NS_PER_MS
            self._log.error(Event.CLOCK_SUSPECT, suspect=suspect, offset_ms=offset_ms)
        self._instruments.gauge(names.CLOCK_SUSPECT).set(suspect)
