"""Reservations as protobuf messages: a snapshot of the ledger in, one page out. Pure.

In the order of reservation ids, so that equal ledgers give equal pages. Times are shown, never
compared: nothing depends on them.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from controller.ledger.record import Holder, ShareGroup, key_of
from controller.ledger.states import HolderState
from controller.ledger.store import Entry, LedgerSnapshot
from gpuwarden.wire.v1 import placement_pb2 as pb

MOST: Final = 500
"""Reservations of one page."""
_ORDER: Final = tuple(HolderState)
_NS: Final = 1_000_000_000
_U32: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which reservations: those of a node, of a namespace, after an id; empty for all."""

    node: str = ""
    namespace: str = ""
    after: str = ""
    limit: int = MOST


def reservation_page(
    ledger: LedgerSnapshot, wanted: Wanted, wall_ns: int
) -> pb.ListReservationsResponse:
    """At most `limit` reservations, and where the next page begins."""
    ids = heapq.nsmallest(wanted.limit + 1, _ids(ledger, wanted))
    shown = ids[: wanted.limit]
    return pb.ListReservationsResponse(
        reservations=[reservation_message(ledger, x, wall_ns) for x in shown],
        next_after=shown[-1] if len(ids) > wanted.limit else "",
    )


def reservation_message(ledger: LedgerSnapshot, name: str, wall_ns: int) -> pb.Reservation:
    """One reservation that the ledger has; raises IndexError for one that it has not."""
    entries = ledger.holding(name)
    held = {x.record.key: (x, part) for x in entries if (part := x.record.holder(name)) is not None}
    first, holder = next(iter(held.values()))
    states = [part.state for _, part in held.values()]
    made_at = min((x.made_at for x in entries if x.made_at), default="")
    return pb.Reservation(
        id=name,
        namespace=holder.pod.namespace,
        pod=holder.pod.name or "",
        uid=holder.pod.uid or "",
        node=first.record.node,
        gpus=[_gpu(x, held.get(key_of(x))) for x in holder.gpus],
        state=min(states, key=_ORDER.index).value,
        origin=holder.origin.value,
        made_at=made_at,
        age_s=_age_s(made_at, wall_ns),
        share_group=_share(first.record.share),
        adopted=any(part.adopted for _, part in held.values()),
    )


def _ids(ledger: LedgerSnapshot, wanted: Wanted) -> Iterator[str]:
    for name in ledger.by_reservation:
        if name <= wanted.after:
            continue
        entry = ledger.holding(name)[0]
        holder = entry.record.holder(name)
        namespace = "" if holder is None else holder.pod.namespace
        if wanted.node in {"", entry.record.node} and wanted.namespace in {"", namespace}:
            yield name


def _gpu(uuid: str, held: tuple[Entry, Holder] | None) -> pb.ReservedGpu:
    if held is None:
        return pb.ReservedGpu(uuid=uuid)
    entry, part = held
    return pb.ReservedGpu(
        uuid=entry.record.gpu, state=part.state.value, holders=len(entry.record.holders)
    )


def _share(share: ShareGroup | None) -> str:
    return "" if share is None else share.entry


def _age_s(made_at: str, wall_ns: int) -> int:
    """0 where it is not known, or not past by this clock."""
    try:
        made_s = datetime.fromisoformat(made_at).timestamp()
    except ValueError:
        return 0
    return min(max(wall_ns // _NS - int(made_s), 0), _U32)
