from dataclasses import replace

import pytest

from controller.ledger.attempt import Move
from controller.ledger.record import (
    MAX_HOLDERS,
    GpuRecord,
    Holder,
    HolderState,
    Origin,
    PodGone,
    PodRef,
    PodSeen,
    PodSight,
    RecordInvalidError,
)
from controller.ledger.release import (
    DEFAULT_GRACE_NS,
    ClusterState,
    Drift,
    DriftKind,
    GivenDevice,
    GivenGpu,
    Known,
    NodeGone,
    ReleaseWatch,
    UseReport,
    after_report,
    allocation_recorded,
    card_of,
    end_step,
    find_drift,
    has_successor,
    release_step,
    released_by_operator,
    shown_use,
    unrecorded_nodes,
    watch_release,
)
from controller.ledger.restore import LivePod
from controller.ledger.store import Entry, LedgerSnapshot
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.ledger import CALL, OTHER_POD, POD, SHARE, holder, in_state, record

S = 1_000_000_000
NOW = 1_000 * S
ALIVE = PodSeen("uid-0", "gpu-1", "v1.k.uid-0", has_ended=False)
ENDED = replace(ALIVE, has_ended=True)
PART = holder(state=HolderState.RELEASING)
FREE = Move(HolderState.RELEASED, "its node shows nothing of it any more")
GIVEN = GivenDevice("team-a", "train-0", "GPU-a")


def report(age_s: int, **more: object) -> UseReport:
    quiet = UseReport("boot-1", NOW + age_s * S, {}, frozenset())
    return replace(quiet, **more)  # type: ignore[arg-type] # fields of UseReport


def decided(*reports: UseReport, gone: NodeGone | None = None) -> Move | None:
    watch: ReleaseWatch | None = watch_release(None, PodGone(), NOW)
    assert watch is not None
    for each in reports:
        watch = after_report(watch, PART, "GPU-a", each)
    return release_step(watch, gone, 0, NOW + 10_000 * S, DEFAULT_GRACE_NS)


class TestReports:
    def test_two_quiet_ones_free_it(self) -> None:
        assert decided(report(1), report(2)) == FREE

    def test_the_last_of_them_is_named(self) -> None:
        found = decided(report(1, evidence="first"), report(2, evidence="second"))
        assert found == replace(FREE, evidence="second")

    def test_one_does_not(self) -> None:
        assert decided() is None
        assert decided(report(1)) is None

    def test_the_same_counts_once(self) -> None:
        assert decided(report(1), report(1)) is None

    @pytest.mark.parametrize("age_s", [-5, 0])
    def test_what_was_asked_before_the_end_does_not_count(self, age_s: int) -> None:
        assert decided(report(age_s), report(1)) is None

    @pytest.mark.parametrize(
        "use",
        [
            {"users": {"GPU-a": frozenset({"uid-0"})}},
            {"users": {"GPU-b": frozenset({"uid-9", "uid-0"})}},
            {"users": None},
            {"pods": frozenset({"uid-0"})},
            {"pods": None},
            {"given": frozenset({GIVEN})},
            {"given": frozenset({replace(GIVEN, device="GPU-a::3")})},
            {"given": None},
        ],
    )
    def test_use_and_what_cannot_be_read_begin_the_count_again(
        self, use: dict[str, object]
    ) -> None:
        assert decided(report(1), report(2, **use), report(3)) is None
        assert decided(report(1), report(2, **use), report(3), report(4)) == FREE
        assert decided(report(1, **use), report(2, **use)) is None

    @pytest.mark.parametrize(
        "other",
        [
            {"users": {"GPU-a": frozenset({"uid-9", None})}},
            {"pods": frozenset({"uid-9"})},
            {"given": frozenset({replace(GIVEN, pod="train-1")})},
            {"given": frozenset({replace(GIVEN, namespace="team-b")})},
            {"given": frozenset({replace(GIVEN, device="GPU-ab")})},
        ],
    )
    def test_others_use_does_not_matter(self, other: dict[str, object]) -> None:
        assert decided(report(1, **other), report(2, **other)) == FREE


USED: dict[str, object] = {"users": {"GPU-a": frozenset({"uid-0"})}}


