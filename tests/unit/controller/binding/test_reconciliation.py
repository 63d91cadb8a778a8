from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from controller.binding.asked_rounds import AwaitedReport
from controller.binding.reconciliation import (
    Action,
    Apart,
    Around,
    Followup,
    KubeletAllocations,
    LookFor,
    RequeuePod,
    Rewrite,
    Showing,
)
from controller.ledger.record import (
    GpuRecord,
    Holder,
    HolderState,
    Origin,
    PodGone,
    PodRef,
    PodSeen,
    PodSight,
)
from controller.ledger.release import GivenDevice, GivenGpu, NodeGone, UseReport
from controller.ledger.store import Entry, LedgerSnapshot
from tests.builders.fleet_views import acceptance, gpu, hash_of, mig_slice
from tests.builders.ledger import OTHER_POD, POD, holder, record
from tests.builders.ledger import in_state as bound_in_state
from tests.builders.node_use import CARDS, NODE, SomeBoundPods, bound, device, ref, use_report

# --- The next steps of reservations, from what one replica knows

S = 1_000_000_000
APART_NS = 15 * S
RESERVATION = "v1.k.uid-0"
UNBOUND = PodSeen("uid-0", "", None, has_ended=False)
BOUND = PodSeen("uid-0", "gpu-1", RESERVATION, has_ended=False)
ENDED = replace(BOUND, has_ended=True)
QUIET = frozenset[GivenDevice]()


@dataclass
class World:
    """What a replica knows; tests change it between rounds."""

    records: tuple[GpuRecord, ...] = ()
    pods: dict[str, PodSight] = field(default_factory=dict)
    reports: dict[str, UseReport] = field(default_factory=dict)
    gone: dict[str, NodeGone] = field(default_factory=dict)
    now_ns: int = 1_000 * S
    followup: Followup = field(default_factory=Followup)

    def steps(self, pods: tuple[str, ...] = ()) -> tuple[Action, ...]:
        around = Around(
            LedgerSnapshot.of(Entry(x, str(x.version)) for x in self.records),
            lambda pod: self.pods.get(pod.uid or ""),
            self.reports.get,
            self.gone.get,
            self.now_ns,
        )
        return self.followup.steps(around, pods)

    def later(self, seconds: float) -> "World":
        self.now_ns += int(seconds * S)
        return self

    def report(self, *users: str, asked_s: float, given: Any = QUIET) -> None:
        used = {"GPU-a": frozenset[str | None](users)} if users else {}
        self.reports["gpu-1"] = UseReport("boot", int(asked_s * S), used, given)


def attempt(*gpus: str, pod: PodRef = POD) -> tuple[GpuRecord, ...]:
    names = gpus or ("GPU-a",)
    return tuple(record(holder(*names, pod=pod), gpu=x) for x in names)


def in_state(state: HolderState, **more: Any) -> GpuRecord:
    return record(holder("GPU-a", state=state, **more))


def moved(actions: tuple[Action, ...]) -> tuple[HolderState, tuple[str, ...]]:
    (one,) = actions
    assert isinstance(one, Rewrite)
    assert [x.gpu for _, x in one.entries] == list(one.change.gpus)
    return one.change.state, one.change.gpus


def pods_of(actions: tuple[Action, ...]) -> list[PodRef]:
    return [x.change.pod for x in actions if isinstance(x, Rewrite)]


def states(action: Action) -> set[HolderState]:
    assert isinstance(action, Rewrite)
    return {x.holder(action.change.reservation).state for _, x in action.entries}  # type: ignore[union-attr] # it is there


def test_a_bound_pod_confirms_all_its_gpus_at_once() -> None:
    world = World(attempt("GPU-a", "GPU-b"), {"uid-0": UNBOUND})
    assert world.steps() == ()
    world.pods["uid-0"] = BOUND
    found = world.steps()
    assert moved(found) == (HolderState.CONFIRMED, ("GPU-a", "GPU-b"))
    assert states(found[0]) == {HolderState.CONFIRMED}


