"""What one /filter answer leaves behind: an audit record and counts per code. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from controller.audit.record import Record
from controller.scheduling.filter import Totals
from gpuwarden.audit.record import RecordKind
from gpuwarden.reasons import ReasonCode

_ACTOR = "kube-scheduler"
_SHOWN_CHARS = 253


@dataclass(frozen=True, slots=True)
class FilterDecision:
    """One decision about a guarded pod."""

    namespace: str
    pod: str
    uid: str
    candidates: int
    policy_digest: str
    fleet_version: int
    insecure: tuple[str, ...]
    """Names of insecure stand-ins that the answer may rest on."""
    totals: Callable[[], Totals]
    """Codes of all nodes and the digest of the full list; costly, call it once."""
    reported: bool = False
    """Whether all nodes were let through whatever was decided: report-only mode."""


class DecisionSink(Protocol):
    """Takes decisions for the audit log."""

    def note(self, decision: FilterDecision) -> None:
        """Record the decision; never waits, never raises."""


class RecordLog(Protocol):
    """The part of the audit log that decisions need."""

    def note(self, record: Record) -> None:
        """Append without waiting."""


class NotedDecisions:
    """Writes each decision into the audit log and counts nodes per code."""

    def __init__(
        self,
        log: RecordLog,
        count_nodes: Callable[[Mapping[ReasonCode, int]], None],
        tell: Callable[[FilterDecision, Totals], None] | None = None,
    ) -> None:
        """`tell` says in Events what should be said."""
        self._log = log
        self._count_nodes = count_nodes
        self._tell = tell

    def note(self, decision: FilterDecision) -> None:
        """Work out the totals and append the record."""
        totals = decision.totals()
        self._log.note(decision_record(decision, totals))
        self._count_nodes({**totals.rejected, ReasonCode.ACCEPTED: totals.passed})
        if self._tell is not None:
            self._tell(decision, totals)


def decision_record(decision: FilterDecision, totals: Totals) -> Record:
    """The `filter.decision` record: totals per code and a digest that stands for the full list."""
    return Record(
        kind=RecordKind.FILTER_DECISION,
        actor=_ACTOR,
        subject=f"pod/{_cut(decision.namespace)}/{_cut(decision.pod)}",
        decision=_word(decision, totals),
        codes=tuple(totals.rejected),
        refs={
            "uid": _cut(decision.uid),
            "candidates": decision.candidates,
            "passed": totals.passed,
            "rejected": {str(code): count for code, count in totals.rejected.items()},
            "nodesDigest": totals.digest,
            "policy": decision.policy_digest,
            "fleetVersion": decision.fleet_version,
            "insecure": list(decision.insecure),
        },
    )


def _word(decision: FilterDecision, totals: Totals) -> str:
    if totals.passed:
        return "passed"
    return "reported" if decision.reported else "rejected"


def _cut(text: str) -> str:
    return text[:_SHOWN_CHARS]
