import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.access import FoundPod
from controller.binding.records import ReservationChange
from controller.binding.request import PodsUnavailableError
from controller.ledger.attempt import Confirmed
from controller.ledger.record import GpuRecord, HolderState, PodGone, PodRef, PodSeen
from controller.ledger.reservation_id import ReservationSubject
from controller.ledger.restore import LivePod
from controller.ledger.store import LedgerStore
from controller.web.api.documents import FinalizeRequest
from controller.web.api.finalize import (
    FIELDS,
    Finalizer,
    FinalizeRequestError,
    FinalizeUnavailableError,
    read_finalize,
)
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.bindings import IDS
from tests.builders.ledger import OTHER_POD, POD, holder, record
from tests.fakes.ledger_store import FaultyLedgerStore, MemoryLedgerStore

# --- What a body of POST /finalize must hold

GOOD = {
    "namespace": "team-a",
    "name": "train-0",
    "uid": "0b7c1a52-0000-4000-8000-000000000001",
    "reservation-id": "v1.k1.aa",
    "gpu-uuid": "GPU-1",
}
ALL = "missing required fields: namespace, name, uid, reservation-id, gpu-uuid"


def refused(body: Any) -> str:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(FinalizeRequestError) as caught:
        read_finalize(text)
    return str(caught.value)


def test_a_good_one() -> None:
    found = read_finalize(json.dumps(GOOD | {"more": 1}).encode())
    assert (found.namespace, found.name, found.uid) == tuple(GOOD.values())[:3]
    assert (found.reservation_id, found.gpu_uuid) == ("v1.k1.aa", "GPU-1")


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 9000, [], "x", 7, None, {}])
def test_what_is_no_object_lacks_everything(body: Any) -> None:
    assert refused(body) == ALL


def test_the_example_of_the_contract() -> None:
    assert refused({"namespace": "ns"}) == (
        "missing required fields: name, uid, reservation-id, gpu-uuid"
    )


@pytest.mark.parametrize("value", ["", "  ", None, 7, ["x"], {"a": 1}, True])
@pytest.mark.parametrize("field", FIELDS)
def test_blank_and_wrong_types_are_missing(field: str, value: Any) -> None:
    assert refused(GOOD | {field: value}) == f"missing required fields: {field}"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("namespace", ".."),
        ("namespace", "a/b"),
        ("namespace", "a" * 64),
        ("name", "../nodes"),
        ("name", "."),
        ("name", "a" * 254),
        ("uid", "u/1"),
        ("uid", "u" * 129),
        ("reservation-id", "a b"),
        ("reservation-id", "x" * 254),
        ("gpu-uuid", "0"),
        ("gpu-uuid", "GPU-1/../2"),
        ("gpu-uuid", "GPU-1\n"),
    ],
)
def test_what_names_nothing_is_named_with_what_was_expected(field: str, value: str) -> None:
    text = refused(GOOD | {field: value})
    assert text.startswith(f"{field}: ")
    assert "expected" in text
    assert "\n" not in text
    assert len(text) < 400


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_bytes_get_an_answer(body: bytes) -> None:
    with pytest.raises(FinalizeRequestError, match="missing"):
        read_finalize(body)


# --- What becomes of a call of POST /finalize, with a ledger and pods that fail and race

GPUS = ("GPU-a", "GPU-b")
ID = IDS.make(ReservationSubject("team-a", "gpu-1", GPUS, "uid-0"))
BOUND = FoundPod(
    PodSeen("uid-0", "gpu-1", ID, has_ended=False),
    LivePod(POD, "gpu-1", ID, GPUS),
)


def held(gpu: str, **changes: HolderState) -> GpuRecord:
    made = replace(holder(*GPUS, reservation=ID), **changes)  # type: ignore[arg-type] # its state
    return record(made, gpu=gpu)


def request(gpu: str = "GPU-a", **changes: str) -> FinalizeRequest:
    made = FinalizeRequest("team-a", "train-0", "uid-0", ID, gpu)
    fields = {x: getattr(made, x) for x in made.__struct_fields__}
    return FinalizeRequest(**{**fields, **changes})


@dataclass
class World:
    store: LedgerStore = field(default_factory=MemoryLedgerStore)
    pod: FoundPod = BOUND
    down: bool = False
    changes: list[ReservationChange] = field(default_factory=list)

    async def find(self, pod: PodRef) -> FoundPod:
        if self.down:
            raise PodsUnavailableError("the API server is away")
        there = ("team-a", "train-0", "uid-0")
        is_there = (pod.namespace, pod.name, pod.uid) == there
        return self.pod if is_there else FoundPod(PodGone(), None)

    async def finalize(self, asked: FinalizeRequest) -> Confirmed | ReasonCode:
        finalizer = Finalizer(self.store, self, IDS, self.changes.append)
        found = await finalizer.finalize(asked, "its pod says that it is bound")
        return found.code if isinstance(found, Refusal) else found

    def states(self) -> dict[str, str]:
        entries = self.store.snapshot().entries.values()
        return {x.record.gpu: x.record.holders[0].state.value for x in entries}


async def world(*records: GpuRecord, **changes: object) -> World:
    made = World(**changes)  # type: ignore[arg-type] # fields of World
    for each in records or (held("GPU-a"), held("GPU-b")):
        assert await made.store.compare_and_set(None, each)
    return made


async def test_a_reservation_that_was_made_before_its_pod_had_a_name_is_not_a_stranger_s() -> None:
    unnamed = holder(*GPUS, reservation=ID, pod=replace(POD, name=None))
    here = await world(record(unnamed, gpu="GPU-a"))
    assert await here.finalize(request()) == Confirmed()


