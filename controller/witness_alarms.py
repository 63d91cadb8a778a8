"""What agents say against audit logs: told to the log, metrics and the audit log itself.

An alarm is a node's word. It is shown and never acted on: it takes no trust away, neither
from the node that tells it nor from any other. Bounded, whatever nodes say.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from controller.audit.log import AuditLog
from controller.audit.record import Record
from gpuwarden.audit.record import RecordKind
from gpuwarden.evidence.model import LogAlarm
from gpuwarden.reasons import ReasonCode
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

CODES: Final = (ReasonCode.CHECKPOINT_INCONSISTENT, ReasonCode.LOG_RESET)
MAX_RECORDS: Final = 32
"""Records per log and code in one life of the process; the metric counts all nodes."""
MAX_LOGS: Final = 64
_TEXT: Final = 300
_NOTE: Final = 1200


class WitnessAlarms:
    """One for the process; one event loop."""

    def __init__(self, instruments: Instruments, audit: AuditLog) -> None:
        self._gauge = instruments.gauge(names.AUDIT_WITNESS_ALARMS)
        self._audit = audit
        self._log = logger("attestation")
        self._nodes: dict[str, frozenset[tuple[str, str]]] = {}
        """Node -> origins and codes that it tells of."""
        self._recorded: Counter[tuple[str, str]] = Counter()
        self._show()

    def told(self, node: str, actor: str, alarms: tuple[LogAlarm, ...]) -> None:
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
                self._tell(node, actor, alarm)
        self._show()

    def accusing(self) -> Mapping[str, tuple[str, ...]]:
        """Nodes whose last evidence carries alarms, with the codes."""
        return {
            node: tuple(sorted({code for _, code in told})) for node, told in self._nodes.items()
        }

    def _tell(self, node: str, actor: str, alarm: LogAlarm) -> None:
        detail = alarm.detail[:_TEXT]
        self._log.error(
            Event.LOG_ALARM, node=node, code=alarm.code, origin=alarm.origin[:_TEXT], detail=detail
        )
        key = alarm.origin[:_TEXT], alarm.code
        is_bounded = key in self._recorded or len(self._recorded) < MAX_LOGS
        if not is_bounded or self._recorded[key] >= MAX_RECORDS:
            return
        self._recorded[key] += 1
        self._audit.note(
            Record(
                RecordKind.LOG_ALARM,
                actor=actor,
                subject=f"log/{alarm.origin[:_TEXT]}",
                decision="accused",
                codes=(alarm.code,),
                refs={
                    "node": node,
                    "detail": detail,
                    "known": alarm.known[:_NOTE],
                    "seen": alarm.seen[:_NOTE],
                    "wallMs": alarm.wall_ms[:_TEXT],
                },
            )
        )

    def _show(self) -> None:
        for code in CODES:
            telling = sum(any(c == code for _, c in told) for told in self._nodes.values())
            self._gauge.labels(code).set(telling)