class TestReboot:
    def test_one_quiet_report_after_a_boot_that_came_after_the_end(self) -> None:
        assert decided(report(1, **USED), report(2, boot_id="boot-2")) == FREE

    def test_a_boot_that_nobody_saw_the_last_of_proves_nothing(self) -> None:
        assert decided(report(-1), report(1, boot_id="boot-2")) is None

    def test_a_process_after_the_boot_is_one(self) -> None:
        after = report(2, boot_id="boot-2", **USED)
        assert decided(report(1), after) is None


class TestTheWatch:
    def test_it_begins_with_the_proof_of_the_end(self) -> None:
        assert watch_release(None, None, NOW) is None
        assert watch_release(None, ALIVE, NOW) is None
        assert watch_release(None, ENDED, NOW) == ReleaseWatch(NOW)

    def test_it_goes_on_without_news_and_ends_when_the_pod_lives(self) -> None:
        watch = after_report(ReleaseWatch(NOW), PART, "GPU-a", report(1))
        assert watch_release(watch, None, NOW + 5) is watch
        assert watch_release(watch, PodGone(), NOW + 5) is watch
        assert watch_release(watch, ALIVE, NOW + 5) is None

    def test_without_one_nothing_is_let_go(self) -> None:
        assert release_step(None, None, 0, NOW, DEFAULT_GRACE_NS) is None


class TestANodeThatIsGone:
    @pytest.mark.parametrize(
        ("last_asked_s", "age_s", "is_free"),
        [(0, 299, False), (0, 300, True), (200, 499, False), (200, 500, True)],
    )
    def test_it_is_waited_for_in_silence(
        self, last_asked_s: int, age_s: int, is_free: bool
    ) -> None:
        found = release_step(
            None, NodeGone(NOW), NOW + last_asked_s * S, NOW + age_s * S, DEFAULT_GRACE_NS
        )
        assert found == (
            Move(HolderState.RELEASED, "its node is gone for good") if is_free else None
        )


@pytest.mark.parametrize(
    ("pod", "gone", "ends"),
    [
        (ALIVE, None, False),
        (None, None, False),
        (ENDED, None, True),
        (PodGone(), None, True),
        (ALIVE, NodeGone(NOW), True),
    ],
)
def test_a_confirmed_one_ends_with_its_pod_or_its_node(
    pod: PodSight, gone: NodeGone | None, ends: bool
) -> None:
    found = end_step(holder(state=HolderState.CONFIRMED), pod, gone)
    assert (found is not None and found.to is HolderState.RELEASING) == ends
    assert end_step(holder(), pod, gone) is None
    assert end_step(PART, pod, gone) is None


# --- An operator's word replaces a node's silence, and nothing else

MINE = "v1.k.uid-0"
RELEASING = in_state(HolderState.RELEASING)
QUIET = UseReport("boot-1", 7, {}, frozenset())
POD_ENDED = PodSeen("uid-0", "gpu-1", MINE, has_ended=True)
LIVES = replace(POD_ENDED, has_ended=False)


def code(found: GpuRecord | Refusal | None) -> ReasonCode | None:
    return found.code if isinstance(found, Refusal) else None


def refusal(found: GpuRecord | Refusal | None) -> Refusal:
    assert isinstance(found, Refusal)
    return found


@pytest.mark.parametrize("pod", [PodGone(), POD_ENDED])
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
        origin=Origin.KUBELET,
        state=HolderState.CONFIRMED,
        restored=True,
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
    assert shown_use(report, unborn, "GPU-a", succeeded=False) is None
    assert shown_use(None, unborn, "GPU-a", succeeded=False) is None


# --- Records of GPUs that kubelet gave away by its own choice, and how they end

AGAIN = replace(POD, uid="uid-9")
"""A later pod of the same name."""
IDLE = UseReport("boot", 1, {}, frozenset())


def given(pod: PodRef = POD, gpu: str = "GPU-a", node: str = "gpu-1") -> GivenGpu:
    return GivenGpu(pod, node, gpu)


def allocated(
    before: GpuRecord | None, card: GivenGpu, report: UseReport = IDLE
) -> GpuRecord | None:
    return allocation_recorded(before, card, f"v1.k.{card.pod.uid}", CALL, report)