async def test_each_gpu_is_confirmed_by_its_own_call_and_twice_is_once() -> None:
    here = await world()
    assert await here.finalize(request()) == Confirmed()
    assert here.states() == {"GPU-a": "Confirmed", "GPU-b": "Proposed"}
    assert await here.finalize(request()) == Confirmed()
    assert await here.finalize(request("GPU-b")) == Confirmed()
    assert here.states() == {"GPU-a": "Confirmed", "GPU-b": "Confirmed"}
    assert [x.gpus for x in here.changes] == [("GPU-a",), ("GPU-b",)]
    assert {x.state for x in here.changes} == {HolderState.CONFIRMED}


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (request("GPU-c"), ReasonCode.RESERVATION_CONFLICT),
        (request(uid="uid-9"), ReasonCode.RESERVATION_CONFLICT),
        (request(reservation_id="v1.k.other"), ReasonCode.RESERVATION_CONFLICT),
        (request("GPU-c", reservation_id="v1.k.other"), ReasonCode.RESERVATION_UNKNOWN),
        (request(namespace="team-b"), ReasonCode.RESERVATION_UNKNOWN),
        (request(namespace="team-b", uid="uid-9"), ReasonCode.RESERVATION_UNKNOWN),
        (request(name="train-1"), ReasonCode.RESERVATION_UNKNOWN),
    ],
    ids=[
        "wrong GPU",
        "another pod",
        "another's reservation",
        "unknown",
        "wrong namespace",
        "wrong namespace and UID",
        "wrong name",
    ],
)
async def test_what_does_not_fit_changes_nothing(asked: FinalizeRequest, code: ReasonCode) -> None:
    here = await world()
    assert await here.finalize(asked) is code
    assert set(here.states().values()) == {"Proposed"}
    assert here.changes == []


@pytest.mark.parametrize(
    ("pod", "code"),
    [
        (FoundPod(PodGone(), None), ReasonCode.RESERVATION_EXPIRED),
        (
            FoundPod(PodSeen("uid-0", "gpu-1", ID, has_ended=True), BOUND.held),
            ReasonCode.RESERVATION_EXPIRED,
        ),
        (
            FoundPod(PodSeen("uid-0", "", None, has_ended=False), None),
            ReasonCode.RESERVATION_CONFLICT,
        ),
        (
            FoundPod(PodSeen("uid-0", "gpu-2", ID, has_ended=False), BOUND.held),
            ReasonCode.RESERVATION_CONFLICT,
        ),
        (
            FoundPod(PodSeen("uid-0", "gpu-1", "v1.k.other", has_ended=False), None),
            ReasonCode.RESERVATION_CONFLICT,
        ),
    ],
    ids=["gone", "ended", "unbound", "elsewhere", "under another id"],
)
async def test_only_a_live_pod_that_is_bound_under_the_id_counts(
    pod: FoundPod, code: ReasonCode
) -> None:
    here = await world(pod=pod)
    assert await here.finalize(request()) is code
    assert set(here.states().values()) == {"Proposed"}


async def test_a_reservation_that_is_over_has_expired_and_a_forged_one_is_unknown() -> None:
    here = await world(record(holder("GPU-z", pod=OTHER_POD), gpu="GPU-z"))
    assert await here.finalize(request()) is ReasonCode.RESERVATION_EXPIRED
    assert await here.finalize(request("GPU-c")) is ReasonCode.RESERVATION_CONFLICT
    assert BOUND.held is not None
    forged = replace(BOUND.held, node="gpu-2")
    here.pod = replace(BOUND, held=forged)
    assert await here.finalize(request()) is ReasonCode.RESERVATION_UNKNOWN


async def test_a_part_that_ended_before_the_others_has_expired() -> None:
    here = await world(held("GPU-b", state=HolderState.CONFIRMED))
    assert await here.finalize(request()) is ReasonCode.RESERVATION_EXPIRED


async def test_the_watch_may_be_faster() -> None:
    inner = MemoryLedgerStore()
    here = await world(store=inner)
    faulty = FaultyLedgerStore(inner)

    async def confirmed() -> None:
        entry = await inner.read("GPU-a")
        assert entry is not None
        assert await inner.compare_and_set(entry, entry.record.moved(ID, HolderState.CONFIRMED))

    faulty.meanwhile[0] = confirmed
    here.store = faulty
    assert await here.finalize(request()) == Confirmed()
    assert here.changes == []


async def test_after_a_lost_answer_the_record_is_read_again() -> None:
    inner = MemoryLedgerStore()
    here = await world(store=inner)
    here.store = FaultyLedgerStore(inner, "before", "after")
    assert await here.finalize(request()) == Confirmed()
    assert set(here.states().values()) == {"Confirmed", "Proposed"}


async def test_where_no_answer_comes_it_is_undecided_and_the_next_call_finds_it_done() -> None:
    inner = MemoryLedgerStore()
    here = await world(store=inner)
    here.store = FaultyLedgerStore(inner, "before", "before", "after")
    with pytest.raises(FinalizeUnavailableError, match="the ledger"):
        await here.finalize(request())
    assert await here.finalize(request()) == Confirmed()


async def test_without_ledger_or_pods_nothing_is_decided() -> None:
    inner = MemoryLedgerStore()
    here = await world(store=inner)
    here.down = True
    with pytest.raises(FinalizeUnavailableError, match="the pod"):
        await here.finalize(request())
    dead = FaultyLedgerStore(inner)
    dead.is_dead = True
    here.store = dead
    with pytest.raises(FinalizeUnavailableError, match="the ledger"):
        await here.finalize(request())
    assert set(World(store=inner).states().values()) == {"Proposed"}
