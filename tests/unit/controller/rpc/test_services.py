import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from controller.access import LOCAL, calling
from controller.admission.eviction import EvictedPod, Evictions
from controller.binding.idle import Account
from controller.binding.use_reconciler import UseNow
from controller.explain.pod import AllocationTrace
from controller.ledger.store import Entry, LedgerSnapshot
from controller.rpc import services as support_service
from controller.rpc.services import AT_ONCE, PlacementServicer, SupportServicer
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.support.part import Part, missing
from gpuwarden.wire.v1 import placement_pb2 as pb
from gpuwarden.wire.v1 import support_pb2 as support_pb
from tests.builders.accounts import account, held, pod_document
from tests.builders.ledger import record
from tests.fakes.clock import FakeClock

# --- Which questions about placement are answered, and which are refused

LEDGER = LedgerSnapshot.of([Entry(record(), "1")], fresh_until_ns=1_000)


class AbortedError(Exception):
    pass


class Context:
    async def abort(self, code: Any, details: str, _metadata: Any = ()) -> None:
        raise AbortedError(f"{code.name} {details}")


async def listed(
    ledger: LedgerSnapshot | None = LEDGER, now_ns: int = 0, **fields: Any
) -> pb.ListReservationsResponse:
    clock = FakeClock(boottime=now_ns)
    source = None if ledger is None else (lambda: ledger)
    service = PlacementServicer(source, clock)
    context: Any = Context()
    with calling(LOCAL):
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


async def explained(
    found: AllocationTrace | Refusal | None = None, namespace: str = "team-a", name: str = "train-0"
) -> pb.ExplainPodResponse:
    asked: list[tuple[str, str]] = []

    async def about(*pod: str) -> AllocationTrace | Refusal:
        asked.append(pod)  # type: ignore[arg-type] # two names
        assert found is not None
        return found

    source: Callable[[str, str], Awaitable[AllocationTrace | Refusal]] | None = (
        about if found else None
    )
    service = PlacementServicer(None, FakeClock(), about=source)
    context: Any = Context()
    request = pb.ExplainPodRequest(namespace=namespace, name=name)
    with calling(LOCAL):
        answer = await service.ExplainPod(request, context)
    assert asked == [(namespace, name)]
    return answer


async def test_a_pod_is_explained() -> None:
    answer = await explained(account(pod_document(), held()))
    assert [x.name for x in answer.stages] == ["required", "reserved", "bound", "kubelet", "nvml"]


async def test_pods_that_cannot_be_explained() -> None:
    unknown = Refusal(ReasonCode.POD_UNKNOWN, "no pod team-a/train-0")
    with pytest.raises(AbortedError, match="NOT_FOUND POD_UNKNOWN: no pod team-a/train-0"):
        await explained(unknown)
    with pytest.raises(AbortedError, match="NOT_FOUND POD_UNKNOWN: this controller has no Kuber"):
        await explained()
    for namespace, name in (("", "a"), ("a", ""), ("a", "b/c"), ("a", "B")):
        with pytest.raises(AbortedError, match="INVALID_ARGUMENT REQ_INVALID: name"):
            await explained(unknown, namespace, name)


POD = EvictedPod("gpu-1", "team-a", "train-0", 0)


async def evicted(found: Evictions | Refusal | None, **fields: Any) -> pb.CheckProtectionResponse:
    async def about(node: str) -> Evictions | Refusal:
        assert node == fields.get("node", "")
        assert found is not None
        return found

    service = PlacementServicer(None, FakeClock(), evicted=about if found else None)
    context: Any = Context()
    return await service.CheckProtection(pb.CheckProtectionRequest(**fields), context)


async def test_evicted_pods_are_listed() -> None:
    found = Evictions(3, (POD, replace(POD, name="train-1", after_s=2**32)))
    answer = await evicted(found, node="gpu-1", after="gpu-1/team-a/train-0")
    assert (answer.nodes, answer.next_after) == (3, "")
    assert [(x.name, x.after_s) for x in answer.pods] == [("train-1", 2**32 - 1)]
    answer = await evicted(found, limit=1)
    assert [x.name for x in answer.pods] == ["train-0"]
    assert answer.next_after == "gpu-1/team-a/train-0"


