"""Who is asked about a pod, and what becomes of answers that do not come."""

from dataclasses import replace
from threading import get_ident

import msgspec
import pytest

from controller.binding.request import PodsUnavailableError
from controller.explain.pod import AllocationTrace
from controller.explain.query import PodQuery
from controller.ledger.store import Entry, LedgerSnapshot
from controller.placement.explanation import FitReport, PodExplanation
from controller.placement.pod import decode_pod
from controller.placement.verdict_cache import PlacementMemory
from gpuwarden.audit.reading import Recent
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.accounts import GPU, UID, held, node_of, pod_document
from tests.builders.bindings import IDS
from tests.builders.fleet_views import fleet, hash_of, healthy
from tests.builders.pods import pod_json, requirements
from tests.fakes.clock import FakeClock
from tests.fakes.placement import World

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


class WatchedWorld(World):
    """Remembers on which threads it was asked for anything."""

    threads: frozenset[int] = frozenset()

    def __getattribute__(self, name: str) -> object:
        WatchedWorld.threads |= {get_ident()}
        return super().__getattribute__(name)


async def test_a_thread_that_judges_shares_nothing_with_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else /filter and the binding webhook use what the thread is just changing."""
    users: dict[PlacementMemory, set[int]] = {}
    for method in ("pool", "verdicts"):
        found = getattr(PlacementMemory, method)

        def used(memory: PlacementMemory, *args: object, real: object = found) -> object:
            users.setdefault(memory, set()).add(get_ident())
            return real(memory, *args)  # type: ignore[operator] # the method

        monkeypatch.setattr(PlacementMemory, method, used)
    world = WatchedWorld(fleet(healthy("n1"), healthy("n2", "b")))
    verbs = world.verbs()
    pod = pod_json({"gpuwarden.dev/required-hash": hash_of("a")})
    body = msgspec.json.encode(pod)
    verbs.fit(decode_pod(body))
    found = await query(body, judging=verbs.judging).verdicts("team-a", "train-0")
    assert isinstance(found, FitReport)
    assert [(x.node, x.refusal is None) for x in found.fits] == [("n1", True), ("n2", False)]
    here = get_ident()
    assert WatchedWorld.threads == {here}
    assert len(users) == 2
    assert {here} in users.values()
    assert all(len(threads) == 1 for threads in users.values())


async def test_verdicts_about_pods_that_nobody_judges() -> None:
    plain, ready = msgspec.json.encode(pod_json(gpus=1)), World(fleet(healthy("n1"))).verbs()
    found = await query(plain, judging=ready.judging).verdicts("team-a", "train-0")
    assert found == FitReport((), {}, None)
    managed = msgspec.json.encode(pod_json({"gpuwarden.dev/required-hash": hash_of("a")}))
    waiting = World(not_ready="first round").verbs()
    found = await query(managed, judging=waiting.judging).verdicts("team-a", "train-0")
    assert found == FitReport((), {}, Refusal(ReasonCode.CONTROLLER_NOT_READY, "first round"))
    for body in (b"{]", None):
        refused = await query(body, judging=ready.judging).verdicts("team-a", "train-0")
        assert isinstance(refused, Refusal)
        assert refused.code is ReasonCode.POD_UNKNOWN
