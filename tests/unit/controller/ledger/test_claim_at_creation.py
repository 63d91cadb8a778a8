"""Attempts that were made at a pod's creation, for the next pod like it to find."""

from dataclasses import replace

import pytest

from controller.ledger.claim import open_proposals
from controller.ledger.record import GpuRecord, Holder, HolderState, Origin, PodRef
from controller.ledger.store import Entry, LedgerSnapshot
from tests.builders.ledger import holder, record

OWNED = PodRef("team-a", owner="owner-a")
EARLY = holder(pod=OWNED, reservation="v1.k.b", origin=Origin.ADMISSION)


def proposals(pod: PodRef, *parts: Holder) -> tuple[Holder, ...]:
    gpus = [f"GPU-{n}" for n in range(len(parts))]
    records: list[GpuRecord] = [
        record(replace(x, gpus=(gpu,)), gpu=gpu) for x, gpu in zip(parts, gpus, strict=True)
    ]
    found = open_proposals(LedgerSnapshot.of(Entry(x, "1") for x in records), pod)
    return tuple(replace(x, gpus=EARLY.gpus) for x in found)


def test_the_attempt_of_an_owner_is_found() -> None:
    assert proposals(OWNED, EARLY) == (EARLY,)


@pytest.mark.parametrize(
    "other",
    [
        replace(EARLY, origin=Origin.BINDING_WEBHOOK),
        replace(EARLY, origin=Origin.KUBELET),
        replace(EARLY, state=HolderState.CONFIRMED),
        replace(EARLY, state=HolderState.RELEASING),
        replace(EARLY, pod=replace(OWNED, namespace="team-b")),
        replace(EARLY, pod=replace(OWNED, owner="owner-b")),
    ],
)
def test_what_is_bound_or_of_others_is_none(other: Holder) -> None:
    assert proposals(OWNED, other) == ()
    assert proposals(OWNED, other, EARLY) == (EARLY,)


def test_unborn_ones_come_first_then_goes_the_id() -> None:
    told = replace(EARLY, pod=replace(OWNED, uid="uid-0"), reservation="v1.k.a")
    later = replace(EARLY, reservation="v1.k.c")
    assert proposals(OWNED, later, told, EARLY) == (EARLY, later, told)


NAMED = PodRef("team-a", "train-0")


@pytest.mark.parametrize(
    ("one", "other", "is_akin"),
    [
        (NAMED, NAMED, True),
        (NAMED, replace(NAMED, name="train-1"), False),
        (PodRef("team-a"), PodRef("team-a"), False),
        (NAMED, replace(NAMED, owner="owner-a"), False),
        (replace(NAMED, owner="owner-a"), NAMED, False),
        (replace(NAMED, owner="owner-a"), replace(OWNED, name="train-1"), True),
    ],
)
def test_pods_are_alike_by_owner_and_by_name_where_neither_has_one(
    one: PodRef, other: PodRef, is_akin: bool
) -> None:
    part = replace(EARLY, pod=one)
    assert proposals(other, part) == ((part,) if is_akin else ())
