"""One node: its evidence, its class against the fleet's most common one, alarms. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from controller.explain.fleet_rows import FleetFacts, NodeRow, node_row
from controller.explain.node import findings
from controller.fleet.enrollment import QuarantineEntry
from controller.fleet.quarantine import Shown, enrollment_changes
from controller.fleet.view import FleetSnapshot, NodeView
from gpuwarden.audit.reading import Recent
from gpuwarden.audit.record import LogRecord
from gpuwarden.evidence.canonical import canonical_json
from gpuwarden.evidence.class_document import ClassDocument, Scalar, diff
from gpuwarden.evidence.strict_json import DecodeError, decode
from gpuwarden.moment import rfc3339

_MAX_DOCUMENT: Final = 64 * 1024


class Timed(msgspec.Struct, frozen=True, rename="kebab"):
    """A record of the audit log, in a line."""

    record: int
    at: str
    kind: str
    decision: str
    codes: list[str]
    actor: str
    evidence_digest: str


class FactDifference(msgspec.Struct, frozen=True, rename="kebab"):
    """A fact of the class document that differs."""

    path: str
    here: str
    """Empty where this node lacks it."""
    most_common: str


class ClassComparison(msgspec.Struct, frozen=True, rename="kebab"):
    """The node's class, and the class that most nodes of the fleet have."""

    document: str
    """RFC 8785 JSON; empty where there is no accepted evidence."""
    most_common: str
    """Its hash; empty where no node has a class."""
    most_common_nodes: int
    differences: list[FactDifference]


class EnrollmentChange(msgspec.Struct, frozen=True, rename="kebab"):
    """A difference between the enrolled GPUs and those that the node shows."""

    change: str
    subject: str
    enrolled: str
    shown: str


class Enrollment(msgspec.Struct, frozen=True, rename="kebab"):
    """What the node is held to, and what an operator decides about."""

    version: str
    """What an act has to name."""
    gpus: list[str]
    spire_agent: str
    quarantined_for: str
    """Code and reason; empty where it is in no quarantine."""
    quarantined_by: str
    quarantined_at: str
    previous_quarantine_ended_by: str
    """The operator; empty where there was none, or where nobody knows any more who it was."""
    previous_quarantine_at: str
    """When it began."""
    can_be_accepted: bool
    """Whether it has shown other GPUs, which an operator may accept."""
    changes: list[EnrollmentChange]


class NodeDetail(msgspec.Struct, frozen=True, rename="kebab"):
    """Everything about one node."""

    node: NodeRow
    agent_version: str
    driver: str
    system_uuid: str
    findings: list[str]
    warnings: list[str]
    alarms: list[str]
    """Codes of its agent's alarms against an audit log."""
    enrollment: Enrollment
    comparison: ClassComparison
    timeline: list[Timed]
    """Newest first."""
    records_since: str


def node_detail(
    facts: FleetFacts,
    node: NodeView,
    shown: Shown,
    recent: Recent,
    alarms: Sequence[str],
    *,
    has_serials: bool,
) -> NodeDetail:
    """As of the moment of `facts`."""
    accepted = node.acceptance
    host = None if accepted is None else accepted.host
    return NodeDetail(
        node=node_row(facts, node, has_serials=has_serials),
        agent_version="" if accepted is None else accepted.agent_version,
        driver="" if host is None else host.driver or "",
        system_uuid="" if host is None else host.system_uuid or "",
        findings=findings(node, shown.record if shown.known else None, facts.now_ns)[1:],
        warnings=[*node.warnings, *(() if accepted is None else accepted.warnings)]
        if has_serials
        else [],
        alarms=list(alarms),
        enrollment=_enrollment(shown, has_serials=has_serials),
        comparison=_comparison(facts.fleet, node),
        timeline=[timed(x) for x in reversed(recent.records)],
        records_since=recent.since,
    )


def timed(record: LogRecord) -> Timed:
    """One line."""
    evidence = record.refs.get("evidence")
    return Timed(
        record.seq,
        record.ts,
        record.kind,
        record.decision,
        list(record.codes),
        record.actor,
        evidence if isinstance(evidence, str) else "",
    )


def _enrollment(shown: Shown, *, has_serials: bool) -> Enrollment:
    """Without serials, and without the texts that can name one."""
    denial: QuarantineEntry | None = shown.denial
    at_ns, by = shown.record.lifted_ns, shown.record.lifted_by
    return Enrollment(
        version=shown.version,
        gpus=[x.uuid for x in shown.record.gpus],
        spire_agent=shown.record.spire_agent or "",
        quarantined_for="" if denial is None else _quarantine(denial, has_reason=has_serials),
        quarantined_by="" if denial is None else denial.actor,
        quarantined_at="" if denial is None else rfc3339(denial.wall_ns),
        previous_quarantine_ended_by=by or "",
        previous_quarantine_at="" if by is None or at_ns is None else rfc3339(at_ns),
        can_be_accepted=shown.candidate is not None,
        changes=[
            EnrollmentChange(
                x.change.value,
                x.subject,
                x.enrolled if has_serials else "",
                x.offered if has_serials else "",
            )
            for x in enrollment_changes(shown)
        ],
    )


def _quarantine(denial: QuarantineEntry, *, has_reason: bool) -> str:
    return f"{denial.code}: {denial.reason}" if has_reason else str(denial.code)


def _comparison(fleet: FleetSnapshot, node: NodeView) -> ClassComparison:
    counts = Counter({x: len(names) for x, names in fleet.nodes_by_hash.items() if names})
    common = min(counts, key=lambda x: (-counts[x], x), default="")
    accepted = node.acceptance
    mine = b"" if accepted is None else accepted.class_document
    theirs = _document_of(fleet, fleet.nodes_by_hash.get(common, ()))
    return ClassComparison(
        document=mine.decode(),
        most_common=common,
        most_common_nodes=counts[common],
        differences=_differences(mine, theirs),
    )


def _document_of(fleet: FleetSnapshot, names: Iterable[str]) -> bytes:
    accepted = (fleet.nodes[x].acceptance for x in sorted(names) if x in fleet.nodes)
    return next((x.class_document for x in accepted if x is not None), b"")


def _differences(mine: bytes, theirs: bytes) -> list[FactDifference]:
    if not mine or not theirs or mine == theirs:
        return []
    try:
        left, right = (decode(x, ClassDocument, max_bytes=_MAX_DOCUMENT) for x in (mine, theirs))
    except DecodeError:
        return []
    return [FactDifference(x.path, _shown(x.left), _shown(x.right)) for x in diff(left, right)]


def _shown(value: Scalar) -> str:
    return value if isinstance(value, str) else canonical_json(value).decode()
