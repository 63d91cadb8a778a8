"""What the agent's readiness, metrics and log show of streams, replicas and readings.

Streams, links and readings report to it; the health server asks it. Nothing in the agent acts on
what it holds.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from agent.claims.allocations import NOT_ASKED, AllocationReading
from agent.gpu.reading import GpuEvent, InventoryReading, NvmlState
from agent.session.machine import About, End, EndReason, Verdict
from gpuwarden.clock import Clock
from gpuwarden.evidence.model import LogAlarm
from gpuwarden.identity.svid import SvidSource
from gpuwarden.moment import NS_PER_MS, NS_PER_S
from gpuwarden.reasons import EFFECT_OF, Effect, ReasonCode
from gpuwarden.settings.values import Address
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

_NUMBERED = "ERROR_"
"""Returns of a driver that is newer than the binding; as labels they could be without end."""
_UNKNOWN_ERROR = "OTHER"


class Condition(StrEnum):
    """What a replica thinks of this node, as far as it has said."""

    CONNECTING = "connecting"
    OPEN = "open"
    ACCEPTED = "accepted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReport:
    """One replica, as shown."""

    address: str
    condition: Condition
    code: str
    """Reason code of its last verdict, or empty."""
    detail: str
    level: str
    attestation_hash: str
    fresh_for_s: int
    """Seconds for which its last acceptance still holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether this agent does its work, and if not, why."""

    ready: bool
    reasons: tuple[str, ...]
    replicas: tuple[ReplicaReport, ...]
    alarms: tuple[str, ...]
    """What is wrong with the audit logs of controllers; that is no fault of this node."""


@dataclass(slots=True)
class _Replica:
    streams: set[int] = field(default_factory=set)
    accepted_until_ns: int = 0
    code: str = ""
    detail: str = ""
    level: str = ""
    attestation_hash: str = ""


class AgentRecorder:
    """Implements the recorders of streams, links and readings. One event loop only."""

    def __init__(self, instruments: Instruments, clock: Clock, identity: SvidSource) -> None:
        self._instruments = instruments
        self._clock = clock
        self._identity = identity
        self._log = logger("agent")
        self._replicas: dict[Address, _Replica] = {}
        self._superseded = False
        self._alarms: list[LogAlarm] = []
        self._reading: InventoryReading | None = None
        self._facts: tuple[int, int, int] | None = None
        self._kubelet_error: str | None = None

    def add_replica(self, replica: Address) -> None:
        """This replica is to have a stream."""
        self._replicas[replica] = _Replica()

    def remove_replica(self, replica: Address) -> None:
        """It no longer is."""
        del self._replicas[replica]

    def record_unresolved(self, controller: Address, detail: str) -> None:
        """A name could not be resolved."""
        self._log.warning(Event.CONTROLLER_UNRESOLVED, controller=str(controller), detail=detail)

    def record_superseded(self, replica: Address) -> None:
        """Another instance speaks for this node."""
        self._superseded = True
        self._log.error(
            Event.STREAM_CLOSED,
            replica=str(replica),
            cause=EndReason.SUPERSEDED,
            detail="another instance of this node's agent took over; this one is silent now",
        )

    def record_opened(self, replica: Address, stream: int) -> None:
        """The controller sent its first challenge, and it verified."""
        self._replicas[replica].streams.add(stream)
        self._instruments.counter(names.AGENT_STREAMS_OPENED).inc()
        self._log.info(Event.STREAM_OPENED, replica=str(replica), stream=stream)

    def record_verdict(self, replica: Address, stream: int, verdict: Verdict, about: About) -> None:
        """A verdict came; changes are logged, repetitions are only counted."""
        self._instruments.counter(names.AGENT_VERDICTS).labels(verdict.code).inc()
        entry = self._replicas[replica]
        event = Event.VERDICT_ACCEPTED if verdict.accepted else Event.VERDICT_REFUSED
        is_new = (entry.code, entry.attestation_hash) != (verdict.code, verdict.attestation_hash)
        if about is About.NOTICE or is_new:
            self._log.info(
                event,
                replica=str(replica),
                stream=stream,
                about=about,
                code=verdict.code,
                detail=verdict.detail,
                assurance_level=verdict.level,
                hash=verdict.attestation_hash,
            )
        if about is not About.NOTICE:
            self._show(entry, verdict)

    def _show(self, entry: _Replica, verdict: Verdict) -> None:
        now_ns = self._clock.boottime_ns()
        entry.code, entry.detail = verdict.code, verdict.detail
        entry.level, entry.attestation_hash = verdict.level, verdict.attestation_hash
        if verdict.accepted:
            entry.accepted_until_ns = now_ns + verdict.fresh_for_ms * NS_PER_MS
        elif not _is_transient(verdict.code):
            entry.accepted_until_ns = 0  # revoked at once; else the lease runs out by itself

    def record_lost_round(self, replica: Address, stream: int) -> None:
        """The GPUs were not read in time."""
        self._instruments.counter(names.AGENT_CHALLENGES_MISSED).inc()
        self._log.warning(
            Event.CHALLENGE_MISSED,
            replica=str(replica),
            stream=stream,
            detail="the GPUs were not read while the challenge lived; no evidence was sent",
        )

    def record_end(self, replica: Address, stream: int, end: End) -> None:
        """The stream is over."""
        self._instruments.counter(names.AGENT_STREAM_ENDS).labels(end.reason).inc()
        entry = self._replicas[replica]
        entry.streams.discard(stream)
        if not entry.streams:
            entry.code, entry.detail = end.code or entry.code, f"{end.reason}: {end.detail}"
        is_unproven = end.reason is EndReason.UNPROVEN
        log = self._log.info if end.reason is EndReason.STOPPED else self._log.warning
        log(
            Event.CHALLENGE_REFUSED if is_unproven else Event.STREAM_CLOSED,
            replica=str(replica),
            stream=stream,
            cause=end.reason,
            code=end.code,
            detail=end.detail,
        )

    def record_alarm(self, alarm: LogAlarm) -> None:
        """A controller's audit log is not what it was; reported again at each start."""
        self._alarms.append(alarm)
        self._log.error(
            Event.LOG_ALARM,
            code=alarm.code,
            origin=alarm.origin,
            detail=alarm.detail,
            known=alarm.known,
            seen=alarm.seen,
        )

    def record_reading(self, reading: InventoryReading, seconds: float) -> None:
        """A reading ended."""
        gpus, lost, failed = (
            len(reading.inventory.gpus),
            len(reading.inventory.lost),
            len(reading.failed_reads),
        )
        result = "failed" if failed else "complete"
        self._instruments.counter(names.AGENT_READS).labels(result).inc()
        self._instruments.histogram(names.AGENT_READ_SECONDS).observe(seconds)
        self._instruments.gauge(names.AGENT_GPUS).set(gpus)
        self._instruments.gauge(names.AGENT_GPUS_LOST).set(lost)
        for read in reading.failed_reads:
            error = _UNKNOWN_ERROR if read.error.startswith(_NUMBERED) else read.error
            self._instruments.counter(names.AGENT_NVML_FAILURES).labels(read.call, error).inc()
        available = reading.state is NvmlState.READY
        self._instruments.gauge(names.AGENT_NVML_AVAILABLE).set(int(available))
        was_available = self._reading is None or self._reading.state is NvmlState.READY
        if available != was_available:
            event = Event.NVML_AVAILABLE if available else Event.NVML_UNAVAILABLE
            self._log.warning(event, detail=reading.detail)
        if (gpus, lost, failed) != self._facts:
            self._log.info(Event.INVENTORY_READ, gpus=gpus, lost=lost, failed_reads=failed)
        self._facts = (gpus, lost, failed)
        self._reading = reading
        if reading.allocations is not NOT_ASKED:
            self._asked_kubelet(reading.allocations)

    def _asked_kubelet(self, found: AllocationReading) -> None:
        """Each change of what is wrong is logged once."""
        error = found.failed_reads[0].error if found.failed_reads else None
        self._instruments.counter(names.AGENT_KUBELET_READS).labels(error or "complete").inc()
        count = len(found.allocations or ())
        self._instruments.gauge(names.AGENT_ALLOCATIONS).set(count)
        if error is not None and error != self._kubelet_error:
            self._log.warning(Event.ALLOCATIONS_UNREAD, error=error, detail=found.detail)
        if error is None and self._kubelet_error is not None:
            self._log.info(Event.ALLOCATIONS_READ, allocations=count)
        self._kubelet_error = error

    def record_gpu_event(self, event: GpuEvent) -> None:
        """Failure notices came from the driver."""
        self._instruments.counter(names.AGENT_GPU_EVENTS).labels(event.kind).inc()
        self._log.warning(
            Event.GPU_EVENT, kind=event.kind, gpu=event.gpu, xid=event.xid, detail=event.detail
        )

    def readiness(self) -> Readiness:
        """What `/readyz` answers: an SVID, and one replica whose acceptance still holds."""
        replicas = tuple(self._report(address, entry) for address, entry in self._sorted())
        reasons: list[str] = []
        if self._superseded:
            reasons.append(
                f"{ReasonCode.STREAM_SUPERSEDED}: another instance of this node's agent took over"
            )
        if self._identity.current() is None:
            reasons.append(self._identity.state())
        if self._reading is not None and self._reading.state is not NvmlState.READY:
            reasons.append(f"{self._reading.state}: {self._reading.detail}")
        if not replicas:
            reasons.append("no controller replica is known yet")
        elif not any(replica.condition is Condition.ACCEPTED for replica in replicas):
            reasons += [
                f"{replica.address}: {replica.code or replica.condition} {replica.detail}".rstrip()
                for replica in replicas
            ]
        accepted = any(replica.condition is Condition.ACCEPTED for replica in replicas)
        ready = accepted and self._identity.current() is not None and not self._superseded
        return Readiness(
            ready=ready,
            reasons=() if ready else tuple(reasons),
            replicas=replicas,
            alarms=tuple(f"{one.code}: {one.origin}: {one.detail}" for one in self._alarms),
        )

    def refresh(self) -> None:
        """Bring the gauges that depend on time up to date, before they are rendered."""
        readiness = self.readiness()
        streams = self._instruments.gauge(names.AGENT_STREAMS)
        for condition in Condition:
            count = sum(replica.condition is condition for replica in readiness.replicas)
            streams.labels(condition).set(count)
        accepted = sum(x.condition is Condition.ACCEPTED for x in readiness.replicas)
        self._instruments.gauge(names.AGENT_ACCEPTED).set(accepted)
        alarms = self._instruments.gauge(names.AGENT_LOG_ALARMS)
        for code in (ReasonCode.CHECKPOINT_INCONSISTENT, ReasonCode.LOG_RESET):
            alarms.labels(code).set(sum(one.code == code for one in self._alarms))
        self._instruments.gauge(names.READY).set(int(readiness.ready))

    def _sorted(self) -> list[tuple[Address, _Replica]]:
        return sorted(self._replicas.items(), key=lambda item: str(item[0]))

    def _report(self, address: Address, entry: _Replica) -> ReplicaReport:
        left_ns = entry.accepted_until_ns - self._clock.boottime_ns()
        condition = Condition.OPEN if entry.streams else Condition.CONNECTING
        if left_ns > 0:
            condition = Condition.ACCEPTED
        return ReplicaReport(
            address=str(address),
            condition=condition,
            code=entry.code,
            detail=entry.detail,
            level=entry.level,
            attestation_hash=entry.attestation_hash,
            fresh_for_s=max(0, left_ns) // NS_PER_S,
        )


def _is_transient(code: str) -> bool:
    known = code in ReasonCode.__members__
    return known and EFFECT_OF.get(ReasonCode(code)) is Effect.TRANSIENT