def test_a_pod_bound_elsewhere_or_otherwise_gives_the_attempt_back() -> None:
    world = World(attempt(), {"uid-0": replace(BOUND, node="gpu-2")})
    assert moved(world.steps()) == (HolderState.REVOKED, ("GPU-a",))
    world.pods["uid-0"] = replace(BOUND, reservation="v1.k.other")
    assert moved(world.steps()) == (HolderState.RELEASING, ("GPU-a",))


def test_an_attempt_is_requeued_before_it_is_given_up() -> None:
    world = World(attempt(), {"uid-0": UNBOUND})
    assert world.steps() == ()
    assert world.later(89).steps() == ()
    assert world.later(2).steps() == (RequeuePod(RESERVATION, POD),)
    assert world.steps() == (RequeuePod(RESERVATION, POD),)
    world.followup.requeued(RESERVATION, UNBOUND, world.now_ns)
    assert moved(world.steps()) == (HolderState.EXPIRED, ("GPU-a",))


def test_a_requeue_may_find_the_pod_bound_or_gone() -> None:
    for answer, state in ((BOUND, HolderState.CONFIRMED), (PodGone(), HolderState.RELEASING)):
        world = World(attempt(), {"uid-0": UNBOUND})
        world.steps()
        world.later(91).steps()
        world.followup.requeued(RESERVATION, answer, world.now_ns)
        assert moved(world.steps()) == (state, ("GPU-a",))


@pytest.mark.parametrize("state", [x for x in HolderState if x.is_end])
def test_a_reservation_that_has_ended_is_left_alone(state: HolderState) -> None:
    world = World((in_state(state),), {"uid-0": UNBOUND})
    assert world.steps() == ()
    assert world.later(1_000).steps(("uid-0",)) == ()


def test_of_an_attempt_that_is_taken_in_part_the_first_gpu_knows_the_pod() -> None:
    """A pod that is there waits longer than one that nobody has seen."""
    part = holder("GPU-a", "GPU-b", origin=Origin.ADMISSION)
    unborn = replace(part, pod=PodRef("team-a", None, None, "owner-a"))
    world = World((record(part), record(unborn, gpu="GPU-b")), {"uid-0": UNBOUND})
    assert world.steps() == ()
    assert world.later(599).steps() == ()
    assert world.later(2).steps() == (RequeuePod(RESERVATION, POD),)
    world.followup.requeued(RESERVATION, UNBOUND, world.now_ns)
    found = world.steps()
    assert moved(found) == (HolderState.EXPIRED, ("GPU-a", "GPU-b"))
    assert pods_of(found) == [POD]


def test_what_no_pod_was_given_yet_is_free_when_the_pod_of_the_first_gpu_is_gone() -> None:
    part = holder("GPU-a", "GPU-b", "GPU-c", origin=Origin.ADMISSION)
    unborn = replace(part, pod=PodRef("team-a", None, None, "owner-a"))
    records = record(part), record(unborn, gpu="GPU-b"), record(unborn, gpu="GPU-c")
    world = World(records)
    assert world.steps() == ()
    assert world.later(121).steps() == (RequeuePod(RESERVATION, POD),)
    world.followup.requeued(RESERVATION, PodGone(), world.now_ns)
    given, unused = world.steps()
    assert moved((given,)) == (HolderState.RELEASING, ("GPU-a",))
    assert pods_of((given,)) == [POD]
    assert moved((unused,)) == (HolderState.EXPIRED, ("GPU-b", "GPU-c"))
    assert pods_of((unused,)) == [unborn.pod]


def test_a_retry_makes_an_earlier_requeue_void_and_does_not_begin_the_time_again() -> None:
    world = World(attempt(), {"uid-0": UNBOUND})
    world.steps()
    world.records = (record(replace(holder("GPU-a"), answers=2)),)
    assert world.later(89).steps() == ()
    assert world.later(2).steps() == (RequeuePod(RESERVATION, POD),)
    world.followup.requeued(RESERVATION, UNBOUND, world.now_ns)
    world.records = (record(replace(holder("GPU-a"), answers=3)),)
    assert world.steps() == (RequeuePod(RESERVATION, POD),)
    world.followup.requeued(RESERVATION, UNBOUND, world.now_ns)
    assert moved(world.steps()) == (HolderState.EXPIRED, ("GPU-a",))


