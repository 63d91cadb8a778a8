"""Gauges.

Holds: fleet gauges, witness alarms.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from controller.fleet.view import FleetSnapshot, GpuView, NodeState
from controller.record import AuditLog, Record
from gpuwarden.audit.record import RecordKind
from gpuwarden.evidence.model import LogAlarm
from gpuwarden.reasons import ReasonCode
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

# --- fleet gauges
# Gauges that are worked out when Prometheus asks: the fleet, our SVID, readiness. Reads only.

_GPU_STATES = ("usable", "lost", "unhealthy")


class SvidFacts(Protocol):
    """What the keeper says about our SVID."""

    @property
    def svid_expires_seconds(self) -> float:
        """Until it ends; 0 while none is served."""

    @property
    def generation(self) -> int:
        """SVIDs taken so far."""

    @property
    def failures(self) -> int:
        """Fetches, watches and offers that failed so far."""

    @property
    def rebuilds(self) -> int:
        """Watches built so far, the first included."""


@dataclass(frozen=True, slots=True)
class FleetCounts:
    """Nodes and GPUs by state, and how many classes there are."""

    nodes: Counter[str]
    gpus: Counter[str]
    classes: int


def count_fleet(fleet: FleetSnapshot, now_ns: int) -> FleetCounts:
    """Count one snapshot; linear in nodes and GPUs."""
    nodes: Counter[str] = Counter({state.value: 0 for state in NodeState})
    gpus: Counter[str] = Counter(dict.fromkeys(_GPU_STATES, 0))
    for node in fleet.nodes.values():
        nodes[node.state(now_ns).value] += 1
        for gpu in node.acceptance.gpus if node.acceptance else ():
            gpus[_gpu_state(gpu)] += 1
    return FleetCounts(nodes, gpus, len(fleet.nodes_by_hash))


class FleetGauges:
    """Sets the gauges of one process."""

    def __init__(self, instruments: Instruments) -> None:
        self._nodes = instruments.gauge(names.NODES)
        self._gpus = instruments.gauge(names.GPUS)
        self._classes = instruments.gauge(names.CLASSES)
        self._svid = instruments.gauge(names.SVID_EXPIRY)
        self._updates = instruments.counter(names.SVID_UPDATES)
        self._restarts = instruments.counter(names.SVID_SOURCE_RESTARTS)
        self._seen_updates = 0
        self._seen_failures = 0
        self._seen_restarts = 0

    def set_fleet(self, counts: FleetCounts) -> None:
        """Show the fleet."""
        for state, count in counts.nodes.items():
            self._nodes.labels(state).set(count)
        for state, count in counts.gpus.items():
            self._gpus.labels(state).set(count)
        self._classes.set(counts.classes)

    def set_svid(self, facts: SvidFacts) -> None:
        """Show our SVID; counters move by what is new since the last look."""
        self._svid.set(facts.svid_expires_seconds)
        restarts = max(0, facts.rebuilds - 1)
        self._updates.labels("taken").inc(facts.generation - self._seen_updates)
        self._updates.labels("failed").inc(facts.failures - self._seen_failures)
        self._restarts.inc(restarts - self._seen_restarts)
        self._seen_updates, self._seen_failures = facts.generation, facts.failures
        self._seen_restarts = restarts


def _gpu_state(gpu: GpuView) -> str:
    if gpu.lost is not None:
        return "lost"
    return "unhealthy" if gpu.unhealthy is not None else "usable"


# --- witness alarms
# What agents say against audit logs: told to the log, metrics and the audit log itself.
#
# An alarm is a node's word. It is shown and never acted on: it takes no trust away, neither
# from the node that tells it nor from any other. Bounded, whatever nodes say.

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
