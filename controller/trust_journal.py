"""Tells log, metrics and audit what happens to streams, evidence, nodes and calls.

Implements the observers that the gRPC edge declares. Must not decide anything, and
must return at once: records are noted, never waited for.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from controller.audit.log import AuditLog
from controller.audit.record import Record
from controller.fleet.denials import DenialFate
from controller.fleet.enrollment import Denial
from controller.fleet.node_trust import ChangeKind, TrustChange
from controller.operator_desk import Act, Order
from controller.recovery.logged_denials import denial_record
from controller.rpc.authorization import ALLOWED_CALLERS
from controller.rpc.caller import Caller
from controller.rpc.evidence_intake import Changes, Result
from controller.verifier.context import StreamState
from controller.verifier.result import Accepted, BadNewsAccepted, Refused
from controller.witness_alarms import WitnessAlarms
from gpuwarden.audit.record import RecordKind
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

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


class RefusalMemory(Protocol):
    """Remembers the last refusals."""

    def note(
        self, what: str, subject: str | None, code: ReasonCode, step: int | None = None, /
    ) -> None:
        """Take note of one."""


class TrustJournal:
    """One for the process."""

    def __init__(
        self,
        instruments: Instruments,
        audit: AuditLog,
        refusals: RefusalMemory,
        tell: Callable[[Changes], None],
    ) -> None:
        """`tell` is handed every change besides; it must return at once."""
        self._audit = audit
        self._tell = tell
        self._refusals = refusals
        self._log = logger("attestation")
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
        self._denials = instruments.counter(names.DENIALS)
        self._acts = instruments.counter(names.OPERATOR_ACTS)

    def appraised(self, result: Result, *, grant: bool, seconds: float) -> None:
        """Evidence, or a stream that was refused before any."""
        match result:
            case Accepted():
                self._count(ReasonCode.ACCEPTED, seconds)
                actor, alarms = str(result.stream.peer), result.evidence.log_alarms
                self.alarms.told(result.node, actor, alarms)
                if grant:
                    self._grants.inc()
                    self._log.info(
                        Event.EVIDENCE_ACCEPTED,
                        node=result.node,
                        level=result.level.value,
                        attestation_hash=result.attestation_hash,
                        evidence=result.evidence_digest,
                        gpus=len(result.evidence.inventory.gpus),
                        lost=len(result.lost),
                        warnings=result.warnings,
                    )
            case BadNewsAccepted():
                self._count(ReasonCode.ACCEPTED, seconds)
            case Refused():
                self._count(result.code, seconds)
                self._refusals.note("evidence", result.node, result.code, result.step)
                if result.code is ReasonCode.AUDIT_UNAVAILABLE:
                    self._grants_refused.inc()
                self._log.warning(
                    Event.EVIDENCE_REFUSED,
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
        self._tell(changes)

    def denial(self, node: str, denial: Denial, fate: DenialFate) -> None:
        """What the store says about a denial."""
        self._audit.note(denial_record(node, denial, fate))
        self._denials.labels(fate.value).inc()
        if fate is DenialFate.LOST:
            self._log.error(Event.STORE_DENIAL_LOST, node=node, code=denial.code)

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
        """A gRPC call was let in, or not."""
        known = method if method in ALLOWED_CALLERS else "unknown"
        self._calls.labels(known, refusal.code.value if refusal else "OK").inc()
        if refusal is not None:
            self._refusals.note(known, caller.kind.value if caller else None, refusal.code)
            self._log.warning(
                Event.RPC_DENIED,
                method=known,
                caller=caller.name if caller else None,
                code=refusal.code.value,
                detail=refusal.detail,
            )

    def _count(self, code: ReasonCode, seconds: float) -> None:
        self._evidence.labels(code.value).inc()
        self._seconds.observe(seconds)


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