def test_an_attempt_has_run_out_from_the_end_of_its_time_until_it_is_gone() -> None:
    world = World(attempt(), {"uid-0": UNBOUND})
    world.steps()
    world.later(89).steps()
    assert world.followup.run_out == frozenset()
    world.later(1).steps()
    assert world.followup.run_out == {POD}
    world.followup.requeued(RESERVATION, UNBOUND, world.now_ns)
    world.steps()
    assert world.followup.run_out == {POD}
    world.records = ()
    world.steps()
    assert world.followup.run_out == {POD}
    world.steps()
    assert world.followup.run_out == frozenset()


@pytest.mark.parametrize(
    ("after_s", "sight", "ran_out"),
    [
        (75, UNBOUND, True),
        (74.9, UNBOUND, False),
        (75, BOUND, False),
        (75, replace(UNBOUND, has_ended=True), False),
        (75, PodGone(), False),
        (75, None, False),
    ],
)
def test_another_replica_may_have_given_it_up_a_little_earlier(
    after_s: float, sight: PodSight, *, ran_out: bool
) -> None:
    world = World(attempt(), {"uid-0": UNBOUND})
    world.steps()
    world.records, world.pods["uid-0"] = (), sight
    world.later(after_s).steps()
    assert world.followup.run_out == ({POD} if ran_out else frozenset())


def test_what_was_reserved_at_a_pods_creation_costs_no_turn() -> None:
    """It may have waited for something else than its Binding."""
    early = replace(holder("GPU-a"), origin=Origin.ADMISSION)
    world = World((record(early),), {"uid-0": UNBOUND})
    world.steps()
    assert world.later(601).steps() == (RequeuePod(RESERVATION, POD),)
    assert world.followup.run_out == frozenset()
    world.records = ()
    world.steps()
    assert world.followup.run_out == frozenset()


def test_an_early_reservation_ends_whatever_its_bindings_were_answered() -> None:
    early = replace(holder("GPU-a"), origin=Origin.ADMISSION)
    world = World((record(early),), {"uid-0": UNBOUND})
    for answers in range(2, 62):
        world.steps()
        world.records = (record(replace(early, answers=answers)),)
        world.later(10)
    assert world.steps() == (RequeuePod(RESERVATION, POD),)


def test_answers_about_attempts_that_are_over_are_dropped() -> None:
    world = World()
    world.followup.requeued(RESERVATION, UNBOUND, world.now_ns)
    assert world.steps() == ()


def test_a_pod_that_the_copy_lacks_is_looked_for_and_keeps_what_it_has() -> None:
    for state in (HolderState.PROPOSED, HolderState.CONFIRMED, HolderState.RELEASING):
        assert World((in_state(state),)).steps() == (LookFor(POD),)
    two = World((in_state(HolderState.CONFIRMED), record(holder("GPU-b"), gpu="GPU-b")))
    assert two.steps() == (LookFor(POD),)


def test_an_unborn_pod_is_not_looked_for() -> None:
    unborn = replace(holder("GPU-a"), pod=PodRef("team-a", None, None, "owner-a"))
    assert World((record(unborn),)).steps() == ()


def test_the_end_of_a_pod_begins_the_release() -> None:
    for sight in (ENDED, PodGone()):
        world = World((in_state(HolderState.CONFIRMED),), {"uid-0": sight})
        assert moved(world.steps()) == (HolderState.RELEASING, ("GPU-a",))


