"""Who is asked about a pod, and what becomes of answers that do not come."""

from dataclasses import replace

import msgspec

from controller.binding.request import PodsUnavailableError
from controller.explain.pod import AllocationTrace
from controller.explain.query import PodQuery
from controller.ledger.store import Entry, LedgerSnapshot
from controller.placement.explanation import PodExplanation
from controller.placement.pod import decode_pod
from gpuwarden.audit.reading import Recent
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.accounts import GPU, UID, held, node_of, pod_document
from tests.builders.bindings import IDS
from tests.builders.fleet_views import fleet
from tests.builders.pods import requirements
from tests.fakes.clock import FakeClock

LEDGER = LedgerSnapshot.of([Entry(held(), "1")])


class Pods:
    def __init__(self, body: bytes | None, error: str = "") -> None:
        self._body = body
        self._error = error

    async def document(self, namespace: str, name: str) -> bytes | None:
        assert (namespace, name) == ("team-a", "train-0")
        if self._error:
            raise PodsUnavailableError(self._error)
        return self._body


def explain(body: bytes) -> PodExplanation:
    decode_pod(body)
    return PodExplanation(needs=requirements({"gpuwarden.dev/gpu-selector": "memory>=1Gi"}))


def query(body: bytes | None = None, **changes: object) -> PodQuery:
    made = PodQuery(
        document=Pods(body).document,
        explain=explain,
        fleet=lambda: fleet(node_of()),
        ledger=lambda: LEDGER,
        ids=IDS,
        recent=lambda _subject: Recent(),
        clock=FakeClock(),
    )
    return replace(made, **changes)  # type: ignore[arg-type] # fields by name


async def about(asked: PodQuery) -> AllocationTrace | Refusal:
    return await asked.about("team-a", "train-0")


async def test_everything_is_put_together() -> None:
    subjects: list[str] = []

    def recent(subject: str) -> Recent:
        subjects.append(subject)
        return Recent((), "2026-03-01T12:00:00.000Z")

    found = await about(query(msgspec.json.encode(pod_document()), recent=recent))
    assert isinstance(found, AllocationTrace)
    assert (found.case.uid, found.case.reserved, found.case.is_authentic) == (UID, (GPU,), True)
    assert (subjects, found.recent.since) == (
        ["pod/team-a/train-0"],
        "2026-03-01T12:00:00.000Z",
    )


async def test_a_pod_that_is_gone_is_asked_about_in_the_ledger() -> None:
    found = await about(query())
    assert isinstance(found, AllocationTrace)
    assert (found.case.pod, found.explanation, found.case.reserved) == (None, None, (GPU,))


async def test_what_cannot_be_reported() -> None:
    for asked, text in (
        (query(document=Pods(None, "the pod could not be read: no answer").document), "no answer"),
        (query(b"{]"), "not a Pod"),
        (query(b'{"status":{"phase":7}}'), "not a Pod"),
        (query(ledger=LedgerSnapshot), "neither ledger nor audit log know one of that name"),
    ):
        found = await about(asked)
        assert isinstance(found, Refusal)
        assert found.code is ReasonCode.POD_UNKNOWN
        assert text in found.detail


async def test_a_log_that_cannot_be_read_costs_its_part_alone() -> None:
    def recent(_subject: str) -> Recent:
        raise PermissionError

    found = await about(query(recent=recent))
    assert isinstance(found, AllocationTrace)
    assert found.recent == Recent()
