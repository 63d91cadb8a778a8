"""Composition root of the agent: makes the parts, runs them, ends them in order.

The order of the end, within five seconds whatever hangs:
  1. failure notices that have come still go out, then every stream is closed,
  2. the state file is written once more,
  3. NVML is closed, unless a call keeps it,
  4. the SVID svid_watcher stops,
  5. the health server closes last, so that probes are answered until then.

Nothing here decides about trust, and nothing else in the agent reads settings.
"""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from random import SystemRandom
from secrets import token_hex
from typing import Final, Protocol

from cryptography import x509

from agent.attester import Attester, GpuEventSource, GpuInventorySource
from agent.claims.host import HostFacts, HostUnreadableError, read_host
from agent.claims.kubelet import KubeletAllocations
from agent.claims.pods import PodsReading, ProcessPods, RunningPods
from agent.detached import detached
from agent.gpu.facts import DriverReloadedError
from agent.gpu.inventory import KnownGpu
from agent.gpu.reading import EventKind, GpuEvent, InventoryReading
from agent.gpu.source import NvmlInventorySource, StuckCall
from agent.gpu.unreadable import UnreadableWatch
from agent.gpu.worker import Deadlines
from agent.health import HealthServer, Ops
from agent.recorder import AgentRecorder
from agent.session.client import Dialer, SessionPorts, not_looked
from agent.session.dialer import TunnelDialer
from agent.session.readings import AllocationSource, NoAllocations, NodeSource, SharedReadings
from agent.session.replicas import LinkPorts, ReplicaSet, Resolver, SystemResolver, UsedStreamIds
from agent.settings import AgentSettings
from agent.state import (
    AgentState,
    RememberedGpu,
    RememberedNotice,
    StateFile,
    StateLostError,
    StateNotKeptError,
    StateWriter,
)
from agent.witness import CheckpointWitness
from gpuwarden import __version__
from gpuwarden.clock import Clock, SystemClock
from gpuwarden.identity.spiffe_id import agent_id, parse_spiffe_id
from gpuwarden.identity.svid import SvidSource
from gpuwarden.identity.svid_watcher import SvidFacts, SvidWatcher
from gpuwarden.identity.tunnel import DialFailure
from gpuwarden.moment import NS_PER_MS
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import announce, logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event, Process

STOP_S: Final = 5.0
"""From the signal to the end of the process."""
_GOODBYE_S: Final = 2.0
_STEP_S: Final = 0.5
_NEWS_S: Final = 0.1
_LOAD_S: Final = 3.0
_NVML_S: Final = 1.25
"""A wait for events must end before the library can be closed."""


class ExitCode(IntEnum):
    """How the process ends; kubelet starts it again in every case."""

    STOPPED = 0
    """Asked to."""
    FAULT = 1
    """A part failed in a way that nobody foresaw."""
    BAD_CONFIGURATION = 2
    NVML_STUCK = 3
    """An NVML call will never return; only a new process can read again."""
    DRIVER_RELOADED = 4
    """The driver was exchanged; only a new process can read again."""
    NVML_UNREADABLE = 5
    """Nothing could be read for `agent.nvmlRestartAfter`; a new container may."""


class Gpus(GpuInventorySource, GpuEventSource, Protocol):
    """The GPUs, and what becomes of the thread that asks them."""

    @property
    def known(self) -> tuple[KnownGpu, ...]:
        """What to remember for the next process."""

    def stuck(self, now: float) -> StuckCall | None:
        """The call that will never return; `now` is `time.monotonic()`."""

    async def aclose(self) -> None:
        """Close the library, unless a call keeps it."""


class Identity(SvidSource, Protocol):
    """The watcher of this process' SVID."""

    def facts(self) -> SvidFacts:
        """Numbers for metrics."""

    def start(self) -> None:
        """Begin."""

    def close(self) -> None:
        """End; may block for a moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Everything that touches the world outside, so that tests can bring their own."""

    host: HostFacts
    gpus: Callable[[tuple[KnownGpu, ...]], Gpus]
    """Makes the source, given the GPUs that an earlier process of this boot has seen."""
    identity: Identity
    dialer: Dialer
    resolver: Resolver
    state_file: StateFile
    clock: Clock
    jitter: Callable[[], float]
    allocations: AllocationSource = field(default_factory=NoAllocations)
    pods: Callable[[], Awaitable[PodsReading]] = not_looked
    instruments: Instruments = field(
        default_factory=lambda: Instruments(Process.AGENT, __version__)
    )