def test_confirmed_ones_are_looked_at_for_a_cause_or_in_turn() -> None:
    pods = [PodRef("team-a", f"p-{n}", f"uid-{n}") for n in range(6)]
    records = tuple(
        record(holder(f"GPU-{n}", pod=pod, state=HolderState.CONFIRMED), gpu=f"GPU-{n}")
        for n, pod in enumerate(pods)
    )
    world = World(records, dict.fromkeys((f"uid-{n}" for n in range(6)), PodGone()))
    world.followup = Followup(in_turn=2)
    found = [_gpus(world.steps()) for _ in range(4)]
    assert sorted(gpu for each in found[:3] for gpu in each) == [f"GPU-{n}" for n in range(6)]
    assert {len(each) for each in found} == {2}
    assert found[3] == found[0]
    world.followup = Followup(in_turn=0)
    assert _gpus(world.steps(("uid-4", "uid-of-nobody"))) == ["GPU-4"]
    assert world.steps() == ()


def test_how_many_are_looked_at_in_turn() -> None:
    names = [f"GPU-{n}" for n in range(513)]
    records = [record(holder(x, state=HolderState.CONFIRMED), gpu=x) for x in names]
    world = World(tuple(records), {"uid-0": PodGone()})
    assert len(_gpus(world.steps())) == 512


def test_what_has_left_the_ledger_is_left_alone() -> None:
    for state in (HolderState.PROPOSED, HolderState.RELEASING):
        world = World((in_state(state),), {"uid-0": UNBOUND})
        world.steps()
        world.records = ()
        assert world.later(1_000).steps(("uid-0",)) == ()


def test_what_is_open_is_looked_at_in_every_round() -> None:
    world = World((*attempt(), record(holder("GPU-b", pod=OTHER_POD), gpu="GPU-b")))
    world.followup = Followup(in_turn=0)
    world.pods = {"uid-0": UNBOUND, "uid-1": replace(UNBOUND, uid="uid-1")}
    assert world.steps() == ()
    world.pods["uid-0"] = BOUND
    assert moved(world.steps()) == (HolderState.CONFIRMED, ("GPU-a",))


def test_an_attempt_that_was_gone_meanwhile_begins_again() -> None:
    world = World(attempt(), {"uid-0": UNBOUND})
    world.steps()
    world.records = ()
    assert world.later(91).steps() == ()
    world.records = attempt()
    assert world.steps() == ()
    assert world.later(89).steps() == ()
    assert world.later(2).steps() == (RequeuePod(RESERVATION, POD),)


def test_a_release_that_was_gone_meanwhile_begins_again() -> None:
    world = World((in_state(HolderState.RELEASING),), {"uid-0": ENDED})
    world.steps()
    world.report(asked_s=1_001)
    assert world.later(2).steps() == ()
    releasing, world.records = world.records, ()
    assert world.steps() == ()
    world.records = releasing
    assert world.later(2).steps() == ()
    world.report(asked_s=1_005)
    assert world.later(2).steps() == ()
    world.report(asked_s=1_006)
    assert moved(world.later(2).steps()) == (HolderState.RELEASED, ("GPU-a",))


def _gpus(actions: tuple[Action, ...]) -> list[str]:
    return [gpu for x in actions if isinstance(x, Rewrite) for gpu in x.change.gpus]


def test_two_quiet_reports_after_the_end_free_the_gpu() -> None:
    world = World((in_state(HolderState.RELEASING),), {"uid-0": ENDED})
    world.report(asked_s=990)
    assert world.steps() == ()
    world.report(asked_s=1_001)
    assert world.later(2).steps() == ()
    assert world.steps() == ()
    world.report("uid-0", asked_s=1_002)
    assert world.later(2).steps() == ()
    world.report(asked_s=1_003)
    assert world.later(2).steps() == ()
    world.report(asked_s=1_004, given=None)
    assert world.later(2).steps() == ()
    world.report(asked_s=1_005)
    assert world.later(2).steps() == ()
    world.report(asked_s=1_006)
    found = world.later(2).steps()
    assert moved(found) == (HolderState.RELEASED, ("GPU-a",))
    assert isinstance(found[0], Rewrite)
    assert found[0].entries[0][1].is_closed


