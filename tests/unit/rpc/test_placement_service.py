"""Which questions about placement are answered, and which are refused."""

from typing import Any

import pytest

from controller.ledger.store import Entry, LedgerSnapshot
from controller.rpc.placement_service import PlacementReader, PlacementService
from gpuwarden.wire.v1 import placement_pb2 as pb
from tests.builders.ledger import record
from tests.fakes.clock import FakeClock

LEDGER = LedgerSnapshot.of([Entry(record(), "1")], fresh_until_ns=1_000)


class AbortedError(Exception):
    pass


class Context:
    async def abort(self, code: Any, details: str, metadata: Any = ()) -> None:
        raise AbortedError(f"{code.name} {details} {dict(metadata).get('field', '')}".strip())


async def listed(
    ledger: LedgerSnapshot | None = LEDGER, now_ns: int = 0, **fields: Any
) -> pb.ListReservationsResponse:
    clock = FakeClock(boottime=now_ns)
    source = None if ledger is None else (lambda: ledger)
    service = PlacementService(PlacementReader(ledger=source), clock)
    context: Any = Context()
    return await service.ListReservations(pb.ListReservationsRequest(**fields), context)


async def test_reservations_are_listed() -> None:
    assert [x.id for x in (await listed()).reservations] == ["v1.k.uid-0"]
    assert not (await listed(namespace="team-b")).reservations


async def test_a_ledger_that_is_not_known_is_not_shown_as_empty() -> None:
    with pytest.raises(
        AbortedError, match="FAILED_PRECONDITION LEDGER_UNAVAILABLE: the ledger was not read"
    ):
        await listed(now_ns=1_000)
    with pytest.raises(AbortedError, match="LEDGER_UNAVAILABLE: this controller reserves nothing"):
        await listed(None)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"node": "A\x1b"}, r"node is 'A\\x1b', expected an RFC 1123 name"),
        ({"namespace": "a" * 300}, f"namespace is '{'a' * 80}', expected"),
        ({"limit": 501}, "limit is 501, expected 1 to 500"),
        ({"after": "a" * 254}, "after: expected at most 253 characters"),
    ],
)
async def test_questions_that_make_no_sense_are_refused(fields: Any, text: str) -> None:
    with pytest.raises(AbortedError, match="INVALID_ARGUMENT REQ_INVALID: ") as refused:
        await listed(**fields)
    assert text.replace("\\\\", "\\") in str(refused.value)
