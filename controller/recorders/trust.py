"""Records what happens to streams, evidence, nodes, calls and SPIRE: logs, metrics, audit records.

Implements what the gRPC edge and the SPIRE poller call. Must not decide anything, and
must return at once: records are noted, never waited for.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from controller.access import ALLOWED_CALLERS, Caller
from controller.explain.node import RecentRefusals
from controller.fleet.attestation_result import (
    Accepted,
    FailureNoticeAccepted,
    Refused,
    StreamState,
)
from controller.fleet.enrollment import QuarantineEntry
from controller.fleet.quarantine import QuarantineFate
from controller.fleet.trust import ChangeKind, TrustChange
from controller.operations.logged import quarantine_record
from controller.operations.operator_service import Act, Order
from controller.record import AuditLog, Record
from controller.rpc.intake import Changes, Result
from controller.spire.client import SpireFailure
from controller.spire.facts import ADMIN_WARNING
from controller.spire.snapshot import ChangedAgent, SpireSnapshot, changed_agents
from gpuwarden.audit.record import RecordKind
from gpuwarden.evidence.model import LogAlarm
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.telemetry import names
from gpuwarden.telemetry.limited import LimitedLog
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event
from gpuwarden.telemetry.tracing import exemplar

CONTROLLER = "controller"
"""Actor of what happens by itself, for example a lease that runs out."""

_ROUTINE = frozenset(
    {
        ChangeKind.RENEWED,
        ChangeKind.FIRST_ACCEPTED,
        ChangeKind.RESTORED,
        ChangeKind.FACTS_CHANGED,
        ChangeKind.REFUSED,
        ChangeKind.OUTDATED,
    }
)
"""Have a record of their own in the log: the evidence's."""