def test_pods_matter_on_nodes_where_something_is_being_released() -> None:
    world = World((in_state(HolderState.RELEASING),), {"uid-0": ENDED})
    assert world.followup.releasing_nodes == frozenset()
    world.steps()
    assert world.followup.releasing_nodes == {"gpu-1"}
    calm = World((in_state(HolderState.CONFIRMED),), {"uid-0": BOUND})
    calm.steps()
    assert calm.followup.releasing_nodes == frozenset()


def test_a_node_s_report_is_awaited_until_it_has_shown_the_end_twice() -> None:
    world = World((in_state(HolderState.RELEASING),), {"uid-0": ENDED})
    assert world.followup.awaited == {}
    world.steps()
    assert world.followup.awaited == {"gpu-1": AwaitedReport(1_000 * S, 0, is_half_shown=False)}
    world.report("uid-0", asked_s=1_001)
    world.later(2).steps()
    asked_ns = 1_001 * S
    assert world.followup.awaited == {"gpu-1": AwaitedReport(1_000 * S, asked_ns, False)}
    world.report(asked_s=1_002)
    world.later(2).steps()
    asked_ns = 1_002 * S
    assert world.followup.awaited == {"gpu-1": AwaitedReport(1_000 * S, asked_ns, True)}
    world.report(asked_s=1_003)
    world.later(2).steps()
    assert world.followup.awaited == {}
    assert world.followup.releasing_nodes == {"gpu-1"}


def test_of_several_ends_the_last_one_counts_and_any_that_is_half_shown() -> None:
    first = in_state(HolderState.RELEASING)
    second = record(
        holder("GPU-b", pod=OTHER_POD, reservation="v1.k.uid-9", state=HolderState.RELEASING),
        gpu="GPU-b",
    )
    world = World((first,), {"uid-0": ENDED, OTHER_POD.uid or "": ENDED})
    world.steps()
    world.report(asked_s=1_001)
    world.records = (first, second)
    world.later(5).steps()
    asked_ns = 1_001 * S
    assert world.followup.awaited == {"gpu-1": AwaitedReport(1_005 * S, asked_ns, True)}


def test_nothing_is_awaited_from_a_node_whose_pod_may_live() -> None:
    """Its reports would prove nothing."""
    world = World((in_state(HolderState.RELEASING),), {"uid-0": BOUND})
    world.steps()
    assert world.followup.awaited == {}
    world.pods["uid-0"] = None
    world.steps()
    assert world.followup.awaited == {}
    attempts = World(attempt(), {"uid-0": ENDED})
    attempts.steps()
    assert attempts.followup.awaited == {}


def test_a_release_says_when_its_pod_had_ended() -> None:
    world = World((in_state(HolderState.CONFIRMED),), {"uid-0": ENDED})
    (begun,) = world.steps()
    assert isinstance(begun, Rewrite)
    assert begun.ended_ns is None
    world.records = (in_state(HolderState.RELEASING),)
    world.later(3).steps()
    world.report(asked_s=1_004)
    assert world.later(1).steps() == ()
    world.report(asked_s=1_005)
    (released,) = world.later(1).steps()
    assert isinstance(released, Rewrite)
    assert released.ended_ns == 1_003 * S


@pytest.mark.parametrize(
    "more",
    [{"origin": Origin.KUBELET}, {"restored": True}],
    ids=["kubelet gave it", "nobody saw its end"],
)
def test_the_release_of_what_is_no_claim_is_not_measured(more: dict[str, Any]) -> None:
    """On a `plugin` node kubelet counts, and names no device for a minute when it has started."""
    world = World((in_state(HolderState.RELEASING, **more),), {"uid-0": ENDED})
    world.steps()
    world.report(asked_s=1_001)
    assert world.later(2).steps() == ()
    world.report(asked_s=1_062)
    found = world.later(60).steps()
    assert moved(found) == (HolderState.RELEASED, ("GPU-a",))
    assert isinstance(found[0], Rewrite)
    assert found[0].ended_ns is None