def real_parts(settings: AgentSettings, *, proc: Path = Path("/proc")) -> Parts:
    """NVML, the Workload API, TLS, the system's resolver, the state directory.

    `proc` has the node's processes. Raises HostUnreadableError.
    """
    wanted = agent_id(settings.trust_domain, settings.path_prefix, settings.agent.node_name)
    clock = SystemClock()
    host = read_host()
    call_s = settings.agent.nvml_timeout.seconds
    deadlines = Deadlines(call_s=call_s, pass_s=max(call_s, Deadlines().pass_s))
    instruments = Instruments(Process.AGENT, __version__)
    dial_failures = instruments.counter(names.AGENT_DIAL_FAILURES)

    def count(failure: DialFailure) -> None:
        dial_failures.labels(failure).inc()

    return Parts(
        host=host,
        gpus=lambda known: NvmlInventorySource(
            host, ProcessPods(proc), deadlines=deadlines, known=known
        ),
        allocations=_allocations(settings),
        pods=RunningPods(proc),
        identity=SvidWatcher.dialing(settings.workload_api, lambda found: found == wanted, clock),
        dialer=TunnelDialer(parse_spiffe_id(settings.controller_id), count),
        resolver=SystemResolver(),
        state_file=StateFile(settings.agent.state_dir),
        clock=clock,
        jitter=SystemRandom().random,
        instruments=instruments,
    )


