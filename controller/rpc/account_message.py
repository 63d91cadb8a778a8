"""The account of one pod as a protobuf message. Pure."""

from typing import Final

from controller.custody.account import Account
from controller.custody.station import Station
from controller.ledger.store import LedgerSnapshot
from controller.rpc.reservation_messages import reservation_message
from controller.scheduling.explanation import Rejection
from gpuwarden.audit.record import LogRecord
from gpuwarden.wire.v1 import placement_pb2 as pb

_LISTED: Final = 64
"""GPUs of one record, and earlier reservations of one name."""


def account_message(account: Account, wall_ns: int) -> pb.ExplainPodResponse:
    """All of it; `wall_ns` for ages."""
    case, found = account.case, account.explanation
    message = pb.ExplainPodResponse(
        namespace=case.namespace,
        name=case.name,
        uid=case.uid,
        phase="" if case.pod is None else case.pod.phase or "Unknown",
        guarded=case.guarded,
        stations=map(_station, account.stations),
        wrong=account.is_wrong,
        guarantee_given=account.given,
        records=map(_record, account.recent.records),
        records_since=account.recent.since,
        earlier=_earlier(account, wall_ns),
    )
    if found is not None:
        if found.refusal is not None:
            message.code, message.detail = found.refusal.code, found.refusal.detail
        message.passing = found.passing
        message.passing_nodes.extend(found.examples)
        message.rejections.extend(map(_rejection, found.rejections))
        if found.promise is not None:
            message.guarantee = found.promise.guarantee
            message.guarantee_limit = found.promise.limit or ""
    return message


def _station(one: Station) -> pb.Station:
    return pb.Station(
        name=one.name,
        state=one.state,
        at=one.at,
        source=one.source,
        evidence_digest=one.evidence,
        gpus=one.gpus,
        findings=one.findings,
    )


def _rejection(one: Rejection) -> pb.Rejection:
    return pb.Rejection(code=one.code, detail=one.detail, count=one.count, nodes=one.nodes)


def _record(one: LogRecord) -> pb.PodRecord:
    gpus, node, uid = one.refs.get("gpus"), one.refs.get("node"), one.refs.get("uid")
    return pb.PodRecord(
        seq=one.seq,
        at=one.ts,
        kind=one.kind,
        decision=one.decision,
        codes=one.codes,
        node=node if isinstance(node, str) else "",
        gpus=[x for x in gpus[:_LISTED] if isinstance(x, str)] if isinstance(gpus, list) else (),
        uid=uid if isinstance(uid, str) else "",
    )


def _earlier(account: Account, wall_ns: int) -> list[pb.Reservation]:
    ledger = LedgerSnapshot.of(entry for entry, _ in account.others)
    names = sorted({holder.reservation for _, holder in account.others})
    return [reservation_message(ledger, x, wall_ns) for x in names[:_LISTED]]