def test_the_release_of_a_deleted_node_s_gpu_is_not_measured() -> None:
    """Nobody can have the GPU, and five minutes are waited for the node."""
    world = World((in_state(HolderState.RELEASING),), {"uid-0": ENDED})
    world.gone["gpu-1"] = NodeGone(world.now_ns)
    assert world.steps() == ()
    found = world.later(301).steps()
    assert moved(found) == (HolderState.RELEASED, ("GPU-a",))
    assert isinstance(found[0], Rewrite)
    assert found[0].ended_ns is None


def test_between_whole_rounds_no_turn_is_taken() -> None:
    records = tuple(
        record(
            holder(f"GPU-{x}", reservation=f"v1.k.{x}", state=HolderState.CONFIRMED), gpu=f"GPU-{x}"
        )
        for x in "abc"
    )
    world = World(records, {"uid-0": ENDED})
    world.followup = Followup(in_turn=2)
    around = Around(
        LedgerSnapshot.of(Entry(x, "1") for x in records),
        lambda _pod: ENDED,
        world.reports.get,
        world.gone.get,
        world.now_ns,
    )
    assert world.followup.steps(around, in_turn=False) == ()
    first = _gpus(world.followup.steps(around))
    assert world.followup.steps(around, in_turn=False) == ()
    rest = _gpus(world.followup.steps(around))
    assert (len(first), len(rest)) == (2, 1)
    assert sorted((*first, *rest)) == ["GPU-a", "GPU-b", "GPU-c"]


def test_a_pod_that_lives_after_all_is_not_released() -> None:
    world = World((in_state(HolderState.RELEASING),), {"uid-0": ENDED})
    world.steps()
    world.report(asked_s=1_001)
    world.later(2).steps()
    world.pods["uid-0"] = BOUND
    world.report(asked_s=1_003)
    assert world.later(2).steps() == ()
    world.pods["uid-0"] = ENDED
    assert world.steps() == ()


def test_a_deleted_node_is_waited_for_and_must_stay_silent() -> None:
    world = World((in_state(HolderState.CONFIRMED),), {"uid-0": BOUND})
    world.gone["gpu-1"] = NodeGone(world.now_ns)
    assert moved(world.steps()) == (HolderState.RELEASING, ("GPU-a",))
    world.records = (in_state(HolderState.RELEASING),)
    assert world.steps() == ()
    world.report("uid-0", asked_s=1_100)
    assert world.later(399).steps() == ()
    assert moved(world.later(2).steps()) == (HolderState.RELEASED, ("GPU-a",))


def test_sharers_end_one_by_one() -> None:
    parts: list[Holder] = [
        replace(holder("GPU-a", pod=pod), state=HolderState.CONFIRMED) for pod in (POD, OTHER_POD)
    ]
    world = World((record(*parts),), {"uid-0": ENDED, "uid-1": replace(BOUND, uid="uid-1")})
    (found,) = world.steps()
    assert isinstance(found, Rewrite)
    successor = found.entries[0][1]
    assert [x.state for x in successor.holders] == [HolderState.RELEASING, HolderState.CONFIRMED]
    assert found.change.pod == POD
    world.pods = {"uid-0": BOUND, "uid-1": PodGone()}
    assert pods_of(world.steps()) == [OTHER_POD]


# --- A confirmed pod that is found unbound was put back: believed after a touch, never by the cop

PART = holder(state=HolderState.CONFIRMED)
HERE = LedgerSnapshot.of([Entry(bound_in_state(HolderState.CONFIRMED), "1")])
STILL_BOUND = PodSeen("uid-0", "gpu-1", PART.reservation, has_ended=False)
OTHER = PodSeen("uid-0", "gpu-1", "v1.k.other", has_ended=False)


def requeues(apart: Apart, now_ns: int, snapshot: LedgerSnapshot = HERE) -> list[str]:
    return [x.reservation for x in apart.due(snapshot, now_ns)]


