"""A pod whose Bindings are let through and never stored: its GPU goes to others."""

import pytest

from controller.binding.turns import (
    LONGEST_NS,
    MOST,
    LostTurns,
    RecentDenials,
    after_loss,
)
from controller.ledger.record import HolderState, PodRef
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.bindings import NODE
from tests.fakes.binding_world import BindingWorld, Replica

S = 1_000_000_000
GPU = f"GPU-{NODE}-0"
RETRY_S = 10
"""kube-scheduler's longest back-off."""
A = PodRef("team-a", "a", "uid-a")
B = PodRef("team-a", "b", "uid-b")


async def rounds(world: BindingWorld, *replicas: Replica, seconds: int = RETRY_S) -> None:
    """As many rounds of each replica, one a second."""
    for _ in range(seconds):
        world.report()
        for each in replicas:
            await each.reconciler.round()
            await each.reconciler.round()


async def test_a_binding_that_is_refused_for_ever_holds_its_gpu_for_its_time_alone() -> None:
    """Another webhook on `pods/binding` refuses what ours lets through; retries do not count."""
    world = BindingWorld(1)
    me, other = await world.replica("a"), await world.replica("b")
    world.pod("refused"), world.pod("waits")
    assert not (await me.bind("refused")).refusals
    taken_s = 0
    for second in range(RETRY_S, 340, RETRY_S):
        await rounds(world, me, other)
        for each in (me, other):
            await each.bind("refused")
        verdict = await other.bind("waits")
        if world.lands("waits", verdict):
            taken_s = second
            break
        assert [x.code for x in verdict.refusals] == [ReasonCode.GPU_BUSY]
    assert 90 <= taken_s <= 100
    assert world.assigned() == {"waits": (GPU,)}
    await rounds(world, me, other)
    assert world.states() == {GPU: ["Confirmed"]}


async def test_whose_turn_is_over_is_refused_by_every_replica_and_then_tried_again() -> None:
    world = BindingWorld(1)
    me, other = await world.replica("a"), await world.replica("b")
    world.pod("refused")
    await me.bind("refused")
    await rounds(world, me, other, seconds=92)
    assert world.states() == {}
    for each in (me, other):
        (refusal,) = (await each.bind("refused")).refusals
        assert refusal.code is ReasonCode.RESERVATION_EXPIRED
        assert len(each.turns) == 1
    requeues = world.pods.requeues.count("refused")
    await rounds(world, me, other, seconds=91)
    assert world.pods.requeues.count("refused") > requeues
    assert not (await me.bind("refused")).refusals
    assert world.lands("refused", await me.bind("refused"))
    await rounds(world, me, other, seconds=1)
    assert (len(me.turns), len(other.turns)) == (0, 0)


async def test_a_pod_that_is_gone_has_no_turn() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    world.pod("refused")
    await me.bind("refused")
    await rounds(world, me, seconds=92)
    assert len(me.turns) == 1
    del world.pods.stored["refused"]
    world.pods.catch_up()
    await rounds(world, me, seconds=1)
    assert len(me.turns) == 0


async def test_a_claim_that_was_taken_back_at_once_costs_no_turn() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    world.pod("train-0")
    await me.bind("train-0")
    await rounds(world, me, seconds=5)
    (entry,) = world.store.snapshot().entries.values()
    (holder,) = entry.record.holders
    await world.store.compare_and_set(
        entry, entry.record.moved(holder.reservation, HolderState.REVOKED)
    )
    await rounds(world, me, seconds=1)
    assert len(me.turns) == 0
    assert not (await me.bind("train-0")).refusals


@pytest.mark.parametrize(
    ("lost", "seconds"), [(1, 90), (2, 180), (3, 360), (4, 720), (5, 1440), (6, 1440)]
)
def test_each_further_loss_costs_twice_as_long_up_to_a_limit(lost: int, seconds: int) -> None:
    turn = None
    for _ in range(lost):
        turn = after_loss(turn, 0 if turn is None else turn.until_ns)
    assert turn is not None
    before = sum(min(90 * 2**x, 1440) for x in range(lost - 1))
    assert turn.until_ns == (before + seconds) * S


def test_a_loss_while_others_go_first_is_the_same_loss() -> None:
    turn = after_loss(None, 0)
    assert after_loss(turn, 90 * S - 1) == turn
    assert after_loss(turn, 90 * S).lost == 2


def test_a_turn_is_back_once_and_a_later_loss_is_counted_on() -> None:
    turns = LostTurns()
    turns.lose(A, 0)
    turns.lose(B, 5 * S)
    assert turns.refusal("uid-a", 90 * S - 1) is not None
    assert turns.refusal("uid-a", 90 * S) is None
    assert turns.refusal("uid-c", 0) is None
    assert turns.take_back(90 * S - 1) == ()
    assert turns.take_back(90 * S) == (A,)
    assert turns.take_back(90 * S) == ()
    turns.lose(A, 200 * S)
    assert turns.refusal("uid-a", 379 * S) is not None
    assert turns.take_back(379 * S) == (B,)
    assert turns.take_back(380 * S) == (A,)


