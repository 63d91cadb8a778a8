"""Records of GPUs that kubelet gave away by its own choice, and how they end."""

from dataclasses import replace

import pytest

from controller.ledger.claim import Move
from controller.ledger.record import (
    MAX_HOLDERS,
    GpuRecord,
    Holder,
    HolderState,
    Origin,
    PodGone,
    PodRef,
    RecordInvalidError,
)
from controller.ledger.release import (
    DEFAULT_GRACE_NS,
    GivenDevice,
    GivenGpu,
    UseReport,
    after_report,
    card_of,
    end_step,
    has_successor,
    release_step,
    settled_on,
    watch_release,
)
from tests.builders.ledger import CALL, OTHER_POD, POD, holder, record

AGAIN = replace(POD, uid="uid-9")
"""A later pod of the same name."""
IDLE = UseReport("boot", 1, {}, frozenset())


def given(pod: PodRef = POD, gpu: str = "GPU-a", node: str = "gpu-1") -> GivenGpu:
    return GivenGpu(pod, node, gpu)


def settled(before: GpuRecord | None, card: GivenGpu, report: UseReport = IDLE) -> GpuRecord | None:
    return settled_on(before, card, f"v1.k.{card.pod.uid}", CALL, report)


def part(pod: PodRef = POD, state: HolderState = HolderState.CONFIRMED) -> Holder:
    return holder("GPU-a", pod=pod, origin=Origin.SETTLEMENT, state=state, adopted=True)


def test_a_free_gpu_is_held_for_the_pod_that_has_it() -> None:
    made = settled(None, given())
    assert made == GpuRecord("GPU-a", "gpu-1", (part(),))
    made.demand_valid()


def test_the_same_again_writes_nothing() -> None:
    assert settled(record(part()), given()) is None
    assert settled(record(holder(state=HolderState.CONFIRMED)), given()) is None


def test_nobody_s_part_is_taken_away() -> None:
    other = holder("GPU-a", pod=OTHER_POD, state=HolderState.CONFIRMED)
    made = settled(record(other), given())
    assert made is not None
    made.demand_valid()
    assert set(made.holders) == {other, part()}


def test_a_record_of_another_node_is_left_alone() -> None:
    assert settled(record(holder(pod=OTHER_POD)), given(node="gpu-2")) is None


def test_there_is_a_most_of_holders() -> None:
    pods = (replace(OTHER_POD, name=f"p-{n}", uid=f"uid-{n + 10}") for n in range(MAX_HOLDERS))
    full = GpuRecord("GPU-a", "gpu-1", tuple(sorted(map(part, pods), key=lambda x: x.reservation)))
    assert settled(full, given()) is None


def test_only_uuids_are_settled() -> None:
    with pytest.raises(RecordInvalidError, match="gpus"):
        settled_on(None, given(gpu="0"), "v1.k.x", CALL, IDLE).demand_valid()  # type: ignore[union-attr] # it raises


@pytest.mark.parametrize(
    ("users", "waits"),
    [
        (None, True),
        ({"GPU-b": frozenset({"uid-0", None})}, True),
        ({"GPU-a": frozenset({"uid-9"})}, False),
        ({}, False),
    ],
)
def test_a_pod_waits_for_an_earlier_one_of_its_name(
    users: dict[str, frozenset[str | None]] | None, waits: bool
) -> None:
    earlier = record(part(state=HolderState.RELEASING))
    made = settled(earlier, given(AGAIN), replace(IDLE, users=users))
    assert (made is None) == waits
    if made is not None:
        made.demand_valid()
        assert {x.pod.uid for x in made.holders} == {"uid-0", "uid-9"}


def test_it_ends_as_any_other() -> None:
    move = end_step(part(), PodGone(), None)
    assert move == Move(HolderState.RELEASING, "its pod has ended")
    assert record(part()).moved("v1.k.uid-0", move.to).holders[0].state is HolderState.RELEASING


def quiet_after(before: GpuRecord, holder: Holder, *reports: UseReport) -> bool:
    watch = watch_release(None, PodGone(), 0)
    assert watch is not None
    for report in reports:
        watch = after_report(
            watch, holder, "GPU-a", report, succeeded=has_successor(before, holder)
        )
    return release_step(watch, None, 0, 0, DEFAULT_GRACE_NS) is not None


def test_what_kubelet_says_of_a_name_is_said_of_the_pod_that_has_it_now() -> None:
    """As of a StatefulSet, whose pod gets the GPU of the one before again."""
    named = frozenset({GivenDevice("team-a", "train-0", "GPU-a")})
    reports = [UseReport("boot", n, {}, named) for n in (1, 2)]
    earlier = part(state=HolderState.RELEASING)
    alone, both = record(earlier), record(earlier, part(AGAIN))
    assert not quiet_after(alone, earlier, *reports)
    assert quiet_after(both, earlier, *reports)
    used = [replace(x, users={"GPU-a": frozenset({"uid-0"})}) for x in reports]
    assert not quiet_after(both, earlier, *used)


@pytest.mark.parametrize(
    "later",
    [
        part(replace(AGAIN, name="train-1")),
        part(replace(AGAIN, namespace="team-b")),
        part(AGAIN, HolderState.RELEASING),
        replace(part(AGAIN), origin=Origin.GATE),
    ],
)
def test_others_are_no_successors(later: Holder) -> None:
    earlier = part(state=HolderState.RELEASING)
    assert not has_successor(record(earlier, later), earlier)


@pytest.mark.parametrize(
    ("device", "card"),
    [
        ("GPU-a", "GPU-a"),
        ("MIG-b", "MIG-b"),
        ("GPU-a::3", "GPU-a"),
        ("pool/gpu-0", None),
        ("0", None),
        ("", None),
    ],
)
def test_which_device_ids_name_a_gpu(device: str, card: str | None) -> None:
    assert card_of(device) == card