@pytest.mark.parametrize("sight", [UNBOUND, OTHER])
def test_it_counts_as_gone_once_the_api_server_has_said_so(sight: PodSeen) -> None:
    apart = Apart()
    assert apart.sight(PART, sight, 0) is sight
    assert requeues(apart, APART_NS - 1) == []
    assert requeues(apart, APART_NS) == [PART.reservation]
    assert requeues(apart, APART_NS + 1) == []
    assert apart.sight(PART, sight, APART_NS + 1) is sight
    assert requeues(apart, 2 * APART_NS) == [PART.reservation]
    apart.requeued(PART.reservation, sight)
    assert apart.sight(PART, sight, 2 * APART_NS) == PodGone()
    assert requeues(apart, 9 * APART_NS) == []


def test_a_copy_that_lagged_proves_nothing() -> None:
    apart = Apart()
    apart.sight(PART, UNBOUND, 0)
    apart.requeued(PART.reservation, STILL_BOUND)
    assert apart.sight(PART, UNBOUND, 1) is UNBOUND
    assert apart.sight(PART, STILL_BOUND, 2) is STILL_BOUND
    assert requeues(apart, 9 * APART_NS) == []


def test_an_answer_that_nobody_asked_for_proves_nothing() -> None:
    apart = Apart()
    apart.requeued(PART.reservation, UNBOUND)
    assert apart.sight(PART, UNBOUND, 0) is UNBOUND


def test_bound_again_it_is_itself_again() -> None:
    apart = Apart()
    apart.sight(PART, UNBOUND, 0)
    apart.requeued(PART.reservation, UNBOUND)
    assert apart.sight(PART, STILL_BOUND, 1) is STILL_BOUND
    assert apart.sight(PART, UNBOUND, 2) is UNBOUND


@pytest.mark.parametrize(
    "sight",
    [
        None,
        PodGone(),
        STILL_BOUND,
        PodSeen("uid-0", "", PART.reservation, has_ended=False),
        PodSeen("uid-0", "gpu-1", None, has_ended=False),
        PodSeen("uid-0", "", None, has_ended=True),
    ],
    ids=["unknown", "gone", "bound", "waits with its reservation", "kubelet chose", "ended"],
)
def test_others_are_not_requeued(sight: PodSight) -> None:
    apart = Apart()
    assert apart.sight(PART, sight, 0) is sight
    assert requeues(apart, 9 * APART_NS) == []
    apart.requeued(PART.reservation, UNBOUND)
    assert requeues(apart, 9 * APART_NS) == []


def test_what_the_ledger_no_longer_has_is_forgotten() -> None:
    apart = Apart()
    apart.sight(PART, UNBOUND, 0)
    apart.requeued(PART.reservation, UNBOUND)
    assert requeues(apart, 0, LedgerSnapshot()) == []
    assert apart.sight(PART, UNBOUND, 1) is UNBOUND


# --- What a report of a plugin node shows for certain

SHOWING = Showing(NODE, frozenset(CARDS))


def test_a_report_counts_once_the_pod_was_known_before_it_was_asked_for() -> None:
    allocations, pods = KubeletAllocations(), SomeBoundPods([bound()])
    given = (GivenGpu(ref(), NODE, "GPU-a"),)
    assert allocations.due(SHOWING, use_report(device(), asked_ns=100), pods, 200) == ()
    assert allocations.due(SHOWING, use_report(device(), asked_ns=200), pods, 300) == ()
    assert allocations.due(SHOWING, use_report(device(), asked_ns=201), pods, 400) == given
    assert allocations.due(SHOWING, use_report(device(), asked_ns=300), pods, 500) == given


def test_what_is_shown_too_early_is_awaited_until_the_next_report() -> None:
    allocations, pods = KubeletAllocations(), SomeBoundPods([bound()])
    given = {GivenGpu(ref(), NODE, "GPU-a")}
    for asked_ns, now_ns, awaited in ((100, 200, given), (200, 300, given), (201, 400, set())):
        report = use_report(device(), asked_ns=asked_ns)
        allocations.due(SHOWING, report, pods, now_ns)
        assert allocations.awaited(NODE, report) == awaited
        assert allocations.awaited("gpu-2", report) == frozenset()