async def test_a_page_has_at_most_500_evicted_pods() -> None:
    many = tuple(replace(POD, name=f"train-{n:03}") for n in range(501))
    answer = await evicted(Evictions(1, many))
    assert (len(answer.pods), answer.next_after) == (500, "gpu-1/team-a/train-499")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"node": "A"}, "node is 'A', expected an RFC 1123 name"),
        ({"limit": 501}, "limit is 501, expected 1 to 500"),
        ({"after": "a" * 762}, "after: expected at most 761 characters"),
    ],
)
async def test_questions_about_evictions_that_make_no_sense_are_refused(
    fields: Any, text: str
) -> None:
    with pytest.raises(AbortedError, match=f"INVALID_ARGUMENT REQ_INVALID: {text}"):
        await evicted(Evictions(0, ()), **fields)


async def test_evictions_that_nobody_knows() -> None:
    unknown = Refusal(ReasonCode.NODE_UNKNOWN, "the cluster has no node gpu-9")
    with pytest.raises(AbortedError, match="NODE_UNKNOWN: the cluster has no node gpu-9"):
        await evicted(unknown, node="gpu-9")
    with pytest.raises(AbortedError, match="POD_UNKNOWN: this controller has no Kubernetes API"):
        await evicted(None)


async def test_few_answers_are_made_at_a_time() -> None:
    release, running = asyncio.Event(), 0

    async def about(_namespace: str, _name: str) -> Refusal:
        nonlocal running
        running += 1
        await release.wait()
        running -= 1
        return Refusal(ReasonCode.POD_UNKNOWN, "none")

    service = PlacementServicer(None, FakeClock(), about=about)
    context: Any = Context()
    request = pb.ExplainPodRequest(namespace="a", name="b")
    with calling(LOCAL):
        calls = [asyncio.create_task(service.ExplainPod(request, context)) for _ in range(9)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert running == AT_ONCE
    release.set()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(x) for x in answers] == [AbortedError] * 9
    assert running == 0


# --- Parts travel in chunks, and only so many bundles are made at a time


class SupportContext:
    async def abort(self, code: object, details: str, _metadata: object = ()) -> None:
        raise AbortedError(f"{code} {details}")

    def set_trailing_metadata(self, _metadata: object) -> None:
        pass


async def collected(service: SupportServicer) -> list[support_pb.CollectResponse]:
    context: Any = SupportContext()
    return [one async for one in service.Collect(support_pb.CollectRequest(), context)]


async def test_a_large_part_is_joined_from_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support_service, "CHUNK_BYTES", 4)

    async def parts() -> AsyncIterator[Part]:
        yield Part("a", b"0123456789", withheld=("x",), left_out=7)
        yield missing("b", "why")
        yield Part("c", b"")

    messages = await collected(SupportServicer(parts))
    assert [(one.part, one.content) for one in messages] == [
        ("a", b"0123"),
        ("a", b"4567"),
        ("a", b"89"),
        ("b", b""),
        ("c", b""),
    ]
    assert (list(messages[0].withheld), messages[0].left_out) == (["x"], 7)
    assert [one.missing for one in messages] == ["", "", "", "why", ""]


async def test_a_further_bundle_waits_for_no_room() -> None:
    release = asyncio.Event()

    async def parts() -> AsyncIterator[Part]:
        await release.wait()
        yield Part("a", b"x")

    service = SupportServicer(parts)
    running = [asyncio.create_task(collected(service)) for _ in range(AT_ONCE)]
    await asyncio.sleep(0)
    with pytest.raises(AbortedError, match="LIMIT_STREAMS"):
        await collected(service)
    release.set()
    assert [len(messages) for messages in await asyncio.gather(*running)] == [1] * AT_ONCE
    assert len(await collected(service)) == 1


# --- use of GPUs


async def used(now: UseNow | None, **fields: Any) -> pb.ListUseResponse:
    service = PlacementServicer(None, FakeClock(), use=None if now is None else lambda: now)
    context: Any = Context()
    return await service.ListUse(pb.ListUseRequest(**fields), context)


async def test_use_is_of_the_namespace_that_is_asked_for() -> None:
    now = UseNow(accounts={"team-a": Account(1, 1), "team-b": Account(1, 1)})
    assert [x.namespace for x in (await used(now)).namespaces] == ["team-a", "team-b"]
    assert [x.namespace for x in (await used(now, namespace="team-b")).namespaces] == ["team-b"]


async def test_use_is_not_known_where_nothing_is_reserved() -> None:
    with pytest.raises(AbortedError, match="LEDGER_UNAVAILABLE: this controller reserves nothing"):
        await used(None)
    with pytest.raises(AbortedError, match="namespace is 'A', expected an RFC 1123 name"):
        await used(UseNow(), namespace="A")