class TrustRecorder:
    """Streams, evidence, changes of nodes, operators' acts and calls; one for the process."""

    def __init__(
        self,
        instruments: Instruments,
        audit: AuditLog,
        refusals: RecentRefusals,
        emit: Callable[[Changes, str], None],
    ) -> None:
        """`emit` sends Events about every change, by its actor; it must return at once."""
        self._audit = audit
        self._emit = emit
        self._refusals = refusals
        self._log = logger("attestation")
        self._limited = LimitedLog(self._log, instruments)
        self._hang_ups = instruments.counter(names.RPC_HANG_UPS)
        self._evidence = instruments.counter(names.EVIDENCE)
        self._seconds = instruments.histogram(names.EVIDENCE_SECONDS)
        self._challenges = instruments.counter(names.CHALLENGES)
        self._streams = instruments.gauge(names.STREAMS)
        self._stream_ends = instruments.counter(names.STREAM_ENDS)
        self._calls = instruments.counter(names.RPC_CALLS)
        self._opened = instruments.counter(names.STREAMS_OPENED)
        self._grants = instruments.counter(names.AUDIT_GRANTS)
        self.alarms = WitnessAlarms(instruments, audit)
        self._grants_refused = instruments.counter(names.AUDIT_GRANTS_REFUSED)
        self._denials = instruments.counter(names.QUARANTINE_ENTRIES)
        self._acts = instruments.counter(names.OPERATOR_ACTS)

    def appraised(self, result: Result, *, grant: bool, seconds: float) -> None:
        """Evidence, or a stream that was refused before any."""
        match result:
            case Accepted():
                self._count(ReasonCode.ACCEPTED, seconds)
                actor, alarms = str(result.stream.peer), result.evidence.log_alarms
                self.alarms.report(result.node, actor, alarms)
                if grant:
                    self._grants.inc()
                    self._log.info(
                        Event.EVIDENCE_ACCEPTED,
                        node=result.node,
                        assurance_level=result.level.value,
                        attestation_hash=result.attestation_hash,
                        evidence=result.evidence_digest,
                        gpus=len(result.evidence.inventory.gpus),
                        lost=len(result.lost),
                        warnings=result.warnings,
                    )
            case FailureNoticeAccepted():
                self._count(ReasonCode.ACCEPTED, seconds)
            case Refused():
                self._count(result.code, seconds)
                self._refusals.note("evidence", result.node, result.code, result.step)
                if result.code is ReasonCode.AUDIT_UNAVAILABLE:
                    self._grants_refused.inc()
                self._limited.warning(
                    Event.EVIDENCE_REFUSED,
                    key=(result.node, result.code),
                    node=result.node,
                    code=result.code.value,
                    step=result.step,
                    effect=result.effect.value,
                    detail=result.detail,
                )

    def changed(self, changes: Changes, actor: str) -> None:
        """What followed for nodes."""
        for change in changes:
            if change.kind is ChangeKind.RENEWED:
                continue
            self._log.info(
                Event.NODE_STATE,
                node=change.node,
                change=change.kind.value,
                code=change.code.value if change.code else None,
                detail=change.detail,
                gpu=change.gpu,
            )
        for record in _records(changes, actor):
            self._audit.note(record)
        self._emit(changes, actor)

    def denial(self, node: str, denial: QuarantineEntry, fate: QuarantineFate) -> None:
        """What the store says about a quarantine entry."""
        self._audit.note(quarantine_record(node, denial, fate))
        self._denials.labels(fate.value).inc()
        if fate is QuarantineFate.LOST:
            self._log.error(Event.STORE_QUARANTINE_LOST, node=node, code=denial.code)

    def acted(self, act: Act, order: Order, refusal: Refusal | None) -> None:
        """An operator decided about a node."""
        self._acts.labels(act.value, refusal.code.value if refusal else "OK").inc()
        self._log.info(
            Event.NODE_OPERATOR,
            act=act.value,
            node=order.node,
            actor=order.actor,
            reason=order.reason,
            code=refusal.code.value if refusal else None,
        )

    def opened(self, stream: StreamState) -> None:
        """A stream was admitted."""
        self._streams.inc()
        self._opened.inc()
        self._log.debug(Event.STREAM_OPENED, node=stream.node, instance=stream.hello.instance_id)

    def challenged(self, cause: str) -> None:
        """A challenge went out."""
        self._challenges.labels(cause).inc()

    def ended(self, peer: str, node: str | None, cause: str, detail: str) -> None:
        """A stream is over; one that was never admitted has no node."""
        if node is not None:
            self._streams.dec()
        self._stream_ends.labels(cause).inc()
        self._log.debug(Event.STREAM_CLOSED, peer=peer, node=node, cause=cause, detail=detail)

    def called(self, method: str, caller: Caller | None, refusal: Refusal | None) -> None:
        """A gRPC call was accepted or refused."""
        known = method if method in ALLOWED_CALLERS else "unknown"
        self._calls.labels(known, refusal.code.value if refusal else "OK").inc()
        if refusal is not None:
            self._refusals.note(known, caller.kind.value if caller else None, refusal.code)
            self._limited.warning(
                Event.RPC_DENIED,
                key=(caller.name if caller else None, refusal.code),
                method=known,
                caller=caller.name if caller else None,
                code=refusal.code.value,
                detail=refusal.detail,
            )

    def hung_up(self, method: str) -> None:
        """The caller of a gRPC call was gone before its end."""
        known = method if method in ALLOWED_CALLERS else "unknown"
        self._hang_ups.labels(known).inc()

    def failed(self, method: str, error: Exception) -> None:
        """The handler of a gRPC call failed; its caller may be able to repeat that."""
        self._limited.error(
            Event.RPC_FAILED, key=(method, type(error)), method=method, exc_info=error
        )

    def _count(self, code: ReasonCode, seconds: float) -> None:
        self._evidence.labels(code.value).inc()
        self._seconds.observe(seconds, exemplar())


def _records(changes: Iterable[TrustChange], actor: str) -> list[Record]:
    return [
        Record(
            RecordKind.NODE_STATE,
            actor=actor,
            subject=f"node/{change.node}",
            decision=change.kind.value,
            codes=(change.code.value,) if change.code else (),
            refs={"detail": change.detail[:300], "gpu": change.gpu},
        )
        for change in changes
        if change.kind not in _ROUTINE
    ]


# --- alarms of witnesses

CODES: Final = (ReasonCode.CHECKPOINT_INCONSISTENT, ReasonCode.LOG_RESET)
MAX_RECORDS: Final = 32
"""Records per log and code in one life of the process; the metric counts all nodes."""
MAX_LOGS: Final = 64
_ALARM_TEXT: Final = 300
_ALARM_NOTE: Final = 1200