def test_another_pod_of_the_name_begins_again() -> None:
    allocations = KubeletAllocations()
    first, second = SomeBoundPods([bound()]), SomeBoundPods([bound(uid="uid-9")])
    allocations.due(SHOWING, use_report(device(), asked_ns=100), first, 200)
    assert allocations.due(SHOWING, use_report(device(), asked_ns=300), second, 400) == ()
    later = use_report(device(), asked_ns=500)
    (found,) = allocations.due(SHOWING, later, second, 600)
    assert found.pod.uid == "uid-9"


def test_what_is_not_shown_any_more_begins_again() -> None:
    allocations, pods = KubeletAllocations(), SomeBoundPods([bound()])
    allocations.due(SHOWING, use_report(device(), asked_ns=100), pods, 200)
    assert allocations.due(SHOWING, use_report(asked_ns=300), pods, 400) == ()
    assert allocations.due(SHOWING, use_report(device(), asked_ns=500), pods, 600) == ()
    allocations.forget(NODE)
    assert allocations.due(SHOWING, use_report(device(), asked_ns=700), pods, 800) == ()


def test_a_report_without_kubelet_says_nothing_and_forgets_nothing() -> None:
    allocations, pods = KubeletAllocations(), SomeBoundPods([bound()])
    allocations.due(SHOWING, use_report(device(), asked_ns=100), pods, 200)
    silent = replace(use_report(asked_ns=300), given=None)
    assert allocations.due(SHOWING, silent, pods, 400) == ()
    assert len(allocations.due(SHOWING, use_report(device(), asked_ns=500), pods, 600)) == 1


def test_each_gpu_by_itself_and_slices_of_time_once() -> None:
    allocations = KubeletAllocations()
    pods = SomeBoundPods([bound(), bound("train-1")])
    shown = use_report(device(gpu="GPU-b"), device(), device("train-1", "GPU-c::2"), asked_ns=300)
    allocations.due(SHOWING, shown, pods, 200)
    found = allocations.due(SHOWING, shown, pods, 300)
    assert [(x.pod.name, x.gpu) for x in found] == [
        ("train-0", "GPU-a"),
        ("train-0", "GPU-b"),
        ("train-1", "GPU-c"),
    ]


def test_pods_that_share_a_gpu_in_slices_come_by_uid() -> None:
    names = [f"train-{n}" for n in range(9)]
    shown = use_report(*(device(x, "GPU-a::1") for x in names), asked_ns=300)
    allocations, pods = KubeletAllocations(), SomeBoundPods([bound(x) for x in names])
    allocations.due(SHOWING, shown, pods, 200)
    assert [x.pod.name for x in allocations.due(SHOWING, shown, pods, 300)] == names


def test_only_the_node_s_own_gpus_and_its_managed_pods() -> None:
    pods = SomeBoundPods(
        [bound("elsewhere", node="gpu-2"), bound("plain", needs=None), bound("foreign")]
    )
    shown = use_report(
        device("elsewhere"),
        device("plain"),
        device("foreign", "GPU-of-another-node"),
        device("foreign", "pool/gpu-0"),
        device("unknown"),
        asked_ns=300,
    )
    allocations = KubeletAllocations()
    allocations.due(SHOWING, shown, pods, 200)
    assert allocations.due(SHOWING, shown, pods, 300) == ()


def test_a_node_s_gpus_are_those_of_its_accepted_inventory() -> None:
    cards = [
        gpu(0, "GPU-a", lost=True),
        gpu(1, "GPU-b", mig=True, mig_devices=[mig_slice("MIG-c")]),
    ]
    found = Showing.of(NODE, acceptance(hash_of("a"), cards))
    assert found == Showing(NODE, frozenset({"GPU-a", "GPU-b", "MIG-c"}))