class App:
    """One agent. `run` once; `stop` from a signal handler of the same loop."""

    def __init__(self, settings: AgentSettings, parts: Parts, state: AgentState | None) -> None:
        """`state` is what an earlier process kept, if it can be read."""
        self._parts = parts
        self._log = logger("agent")
        self._instance_id = token_hex(16)
        self._look_s = settings.agent.nvml_timeout.seconds
        """A call is stuck after several of these."""
        instruments = parts.instruments
        self._recorder = AgentRecorder(instruments, parts.clock, parts.identity)
        self._unreadable = UnreadableWatch(
            settings.agent.nvml_restart_after.seconds, state.unreadable_ends if state else 0
        )
        self._gpus = parts.gpus(_known_gpus(state, parts.host.boot_id))
        self._writer = StateWriter(parts.state_file, self._state, failed=self._not_kept)
        self._witness = CheckpointWitness(
            state.logs if state else (),
            state.log_alarms if state else (),
            changed=self._writer.changed,
            alarmed=self._recorder.record_alarm,
            wall_ms=lambda: parts.clock.wall_ns() // NS_PER_MS,
        )
        for alarm in self._witness.alarms():
            self._recorder.record_alarm(alarm)
        self._readings = SharedReadings(
            NodeSource(self._gpus, parts.allocations), parts.clock, self._record_reading
        )
        self._replicas = self._replica_set(settings, _unacknowledged(state, parts.host.boot_id))
        ops = Ops(
            instruments,
            self._recorder,
            parts.identity,
            stuck=self._gpus.stuck,
            unreadable=self._why_unreadable,
            facts=parts.identity.facts,
        )
        cuts = instruments.counter(names.CONNECTIONS_CUT)
        self._health = HealthServer(
            settings.listen.ops, ops.routes(), cut=lambda cause: cuts.labels("ops", cause).inc()
        )
        open_now: Callable[[], float] = self._health.__len__
        instruments.gauge(names.CONNECTIONS).labels("ops").set_function(open_now)
        self._stopping = asyncio.Event()
        self._code = ExitCode.STOPPED
        self._known: tuple[KnownGpu, ...] = ()

    def _replica_set(
        self, settings: AgentSettings, unacknowledged: tuple[GpuEvent, ...]
    ) -> ReplicaSet:
        parts = self._parts
        attester = Attester(
            node_name=settings.agent.node_name,
            trust_domain=settings.trust_domain,
            cluster=settings.cluster,
            controller=parse_spiffe_id(settings.controller_id),
            instance_id=self._instance_id,
            boot_id=parts.host.boot_id,
            agent_version=__version__,
        )
        session = SessionPorts(
            attester=attester,
            dialer=parts.dialer,
            read=self._readings.read,
            pods=parts.pods,
            roots=self._roots,
            witness=self._witness,
            recorder=self._recorder,
            stream_ids=UsedStreamIds(),
            clock=parts.clock,
        )
        ports = LinkPorts(session=session, jitter=parts.jitter)
        return ReplicaSet(
            ports,
            settings.agent.controllers,
            svids=parts.identity,
            resolver=parts.resolver,
            unacknowledged=unacknowledged,
            notices_changed=self._writer.changed,
        )

    def stop(self, code: ExitCode, why: str) -> None:
        """Ask for the end; the first reason counts."""
        if not self._stopping.is_set():
            self._code = code
            log = self._log.info if code is ExitCode.STOPPED else self._log.warning
            log(Event.PROCESS_STOPPING, code=int(code), detail=why)
            self._stopping.set()

    async def run(self) -> ExitCode:
        """Run until stopped or until a part can no longer work."""
        address = await self._health.start()
        self._log.info(Event.LISTENER_OPEN, address=str(address))
        announce(Event.AGENT_LISTENING, ops=str(address))
        unsubscribe = self._parts.identity.subscribe(self._svid_changed)
        self._parts.identity.start()
        try:
            await self._work()
        except* Exception as group:  # noqa: BLE001 -- the supervisor: whatever a part raises ends the process
            self.stop(ExitCode.FAULT, "a part of the process failed")
            self._log.error(Event.PROCESS_FAULT, exc_info=group)
        finally:
            unsubscribe()
            await self._close()
        self._log.info(Event.PROCESS_STOPPED, code=int(self._code))
        return self._code

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            replicas = tasks.create_task(self._replicas.run(), name="replicas")
            parts = [
                tasks.create_task(self._read(), name="readings"),
                tasks.create_task(self._pass_notices_on(), name="notices"),
                tasks.create_task(self._writer.run(), name="state"),
                tasks.create_task(self._watch_nvml(), name="nvml watch"),
            ]
            self._writer.changed()
            self._log.info(Event.PROCESS_STARTED, instance=self._instance_id)
            await self._stopping.wait()
            await asyncio.sleep(_NEWS_S)  # what came with the reason to stop reaches the streams
            self._replicas.halt()
            await asyncio.wait({replicas}, timeout=_GOODBYE_S)
            for task in (replicas, *parts):
                task.cancel()

    async def _close(self) -> None:
        with suppress(TimeoutError, StateNotKeptError):
            state = self._state()
            await detached(
                lambda: self._parts.state_file.keep(state), deadline_s=_STEP_S, name="state"
            )
        with suppress(TimeoutError):
            async with asyncio.timeout(_NVML_S):
                await self._gpus.aclose()
        await self._parts.allocations.aclose()
        with suppress(TimeoutError):
            await detached(self._parts.identity.close, deadline_s=_STEP_S, name="identity")
        await self._health.close()

    async def _read(self) -> None:
        try:
            await self._readings.run()
        except DriverReloadedError as error:
            self.stop(ExitCode.DRIVER_RELOADED, str(error))

    async def _pass_notices_on(self) -> None:
        async for event in self._gpus.events():
            self._recorder.record_gpu_event(event)
            heard_ms = self._parts.clock.boottime_ns() // NS_PER_MS
            self._replicas.send_notice(replace(event, happened_ms=heard_ms))

    async def _watch_nvml(self) -> None:
        while (stuck := self._gpus.stuck(time.monotonic())) is None:
            await asyncio.sleep(self._look_s)
            if self._why_unreadable() and await self._is_still_unreadable():
                return
        self._log.error(Event.NVML_STUCK, call=stuck.call, seconds=round(stuck.seconds, 1))
        self.stop(ExitCode.NVML_STUCK, f"{stuck.call} never returned")

    def _why_unreadable(self) -> str:
        return self._unreadable.overdue(self._parts.clock.boottime_ns())

    async def _is_still_unreadable(self) -> bool:
        """Readings come with challenges, so the last one may be old: nothing ends without one."""
        await self._readings.read()
        why = self._why_unreadable()
        if why:
            self._log.error(Event.NVML_UNREADABLE, detail=why, ends=self._unreadable.ends + 1)
            self.stop(ExitCode.NVML_UNREADABLE, why)
        return bool(why)

    def _record_reading(self, reading: InventoryReading, seconds: float) -> None:
        self._recorder.record_reading(reading, seconds)
        ends = self._unreadable.ends
        self._unreadable.saw(reading, self._parts.clock.boottime_ns())
        if self._known != self._gpus.known or ends != self._unreadable.ends:
            self._known = self._gpus.known
            self._writer.changed()

    def _svid_changed(self) -> None:
        """Called on the SVID watcher's thread."""
        identity = self._parts.identity
        is_there = identity.current() is not None
        if is_there:
            self._log.info(Event.SVID_UPDATED, state=identity.state())
        else:
            self._log.warning(Event.SVID_SOURCE_FAILED, state=identity.state())

    def _roots(self) -> tuple[x509.Certificate, ...]:
        svid = self._parts.identity.current()
        return () if svid is None else svid.roots

    def _state(self) -> AgentState:
        return AgentState(
            instance_id=self._instance_id,
            boot_id=self._parts.host.boot_id,
            logs=self._witness.logs(),
            log_alarms=self._witness.alarms(),
            gpus=tuple(
                RememberedGpu(uuid=gpu.uuid, pci_bus_id=gpu.bus_id, nvml_index=gpu.nvml_index)
                for gpu in self._gpus.known
            ),
            notices=tuple(
                RememberedNotice(
                    kind=x.kind.value,
                    gpu=x.gpu,
                    xid=x.xid,
                    detail=x.detail,
                    happened_ms=x.happened_ms,
                    count=x.count,
                )
                for x in self._replicas.unacknowledged
            ),
            unreadable_ends=self._unreadable.ends + (self._code is ExitCode.NVML_UNREADABLE),
        )

    def _not_kept(self, detail: str) -> None:
        self._log.warning(Event.STATE_LOST, detail=f"state could not be kept: {detail}")


