"""An operator's word replaces a node's silence, and nothing else."""

from dataclasses import replace

import pytest

from controller.ledger.record import (
    GpuRecord,
    HolderState,
    Origin,
    PodGone,
    PodRef,
    PodSeen,
    PodSight,
)
from controller.ledger.release import GivenDevice, Known, UseReport, released_by_operator, shown_use
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.ledger import OTHER_POD, POD, SHARE, holder, in_state, record

MINE = "v1.k.uid-0"
RELEASING = in_state(HolderState.RELEASING)
QUIET = UseReport("boot-1", 7, {}, frozenset())
ENDED = PodSeen("uid-0", "gpu-1", MINE, has_ended=True)
LIVES = replace(ENDED, has_ended=False)


def code(found: GpuRecord | Refusal | None) -> ReasonCode | None:
    return found.code if isinstance(found, Refusal) else None


def refusal(found: GpuRecord | Refusal | None) -> Refusal:
    assert isinstance(found, Refusal)
    return found


@pytest.mark.parametrize("pod", [PodGone(), ENDED])
@pytest.mark.parametrize("report", [None, QUIET, UseReport("boot-1", 7, None, None, None)])
def test_a_silent_node_is_spoken_for(pod: PodSight, report: UseReport | None) -> None:
    """What could not be read is silence, too."""
    found = released_by_operator(RELEASING, MINE, Known(pod, report))
    assert isinstance(found, GpuRecord)
    assert found.is_closed
    assert [x.state for x in found.holders] == [HolderState.RELEASED]


@pytest.mark.parametrize("found", [None, record(holder(pod=OTHER_POD))])
def test_where_it_has_no_part_nothing_is_done(found: GpuRecord | None) -> None:
    assert released_by_operator(found, MINE, Known(PodGone(), None)) is None


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (HolderState.PROPOSED, "it is Proposed: an attempt expires by itself"),
        (HolderState.CONFIRMED, "it is Confirmed: delete its pod first"),
        (HolderState.RELEASED, "it is Released: it has ended"),
    ],
)
def test_only_what_is_being_released_is(state: HolderState, text: str) -> None:
    found = refusal(released_by_operator(in_state(state), MINE, Known(PodGone(), None)))
    assert (found.code, found.detail) == (ReasonCode.RESERVATION_IN_FORCE, text)


@pytest.mark.parametrize("pod", [LIVES, replace(LIVES, node=""), replace(LIVES, node="x"), None])
def test_a_pod_that_may_live_keeps_its_gpu(pod: PodSight) -> None:
    """Bound elsewhere or not at all, too: the store may have been put back."""
    found = refusal(released_by_operator(RELEASING, MINE, Known(pod, None)))
    assert found.code is ReasonCode.RESERVATION_IN_FORCE
    assert found.detail == "its pod has not ended: delete it first"


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (replace(QUIET, users={"GPU-a": frozenset({"uid-0"})}), "a process of the pod on GPU-a"),
        (
            replace(QUIET, users={"GPU-b": frozenset({None, "uid-0"})}, given=None),
            "a process of the pod on GPU-b",
        ),
        (replace(QUIET, users=None, pods=frozenset({"uid-0"})), "a process of the pod"),
        (
            replace(QUIET, given=frozenset({GivenDevice("team-a", "train-0", "GPU-a::1")})),
            "that kubelet gives it to a pod of that name",
        ),
    ],
)
def test_a_node_that_shows_the_pod_is_not_contradicted(report: UseReport, text: str) -> None:
    found = refusal(released_by_operator(RELEASING, MINE, Known(PodGone(), report)))
    assert (found.code, found.detail) == (ReasonCode.RESERVATION_IN_USE, f"gpu-1 shows {text}")


@pytest.mark.parametrize(
    "report",
    [
        replace(QUIET, users={"GPU-a": frozenset({"uid-1", None})}, pods=frozenset({"uid-1"})),
        replace(QUIET, given=frozenset({GivenDevice("team-a", "train-0", "GPU-b")})),
        replace(QUIET, given=frozenset({GivenDevice("team-b", "train-0", "GPU-a")})),
        replace(QUIET, given=frozenset({GivenDevice("team-a", "train-0", "nvidia0")})),
    ],
)
def test_what_is_shown_of_others_says_nothing_of_it(report: UseReport) -> None:
    assert isinstance(released_by_operator(RELEASING, MINE, Known(PodGone(), report)), GpuRecord)


def test_of_a_name_that_a_later_pod_has_kubelet_speaks_of_that_one() -> None:
    later = holder(
        pod=PodRef("team-a", "train-0", "uid-9"),
        reservation="v1.s.uid-9",
        origin=Origin.SETTLEMENT,
        state=HolderState.CONFIRMED,
        adopted=True,
    )
    both = record(holder(state=HolderState.RELEASING), later)
    given = replace(QUIET, given=frozenset({GivenDevice("team-a", "train-0", "GPU-a")}))
    found = released_by_operator(both, MINE, Known(PodGone(), given))
    assert isinstance(found, GpuRecord)
    assert found.holders == (later,)


def test_of_a_share_group_only_the_one_that_is_named() -> None:
    others = holder(pod=OTHER_POD, state=HolderState.RELEASING)
    both = record(holder(state=HolderState.RELEASING), others, share=SHARE)
    found = released_by_operator(both, MINE, Known(PodGone(), None))
    assert isinstance(found, GpuRecord)
    assert (found.holders, found.version) == ((others,), both.version + 1)


def test_a_pod_that_was_never_born_is_nobody_s_process() -> None:
    unborn = replace(POD, uid=None)
    report = replace(QUIET, users={"GPU-a": frozenset({None})})
    assert shown_use(report, unborn, "GPU-a") is None
    assert shown_use(None, unborn, "GPU-a") is None