class WitnessAlarms:
    """What agents report against audit logs.

    An alarm is a node's word. It is shown and never acted on: it takes no trust away, neither
    from the node that reports it nor from any other. Bounded, whatever nodes report. One for the
    process; one event loop.
    """

    def __init__(self, instruments: Instruments, audit: AuditLog) -> None:
        self._gauge = instruments.gauge(names.AUDIT_WITNESS_ALARMS)
        self._audit = audit
        self._log = LimitedLog(logger("attestation"), instruments)
        self._raised = instruments.counter(names.AUDIT_WITNESS_ALARMS_RAISED)
        self._nodes: dict[str, frozenset[tuple[str, str]]] = {}
        """Node -> origins and codes that it reports."""
        self._recorded: Counter[tuple[str, str]] = Counter()
        self._show()

    def report(self, node: str, actor: str, alarms: tuple[LogAlarm, ...]) -> None:
        """Accepted evidence of a node carries these alarms."""
        known = self._nodes.get(node, frozenset())
        alarms = tuple(alarm for alarm in alarms if alarm.code in CODES)
        now = frozenset((alarm.origin, alarm.code) for alarm in alarms)
        if now == known:
            return
        if now:
            self._nodes[node] = now
        else:
            self._nodes.pop(node, None)
        for alarm in alarms:
            if (alarm.origin, alarm.code) not in known:
                self._record_alarm(node, actor, alarm)
        self._show()

    def accusing(self) -> Mapping[str, tuple[str, ...]]:
        """Nodes whose last evidence carries alarms, with the codes."""
        return {
            node: tuple(sorted({code for _, code in alarms}))
            for node, alarms in self._nodes.items()
        }

    def _record_alarm(self, node: str, actor: str, alarm: LogAlarm) -> None:
        detail = alarm.detail[:_ALARM_TEXT]
        self._raised.labels(alarm.code).inc()
        self._log.warning(
            Event.LOG_ALARM,
            key=(node, alarm.code),
            node=node,
            code=alarm.code,
            origin=alarm.origin[:_ALARM_TEXT],
            detail=detail,
        )
        key = alarm.origin[:_ALARM_TEXT], alarm.code
        is_bounded = key in self._recorded or len(self._recorded) < MAX_LOGS
        if not is_bounded or self._recorded[key] >= MAX_RECORDS:
            return
        self._recorded[key] += 1
        self._audit.note(
            Record(
                RecordKind.LOG_ALARM,
                actor=actor,
                subject=f"log/{alarm.origin[:_ALARM_TEXT]}",
                decision="accused",
                codes=(alarm.code,),
                refs={
                    "node": node,
                    "detail": detail,
                    "known": alarm.known[:_ALARM_NOTE],
                    "seen": alarm.seen[:_ALARM_NOTE],
                    "wallMs": alarm.wall_ms[:_ALARM_TEXT],
                },
            )
        )

    def _show(self) -> None:
        for code in CODES:
            telling = sum(any(c == code for _, c in alarms) for alarms in self._nodes.values())
            self._gauge.labels(code).set(telling)


# --- SPIRE server

MAX_LISTED: Final = 8
"""Agents named per record and line; all are counted."""
_ACTOR: Final = "spire-server"


class SpireRecorder:
    """Polls, changed agents, and rights beyond reading; one for the process, one event loop."""

    def __init__(self, instruments: Instruments, audit: AuditLog) -> None:
        self._polls = instruments.counter(names.SPIRE_POLLS)
        self._seconds = instruments.histogram(names.SPIRE_POLL_SECONDS)
        self._agents = instruments.gauge(names.SPIRE_AGENTS)
        self._available = instruments.gauge(names.SPIRE_AVAILABLE)
        self._audit = audit
        self._log = logger("spire")
        self._trouble = "not asked yet"

    def taken(self, before: SpireSnapshot | None, after: SpireSnapshot, seconds: float) -> None:
        """A whole snapshot was taken."""
        self._polls.labels("taken").inc()
        self._seconds.observe(seconds)
        self._available.set(1)
        banned = sum(x.banned for x in after.agents.values())
        self._agents.labels("banned").set(banned)
        self._agents.labels("attested").set(len(after.agents) - banned)
        if self._trouble:
            self._trouble = ""
            self._log.info(
                Event.SPIRE_AVAILABLE, agents=len(after.agents), entries=len(after.entries)
            )
        if before is not None:
            self._changed(tuple(changed_agents(before, after)))

    def failed(self, failure: SpireFailure, text: str) -> None:
        """A poll failed; each cause is logged once."""
        self._polls.labels(failure.value).inc()
        self._available.set(0)
        if text != self._trouble:
            self._trouble = text
            self._log.error(Event.SPIRE_UNAVAILABLE, reason=text)

    def excessive(self) -> None:
        """The SPIRE server grants the controller more than reading."""
        self._log.warning(Event.CONFIG_INSECURE, warning=ADMIN_WARNING)

    def _changed(self, changed: tuple[ChangedAgent, ...]) -> None:
        """One line and one record per kind of change, however many agents it met."""
        for kind, count in Counter(x.change for x in changed).items():
            agents = [x.agent_id for x in changed if x.change is kind][:MAX_LISTED]
            self._log.info(
                Event.SPIRE_AGENTS_CHANGED, change=kind.value, count=count, agents=agents
            )
            self._audit.note(
                Record(
                    RecordKind.SPIRE_STATUS,
                    actor=_ACTOR,
                    subject="spire-agents",
                    decision=kind.value,
                    refs={"count": count, "agents": tuple(agents)},
                )
            )