def end_for_certain() -> None:
    """Keep the promise of five seconds whatever hangs, interpreter and libraries included."""
    last_resort = threading.Timer(STOP_S - 0.25, os._exit, (int(ExitCode.FAULT),))
    last_resort.daemon = True
    last_resort.start()


async def run_agent(
    settings: AgentSettings, parts: Parts, *, on_signal: Callable[[], None] = end_for_certain
) -> ExitCode:
    """Load state, run until SIGTERM, SIGINT or a fault, return the exit code."""
    app = App(settings, parts, await _load_state(parts))

    def stop(number: signal.Signals) -> None:
        app.stop(ExitCode.STOPPED, number.name)
        on_signal()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    return await app.run()


async def _load_state(parts: Parts) -> AgentState | None:
    log = logger("agent")
    try:
        state = await detached(parts.state_file.load, deadline_s=_LOAD_S, name="state")
    except StateLostError as error:
        log.info(Event.STATE_LOST, detail=str(error))
        return None
    except TimeoutError:
        log.warning(Event.STATE_LOST, detail=f"the disk did not answer within {_LOAD_S:g} s")
        return None
    return state


def _allocations(settings: AgentSettings) -> AllocationSource:
    socket = settings.agent.kubelet_socket
    if socket is None:
        return NoAllocations()
    return KubeletAllocations(socket, settings.agent.gpu_resources)


def _known_gpus(state: AgentState | None, boot_id: str) -> tuple[KnownGpu, ...]:
    """GPUs of this boot only: what is gone after a reboot was taken out, not lost."""
    if state is None or state.boot_id != boot_id:
        return ()
    return tuple(KnownGpu(gpu.uuid, gpu.pci_bus_id, gpu.nvml_index) for gpu in state.gpus)


def _unacknowledged(state: AgentState | None, boot_id: str) -> tuple[GpuEvent, ...]:
    """Of this boot only: a reboot ends whatever a notice could say."""
    if state is None or state.boot_id != boot_id:
        return ()
    return tuple(
        GpuEvent(EventKind(x.kind), x.gpu, x.xid, x.detail, x.happened_ms, x.count)
        for x in state.notices
        if x.kind in set(EventKind)
    )


__all__ = ["App", "ExitCode", "HostUnreadableError", "Parts", "real_parts", "run_agent"]
