"""The account of a pod for people. Pure: messages in, text out, all escaped."""

from typing import Final

from gpuwarden.cli.fleet_columns import joined
from gpuwarden.cli.reservation_columns import RESERVATIONS
from gpuwarden.cli.terminal import Column, facts, shown, table, visible
from gpuwarden.reason_texts import EXPLANATIONS
from gpuwarden.reasons import ReasonCode
from gpuwarden.wire.v1 import placement_pb2 as pb

_SHORT: Final = 16
_BOUND, _WAITING = "bound", "waiting"

STATIONS: Final[tuple[Column[pb.Station], ...]] = (
    Column("STATION", lambda x: x.name),
    Column("STATE", lambda x: x.state),
    Column("AT", lambda x: x.at),
    Column("GPUS", lambda x: joined(x.gpus)),
    Column("SOURCE", lambda x: x.source),
    Column("EVIDENCE", lambda x: x.evidence_digest[:_SHORT]),
    Column("DIGEST", lambda x: x.evidence_digest, wide=True),
)
REJECTIONS: Final[tuple[Column[pb.Rejection], ...]] = (
    Column("NODES", lambda x: str(x.count)),
    Column("REASON", lambda x: x.code),
    Column("DETAIL", lambda x: x.detail),
    Column("FOR EXAMPLE", lambda x: joined(x.nodes)),
)
RECORDS: Final[tuple[Column[pb.PodRecord], ...]] = (
    Column("AT", lambda x: x.at),
    Column("RECORD", lambda x: str(x.seq)),
    Column("KIND", lambda x: x.kind),
    Column("DECISION", lambda x: x.decision),
    Column("REASONS", lambda x: joined(x.codes)),
    Column("NODE", lambda x: x.node),
    Column("GPUS", lambda x: joined(x.gpus)),
    Column("POD-UID", lambda x: x.uid, wide=True),
)


def waits(found: pb.ExplainPodResponse) -> bool:
    """Whether the pod is there and bound to no node yet."""
    return any(x.name == _BOUND and x.state == _WAITING for x in found.stations)


def account_text(found: pb.ExplainPodResponse, *, wide: bool) -> str:
    """All of it: where the pod stands, what was found, why it waits, what the log remembers."""
    parts = [facts(_head(found)), table(visible(STATIONS, wide=wide), found.stations)]
    lines = [f"  {shown(x.name)}: {shown(line)}\n" for x in found.stations for line in x.findings]
    if lines:
        parts.append("Findings:\n" + "".join(lines))
    if waits(found) and found.guarded:
        parts.append(_waiting(found))
    if found.earlier:
        held = table(visible(RESERVATIONS, wide=wide), found.earlier)
        parts.append(f"Earlier pods of this name still hold:\n{held}")
    parts.append(_records(found, wide=wide))
    return "\n".join(parts)


def _head(found: pb.ExplainPodResponse) -> tuple[tuple[str, str], ...]:
    limit = f": {found.guarantee_limit}" if found.guarantee_limit else ""
    promise = f"{found.guarantee}{limit}" if found.guarantee else ""
    return (
        ("Pod", f"{found.namespace}/{found.name}"),
        ("UID", found.uid),
        ("Phase", found.phase or "gone"),
        ("Guarantee given", found.guarantee_given),
        ("Guarantee possible now" if waits(found) else "Guarantee now", promise),
    )


def _waiting(found: pb.ExplainPodResponse) -> str:
    if found.code:
        refused = f"The pod is refused: {shown(found.code)} {shown(found.detail)}\n"
        return refused + _advice(found.code)
    some = f": {shown(joined(found.passing_nodes))}" if found.passing_nodes else ""
    head = f"Nodes that /filter would pass now: {found.passing}{some}\n"
    if not found.rejections:
        return head
    advice = "" if found.passing else _advice(found.rejections[0].code)
    return f"{head}Rejected:\n{table(REJECTIONS, found.rejections)}{advice}"


def _advice(code: str) -> str:
    if code not in set(ReasonCode):
        return ""
    return f"What to do: {EXPLANATIONS[ReasonCode(code)].remedy}\n"


def _records(found: pb.ExplainPodResponse, *, wide: bool) -> str:
    if not found.records_since:
        return "This replica's audit log cannot be read.\n"
    since = shown(found.records_since)
    if not found.records:
        return f"Nothing about it in this replica's audit log since {since}.\n"
    title = f"In this replica's audit log, looked through since {since}:\n"
    return title + table(visible(RECORDS, wide=wide), found.records)
