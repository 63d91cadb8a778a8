"""The next steps of reservations, from what one replica knows."""

from dataclasses import dataclass, field, replace
from typing import Any

from controller.binding.reconciliation import Action, Around, Followup, LookFor, Rewrite, TouchPod
from controller.ledger.record import (
    GpuRecord,
    Holder,
    HolderState,
    PodGone,
    PodRef,
    PodSeen,
    PodSight,
)
from controller.ledger.release import GivenDevice, NodeGone, UseReport
from controller.ledger.store import Entry, LedgerSnapshot
from tests.builders.ledger import OTHER_POD, POD, holder, record

S = 1_000_000_000
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


def test_an_attempt_is_touched_before_it_is_given_up() -> None:
    world = World(attempt(), {"uid-0": UNBOUND})
    assert world.steps() == ()
    assert world.later(89).steps() == ()
    assert world.later(2).steps() == (TouchPod(RESERVATION, POD),)
    assert world.steps() == (TouchPod(RESERVATION, POD),)
    world.followup.touched(RESERVATION, UNBOUND, world.now_ns)
    assert moved(world.steps()) == (HolderState.EXPIRED, ("GPU-a",))


def test_a_touch_may_find_the_pod_bound_or_gone() -> None:
    for answer, state in ((BOUND, HolderState.CONFIRMED), (PodGone(), HolderState.RELEASING)):
        world = World(attempt(), {"uid-0": UNBOUND})
        world.steps()
        world.later(91).steps()
        world.followup.touched(RESERVATION, answer, world.now_ns)
        assert moved(world.steps()) == (state, ("GPU-a",))


def test_a_retry_begins_the_time_anew() -> None:
    world = World(attempt(), {"uid-0": UNBOUND})
    world.steps()
    world.later(91).steps()
    world.followup.touched(RESERVATION, UNBOUND, world.now_ns)
    world.records = (record(replace(holder("GPU-a"), answers=2)),)
    assert world.steps() == ()
    assert world.later(89).steps() == ()
    assert world.later(2).steps() == (TouchPod(RESERVATION, POD),)


def test_answers_about_attempts_that_are_over_are_dropped() -> None:
    world = World()
    world.followup.touched(RESERVATION, UNBOUND, world.now_ns)
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
    found = [_gpus(world.steps()) for _ in range(3)]
    assert sorted(gpu for each in found for gpu in each) == [f"GPU-{n}" for n in range(6)]
    assert {len(each) for each in found} == {2}
    world.followup = Followup(in_turn=0)
    assert _gpus(world.steps(("uid-4", "uid-of-nobody"))) == ["GPU-4"]
    assert world.steps() == ()


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