def part(pod: PodRef = POD, state: HolderState = HolderState.CONFIRMED) -> Holder:
    return holder("GPU-a", pod=pod, origin=Origin.KUBELET, state=state, restored=True)


def test_a_free_gpu_is_held_for_the_pod_that_has_it() -> None:
    made = allocated(None, given())
    assert made == GpuRecord("GPU-a", "gpu-1", (part(),))
    made.demand_valid()


def test_the_same_again_writes_nothing() -> None:
    assert allocated(record(part()), given()) is None
    assert allocated(record(holder(state=HolderState.CONFIRMED)), given()) is None


def test_nobody_s_part_is_taken_away() -> None:
    other = holder("GPU-a", pod=OTHER_POD, state=HolderState.CONFIRMED)
    made = allocated(record(other), given())
    assert made is not None
    made.demand_valid()
    assert set(made.holders) == {other, part()}


def test_a_record_of_another_node_is_left_alone() -> None:
    assert allocated(record(holder(pod=OTHER_POD)), given(node="gpu-2")) is None


def test_there_is_a_most_of_holders() -> None:
    pods = (replace(OTHER_POD, name=f"p-{n}", uid=f"uid-{n + 10}") for n in range(MAX_HOLDERS))
    full = GpuRecord("GPU-a", "gpu-1", tuple(sorted(map(part, pods), key=lambda x: x.reservation)))
    assert allocated(full, given()) is None


def test_only_allocations_of_uuids_are_recorded() -> None:
    with pytest.raises(RecordInvalidError, match="gpus"):
        allocation_recorded(None, given(gpu="0"), "v1.k.x", CALL, IDLE).demand_valid()  # type: ignore[union-attr] # it raises


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
    made = allocated(earlier, given(AGAIN), replace(IDLE, users=users))
    assert (made is None) == waits
    if made is not None:
        made.demand_valid()
        assert {x.pod.uid for x in made.holders} == {"uid-0", "uid-9"}


def test_and_not_for_pods_of_other_names() -> None:
    other = record(holder(pod=OTHER_POD, state=HolderState.CONFIRMED))
    made = allocated(other, given(), replace(IDLE, users={"GPU-a": frozenset({"uid-1"})}))
    assert made is not None
    assert {x.pod.uid for x in made.holders} == {"uid-0", "uid-1"}


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
        replace(part(AGAIN), origin=Origin.BINDING_WEBHOOK),
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


BOUND = PodSeen("uid-0", "gpu-1", "v1.k.uid-0", has_ended=False)
LIVE = LivePod(POD, "gpu-1", "v1.k.uid-0", ("GPU-a", "GPU-b"))
NOTHING = ClusterState({}, (), {})


def snapshot(*records: GpuRecord) -> LedgerSnapshot:
    return LedgerSnapshot.of(Entry(x, str(n)) for n, x in enumerate(records))


def kinds(world: ClusterState, *records: GpuRecord) -> list[tuple[str, str]]:
    return [(x.kind, x.gpu) for x in find_drift(snapshot(*records), world)]


def test_where_all_agree_there_is_nothing() -> None:
    confirmed = [
        record(holder("GPU-a", "GPU-b", state=HolderState.CONFIRMED), gpu=gpu)
        for gpu in ("GPU-a", "GPU-b")
    ]
    world = ClusterState({"uid-0": BOUND}, (LIVE,), {"gpu-a": "gpu-1", "gpu-b": "gpu-1"})
    assert kinds(world, *confirmed) == []
    assert kinds(NOTHING, *confirmed) == []
    assert kinds(NOTHING) == []


def test_a_live_pod_without_its_records_is_restored_and_its_node_waits() -> None:
    half = record(holder("GPU-a", "GPU-b", state=HolderState.CONFIRMED))
    found = find_drift(snapshot(half), replace(NOTHING, live=(LIVE,)))
    assert [x for x in found if x.restore] == [
        Drift(DriftKind.POD_UNRECORDED, "GPU-b", "gpu-1", "v1.k.uid-0", LIVE)
    ]
    assert (DriftKind.TORN, "GPU-a") in [(x.kind, x.gpu) for x in found]
    assert unrecorded_nodes(found) == {"gpu-1"}
    assert unrecorded_nodes(find_drift(snapshot(half), NOTHING)) == frozenset()