def test_what_is_long_over_or_bound_is_forgotten() -> None:
    turns = LostTurns()
    turns.lose(A, 0)
    turns.lose(B, 0)
    turns.keep(lambda pod: pod == B, 90 * S)
    assert len(turns) == 1
    turns.take_back(90 * S)
    turns.keep(lambda _pod: True, 90 * S + LONGEST_NS - 1)
    assert len(turns) == 1
    turns.keep(lambda _pod: True, 90 * S + LONGEST_NS)
    assert len(turns) == 0


def test_beyond_so_many_the_oldest_is_forgotten() -> None:
    turns = LostTurns()
    for number in range(MOST + 1):
        turns.lose(PodRef("ns", "x", f"uid-{number}"), 0)
    assert len(turns) == MOST
    assert turns.refusal("uid-0", 1) is None
    assert turns.refusal("uid-1", 1) is not None


# --- Denials are remembered for a while, and not too many of them

C = PodRef("team-a", "c", "uid-c")
BUSY = Refusal(ReasonCode.LEDGER_CONFLICT, "others were faster")
PRIVILEGED = Refusal(ReasonCode.BYPASS_PRIVILEGED, "container train")


def test_a_denial_lasts_for_a_while() -> None:
    denials = RecentDenials(kept_ns=5 * S)
    denials.add(A, "n1", BUSY, 0)
    denials.add(A, "n2", BUSY, 3 * S)
    denials.add(B, "n1", BUSY, 3 * S)
    assert denials.nodes("uid-a", 4 * S) == {"n1", "n2"}
    assert denials.nodes("uid-a", 5 * S) == {"n2"}
    assert denials.nodes("uid-c", 4 * S) == frozenset()
    assert denials.forget_ended(5 * S) == (A,)
    assert denials.forget_ended(5 * S) == ()
    assert denials.nodes("uid-a", 5 * S) == {"n2"}
    assert denials.forget_ended(8 * S) == (A, B)
    assert len(denials) == 0
    assert denials.nodes("uid-b", 8 * S) == frozenset()


@pytest.mark.parametrize("code", ReasonCode)
def test_only_what_time_cures_is_tried_again_by_itself(code: ReasonCode) -> None:
    denials = RecentDenials(kept_ns=5 * S)
    denials.add(A, "n1", Refusal(code), 0)
    about_the_pod = code is ReasonCode.REQ_INVALID or code.startswith("BYPASS_")
    by_time = {
        "AUDIT_UNAVAILABLE",
        "BINDING_STALE",
        "CONTROLLER_NOT_READY",
        "BINDING_DENIED_RECENTLY",
        "GPU_BUSY",
        "LEDGER_CONFLICT",
        "LEDGER_UNAVAILABLE",
        "POD_UNKNOWN",
    }
    assert (denials.of_pod("uid-a", 1) is not None) == about_the_pod
    assert (denials.nodes("uid-a", 1) == {"n1"}) != about_the_pod
    assert denials.forget_ended(5 * S) == ((A,) if code in by_time else ())


def test_a_denial_that_is_about_the_pod_lasts_as_long_as_the_scheduler_s_patience() -> None:
    denials = RecentDenials()
    denials.add(A, "n1", PRIVILEGED, 0)
    denials.add(A, "n2", PRIVILEGED, 1 * S)
    assert denials.of_pod("uid-b", 0) is None
    assert denials.of_pod("uid-a", 301 * S - 1) == PRIVILEGED
    assert denials.of_pod("uid-a", 301 * S) is None
    assert len(denials) == 1
    denials.forget_ended(301 * S - 1)
    assert len(denials) == 1
    denials.forget_ended(301 * S)
    assert len(denials) == 0


def test_another_denial_begins_again() -> None:
    denials = RecentDenials(kept_ns=5 * S)
    denials.add(A, "n1", BUSY, 0)
    denials.add(A, "n2", BUSY, 1 * S)
    denials.add(A, "n1", BUSY, 4 * S)
    assert denials.forget_ended(6 * S) == (A,)
    assert denials.nodes("uid-a", 8 * S) == {"n1"}
    assert len(denials) == 1


@pytest.mark.parametrize("refusal", [BUSY, PRIVILEGED])
def test_the_oldest_goes_first(refusal: Refusal) -> None:
    denials = RecentDenials(kept_ns=5 * S, most=2)
    for pod in (A, B, C):
        denials.add(pod, "n", refusal, 0)
    assert len(denials) == 2
    known = [denials.nodes(f"uid-{x}", 4) or denials.of_pod(f"uid-{x}", 4) for x in "abc"]
    assert [bool(x) for x in known] == [False, True, True]


def test_how_long_and_how_many_denials_are_remembered() -> None:
    denials = RecentDenials()
    for number in range(4097):
        denials.add(PodRef("ns", "x", f"pod-{number}"), "n", BUSY, 0)
    assert len(denials) == 4096
    assert denials.nodes("pod-4096", 5 * S - 1) == {"n"}
    assert denials.nodes("pod-4096", 5 * S) == frozenset()