def test_a_live_pod_whose_gpu_another_holds_is_unrecorded_too() -> None:
    theirs = record(holder(pod=OTHER_POD))
    world = replace(NOTHING, live=(replace(LIVE, gpus=("GPU-a",)),))
    assert kinds(world, theirs) == [(DriftKind.POD_UNRECORDED, "GPU-a")]
    assert kinds(world, record(holder(), holder(pod=OTHER_POD), share=SHARE)) == []


def test_a_record_on_another_node_is_none_of_the_pods() -> None:
    world = replace(NOTHING, live=(replace(LIVE, gpus=("GPU-a",)),))
    for part in (holder(pod=OTHER_POD), holder(state=HolderState.CONFIRMED)):
        there = replace(record(part), node="gpu-2")
        found = find_drift(snapshot(there), world)
        assert (DriftKind.POD_UNRECORDED, "GPU-a") in [(x.kind, x.gpu) for x in found]
        assert unrecorded_nodes(found) == {"gpu-1"}


def test_a_torn_attempt_is_none() -> None:
    assert kinds(NOTHING, record(holder("GPU-a", "GPU-b"))) == []


@pytest.mark.parametrize(
    ("pod", "is_drift"),
    [
        (BOUND, False),
        (replace(BOUND, node="gpu-2"), True),
        (replace(BOUND, node=""), True),
        (replace(BOUND, reservation="v1.k.other"), True),
    ],
)
def test_a_confirmed_pod_is_where_the_ledger_says(pod: PodSeen, is_drift: bool) -> None:
    world = replace(NOTHING, pods={"uid-0": pod})
    found = kinds(world, in_state(HolderState.CONFIRMED))
    assert found == ([(DriftKind.POD_MISMATCH, "GPU-a")] if is_drift else [])


@pytest.mark.parametrize(
    ("pod", "is_drift"),
    [
        (BOUND, True),
        (replace(BOUND, has_ended=True), False),
        (replace(BOUND, node="gpu-2"), False),
    ],
)
def test_what_is_released_is_not_alive(pod: PodSeen, is_drift: bool) -> None:
    world = replace(NOTHING, pods={"uid-0": pod})
    found = kinds(world, in_state(HolderState.RELEASING))
    assert found == ([(DriftKind.POD_ALIVE, "GPU-a")] if is_drift else [])


def test_two_holders_are_drift_unless_they_share() -> None:
    parts = (holder(), holder(pod=OTHER_POD, restored=True))
    assert find_drift(snapshot(record(*parts)), NOTHING) == (
        Drift(DriftKind.HELD_TWICE, "GPU-a", "gpu-1", "v1.k.uid-0"),
    )
    assert kinds(NOTHING, record(*parts, share=SHARE)) == []
    for stranger in (replace(OTHER_POD, owner=None), replace(OTHER_POD, namespace="team-b")):
        beside = record(holder(), holder(pod=stranger, restored=True), share=SHARE)
        assert kinds(NOTHING, beside) == [(DriftKind.HELD_TWICE, "GPU-a")]


def test_what_kubelet_gave_to_several_is_no_drift() -> None:
    assert kinds(NOTHING, record(part(), part(OTHER_POD))) == []
    beside = record(part(), holder(pod=OTHER_POD))
    assert kinds(NOTHING, beside) == [(DriftKind.HELD_TWICE, "GPU-a")]


def test_drift_has_the_labels_that_the_page_on_the_ledger_names() -> None:
    assert {x.value for x in DriftKind} == {
        "pod_unrecorded",
        "held_twice",
        "pod_mismatch",
        "pod_alive",
        "gpu_moved",
        "torn",
    }


def test_a_gpu_that_another_node_shows_has_moved() -> None:
    world = replace(NOTHING, gpu_nodes={"gpu-a": "gpu-2"})
    assert kinds(world, record()) == [(DriftKind.GPU_MOVED, "GPU-a")]
