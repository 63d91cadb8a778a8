import asyncio
from dataclasses import replace

import pytest

from controller.ledger.attempt import (
    DEFAULT_LIMITS,
    AttemptWatch,
    Confirmed,
    Move,
    Requeue,
    Step,
    Wait,
    after_requeue,
    attempt_step,
    finalize_on,
    watch_attempt,
)
from controller.ledger.claim import (
    Claim,
    Claimant,
    Claimed,
    Held,
    Taken,
    Write,
    bound_to_pod,
    claim_on,
    open_attempt,
    rolled_back,
)
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
    ShareGroup,
)
from controller.ledger.restore import LivePod, restored_for_pod
from controller.ledger.store import MOST_LOST, Entry, LedgerSnapshot
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.ledger import CALL, OTHER_POD, POD, SHARE, claim, holder, in_state, record
from tests.fakes.ledger_store import FaultyLedgerStore, MemoryLedgerStore

S = 1_000_000_000
NOW = 1_000 * S
UNBOUND = PodSeen("uid-0", "", None, has_ended=False)
BOUND = PodSeen("uid-0", "gpu-1", "v1.k.uid-0", has_ended=False)
EARLY = holder(origin=Origin.ADMISSION)
UNBORN = holder(origin=Origin.ADMISSION, pod=PodRef("team-a", "train-0"))


def step(
    part: Holder, pod: PodSight, age_s: int, requeue_answer: PodSeen | PodGone | None = None
) -> Step:
    watch = AttemptWatch((part,), NOW, requeue_answer, NOW + age_s * S)
    return attempt_step(watch, "gpu-1", pod, NOW + age_s * S, DEFAULT_LIMITS)


@pytest.mark.parametrize("part", [holder(), EARLY])
@pytest.mark.parametrize("age_s", [0, 10_000])
class TestWhatIsSeenCountsAtOnce:
    def test_bound_under_it(self, part: Holder, age_s: int) -> None:
        assert step(part, BOUND, age_s) == Move(HolderState.CONFIRMED, "its pod is bound")

    @pytest.mark.parametrize("pod", [PodGone(), replace(BOUND, has_ended=True)])
    def test_at_its_end(self, part: Holder, age_s: int, pod: PodSight) -> None:
        assert step(part, pod, age_s) == Move(HolderState.RELEASING, "its pod has ended")
        assert step(part, pod, age_s, requeue_answer=UNBOUND) == step(part, pod, age_s)

    def test_bound_elsewhere(self, part: Holder, age_s: int) -> None:
        found = step(part, replace(BOUND, node="gpu-2"), age_s)
        assert found == Move(HolderState.REVOKED, "its pod was bound to another node")

    @pytest.mark.parametrize("other", ["v1.k.other", None])
    def test_bound_here_under_another_is_for_the_node_to_tell(
        self, part: Holder, age_s: int, other: str | None
    ) -> None:
        found = step(part, replace(BOUND, reservation=other), age_s)
        assert isinstance(found, Move)
        assert found.to is HolderState.RELEASING


@pytest.mark.parametrize(
    ("part", "pod", "limit_s"),
    [
        (holder(), UNBOUND, 90),
        (holder(), None, 90),
        (EARLY, UNBOUND, 600),
        (EARLY, None, 120),
    ],
)
class TestPatience:
    def test_it_is_left_alone_until_then(self, part: Holder, pod: PodSight, limit_s: int) -> None:
        assert step(part, pod, limit_s - 1) == Wait(NOW + limit_s * S)

    def test_then_the_pod_is_requeued(self, part: Holder, pod: PodSight, limit_s: int) -> None:
        assert step(part, pod, limit_s) == Requeue()

    def test_the_answer_to_the_requeue_decides(
        self, part: Holder, pod: PodSight, limit_s: int
    ) -> None:
        later = max(limit_s, 600)
        assert step(part, pod, later, UNBOUND) == Move(HolderState.EXPIRED, "it was never bound")
        assert step(part, pod, limit_s, BOUND) == Move(HolderState.CONFIRMED, "its pod is bound")
        assert step(part, pod, limit_s, PodGone()) == Move(
            HolderState.RELEASING, "its pod has ended"
        )


def test_a_requeue_from_before_its_time_was_over_does_not_count() -> None:
    """A pod that the copy lacked at first is requeued then, and once more at its own end."""
    watch = after_requeue(AttemptWatch((EARLY,), NOW), UNBOUND, NOW + 121 * S)

    def at(age_s: int) -> Step:
        return attempt_step(watch, "gpu-1", UNBOUND, NOW + age_s * S, DEFAULT_LIMITS)

    assert [at(121), at(599)] == [Wait(NOW + 600 * S)] * 2
    assert at(600) == Requeue()
    watch = after_requeue(watch, UNBOUND, NOW + 600 * S)
    assert at(601) == Move(HolderState.EXPIRED, "it was never bound")


def test_an_unborn_pods_expires_without_anybody_to_requeue() -> None:
    assert step(UNBORN, None, 119) == Wait(NOW + 120 * S)
    assert step(UNBORN, None, 120) == Move(HolderState.EXPIRED, "its pod never came")


def test_a_further_answer_makes_a_requeue_void_and_does_not_begin_the_time_again() -> None:
    watch = after_requeue(watch_attempt(None, (holder(),), NOW), UNBOUND, NOW + 3)
    assert watch == AttemptWatch((holder(),), NOW, UNBOUND, NOW + 3)
    assert watch_attempt(watch, (holder(),), NOW + 5) is watch
    again = watch_attempt(watch, (holder(answers=2),), NOW + 5)
    assert again == AttemptWatch((holder(answers=2),), NOW, None)
    anew = watch_attempt(watch, (holder(call="f" * 16),), NOW + 5)
    assert anew == AttemptWatch((holder(call="f" * 16),), NOW, None)


@pytest.mark.parametrize(
    "other",
    [
        (UNBORN,),
        (holder(pod=OTHER_POD),),
        (holder(), holder()),
        (holder("GPU-a", "GPU-b"),),
    ],
)
def test_another_attempt_has_its_own_time(other: tuple[Holder, ...]) -> None:
    """A pod that was unborn may come as late as a request may take since it has its UID."""
    watch = AttemptWatch((holder(),), NOW, UNBOUND, NOW + 3)
    assert watch_attempt(watch, other, NOW + 5) == AttemptWatch(other, NOW + 5)


LIVE = LivePod(POD, "gpu-1", "v1.k.uid-0", ("GPU-a",))
PART = holder(state=HolderState.CONFIRMED, restored=True)


def test_a_lost_record_is_made_again_as_confirmed() -> None:
    assert restored_for_pod(None, LIVE, "GPU-a", CALL) == record(PART)
    shared = restored_for_pod(None, replace(LIVE, share=SHARE), "GPU-a", CALL)
    assert shared == record(PART, share=SHARE)


def test_nobody_is_driven_out() -> None:
    theirs = record(holder(pod=OTHER_POD))
    both = restored_for_pod(theirs, LIVE, "GPU-a", CALL)
    assert both is not None
    assert both.holders == (PART, theirs.holders[0])
    both.demand_valid()


@pytest.mark.parametrize("share", [None, replace(SHARE, entry="gpu-1:0,1")])
def test_beside_a_share_group_only_its_own_are_of_it(share: ShareGroup | None) -> None:
    """A pod of the same owner may have had the GPU alone, or in another group."""
    group = record(holder(pod=OTHER_POD), share=SHARE)
    own = restored_for_pod(group, replace(LIVE, share=SHARE), "GPU-a", CALL)
    assert own is not None
    assert own.is_shared_by(SHARE)
    assert own.holders[0] == PART
    other = restored_for_pod(group, replace(LIVE, share=share), "GPU-a", CALL)
    assert other is not None
    assert not other.is_shared_by(SHARE)
    assert (other.share, other.holders[0]) == (SHARE, PART.without_owner())


def test_an_attempt_is_confirmed_and_the_rest_stays() -> None:
    assert restored_for_pod(record(), LIVE, "GPU-a", CALL) == record().moved(
        "v1.k.uid-0", HolderState.CONFIRMED
    )
    for state in (HolderState.CONFIRMED, HolderState.RELEASING):
        assert restored_for_pod(in_state(state), LIVE, "GPU-a", CALL) is None


def test_no_part_is_added_to_a_record_of_another_node() -> None:
    """That node's reports would end it while the pod runs here."""
    for part in (holder(pod=OTHER_POD), holder()):
        there = replace(record(part), node="gpu-2")
        assert restored_for_pod(there, LIVE, "GPU-a", CALL) is None


def test_only_uuids_are_restored() -> None:
    with pytest.raises(RecordInvalidError, match="gpus"):
        restored_for_pod(None, replace(LIVE, gpus=("0",)), "0", CALL)


ID = "v1.k.uid-0"


def finalized(
    found: GpuRecord | None, pod: PodSight = BOUND, uid: str = "uid-0", *, authentic: bool = True
) -> GpuRecord | Confirmed | ReasonCode:
    answer = finalize_on(found, ID, pod, uid, authentic=authentic)
    return answer.code if isinstance(answer, Refusal) else answer


def test_an_attempt_of_a_bound_pod_is_confirmed() -> None:
    assert finalized(record()) == record().moved(ID, HolderState.CONFIRMED)


def test_again_is_no_error() -> None:
    assert finalized(in_state(HolderState.CONFIRMED)) == Confirmed()


@pytest.mark.parametrize(
    ("found", "authentic", "code"),
    [
        (None, False, ReasonCode.RESERVATION_UNKNOWN),
        (None, True, ReasonCode.RESERVATION_EXPIRED),
        (record(holder(pod=OTHER_POD)), False, ReasonCode.RESERVATION_CONFLICT),
        (record(holder(pod=OTHER_POD)), True, ReasonCode.RESERVATION_EXPIRED),
        (in_state(HolderState.RELEASING), True, ReasonCode.RESERVATION_EXPIRED),
    ],
)
def test_what_the_ledger_has_against_it(
    found: GpuRecord | None, authentic: bool, code: ReasonCode
) -> None:
    assert finalized(found, authentic=authentic) is code


@pytest.mark.parametrize(
    ("pod", "code"),
    [
        (None, ReasonCode.RESERVATION_CONFLICT),
        (PodGone(), ReasonCode.RESERVATION_EXPIRED),
        (replace(BOUND, has_ended=True), ReasonCode.RESERVATION_EXPIRED),
        (replace(BOUND, node=""), ReasonCode.RESERVATION_CONFLICT),
        (replace(BOUND, node="gpu-2"), ReasonCode.RESERVATION_CONFLICT),
        (replace(BOUND, uid="uid-1"), ReasonCode.RESERVATION_CONFLICT),
        (replace(BOUND, reservation="v1.k.other"), ReasonCode.RESERVATION_CONFLICT),
    ],
)
@pytest.mark.parametrize("state", [HolderState.PROPOSED, HolderState.CONFIRMED])
def test_what_the_pod_has_against_it(state: HolderState, pod: PodSight, code: ReasonCode) -> None:
    assert finalized(in_state(state), pod) is code


def test_a_token_of_another_pod_does_not_confirm() -> None:
    found = finalized(record(), replace(BOUND, uid="uid-1"), "uid-1")
    assert found is ReasonCode.RESERVATION_CONFLICT
    assert finalized(record(), BOUND, "uid-1") is ReasonCode.RESERVATION_CONFLICT


OTHER_CALL = "f" * 16
STRANGER = PodRef("team-b", "other", "uid-9", "owner-b")


def snapshot(*records: GpuRecord) -> LedgerSnapshot:
    return LedgerSnapshot.of(Entry(x, str(n)) for n, x in enumerate(records))


class TestClaimOn:
    def test_a_gpu_without_a_record_is_taken(self) -> None:
        assert claim_on(None, claim("GPU-a"), "GPU-a") == Write(record())

    def test_what_this_call_has_written_is_held(self) -> None:
        assert claim_on(record(), claim("GPU-a"), "GPU-a") == Held()

    def test_a_later_call_for_the_same_is_counted_in(self) -> None:
        again = claim_on(record(), claim("GPU-a", call=OTHER_CALL), "GPU-a")
        assert again == Write(replace(record(holder(answers=2)), version=2))

    def test_a_confirmed_one_is_held(self) -> None:
        confirmed = in_state(HolderState.CONFIRMED)
        assert claim_on(confirmed, claim("GPU-a", call=OTHER_CALL), "GPU-a") == Held()

    @pytest.mark.parametrize("call", [OTHER_CALL, claim("GPU-a").call])
    def test_one_that_is_released_is_not_taken_up_again(self, call: str) -> None:
        found = claim_on(in_state(HolderState.RELEASING), claim("GPU-a", call=call), "GPU-a")
        assert isinstance(found, Taken)
        assert found.refusal.code is ReasonCode.RESERVATION_EXPIRED

    @pytest.mark.parametrize(
        "state", [HolderState.PROPOSED, HolderState.CONFIRMED, HolderState.RELEASING]
    )
    def test_anothers_is_taken_in_every_state(self, state: HolderState) -> None:
        found = claim_on(in_state(state), claim("GPU-a", pod=OTHER_POD), "GPU-a")
        assert isinstance(found, Taken)
        assert found.refusal == Refusal(ReasonCode.LEDGER_CONFLICT, "GPU-a is reserved")

    @pytest.mark.parametrize(
        "found",
        [
            replace(record(), node="gpu-2"),
            record(holder("GPU-A"), gpu="GPU-A"),
            record(holder(pod=replace(OTHER_POD, uid="uid-9"), reservation="v1.k.uid-0")),
            record(holder("GPU-a", "GPU-b")),
        ],
    )
    def test_what_is_not_quite_the_same_is_not_the_same(self, found: GpuRecord) -> None:
        verdict = claim_on(found, claim("GPU-a"), "GPU-a")
        assert isinstance(verdict, Taken)
        assert verdict.refusal.code is ReasonCode.LEDGER_CONFLICT


@pytest.mark.parametrize("share", [None, SHARE])
def test_an_attempt_beside_a_pod_outside_its_group_is_not_reused(share: ShareGroup | None) -> None:
    mixed = record(holder(), holder(pod=STRANGER, restored=True), share=share)
    for call in (CALL, OTHER_CALL):
        found = claim_on(mixed, claim("GPU-a", call=call, share=share), "GPU-a")
        assert isinstance(found, Taken)
    group = record(holder(), holder(pod=OTHER_POD), share=SHARE)
    again = claim("GPU-a", call=OTHER_CALL, share=SHARE)
    assert isinstance(claim_on(group, again, "GPU-a"), Write)


class TestShareGroup:
    def test_equal_groups_share(self) -> None:
        first = record(share=SHARE)
        found = claim_on(first, claim("GPU-a", pod=OTHER_POD, share=SHARE), "GPU-a")
        assert isinstance(found, Write)
        assert [x.pod for x in found.record.holders] == [POD, OTHER_POD]
        found.record.demand_valid()

    @pytest.mark.parametrize(
        ("declared", "asked", "pod"),
        [
            (None, None, OTHER_POD),
            (SHARE, None, OTHER_POD),
            (None, SHARE, OTHER_POD),
            (SHARE, replace(SHARE, entry="gpu-1:0,1"), OTHER_POD),
            (SHARE, replace(SHARE, owner="owner-b"), replace(OTHER_POD, owner="owner-b")),
            (SHARE, SHARE, replace(OTHER_POD, owner=None)),
            (SHARE, SHARE, replace(OTHER_POD, namespace="team-b")),
        ],
    )
    def test_nobody_else_does(self, declared: object, asked: object, pod: PodRef) -> None:
        first = replace(record(), share=declared)  # type: ignore[arg-type] # ShareGroup | None
        found = claim_on(first, claim("GPU-a", pod=pod, share=asked), "GPU-a")
        assert isinstance(found, Taken)

    @pytest.mark.parametrize(
        "part",
        [
            holder(pod=STRANGER, restored=True, state=HolderState.CONFIRMED),
            holder(pod=STRANGER, restored=True, state=HolderState.RELEASING),
            holder(pod=replace(POD, owner=None), restored=True, state=HolderState.RELEASING),
        ],
    )
    def test_no_claim_joins_a_pod_outside_its_share_group(self, part: Holder) -> None:
        """One that was restored, as neither a claim nor the group let it in."""
        for holders in ((part,), (holder(pod=replace(POD, uid="uid-2")), part)):
            mixed = record(*sorted(holders, key=lambda x: x.reservation), share=SHARE)
            mixed.demand_valid()
            found = claim_on(mixed, claim("GPU-a", pod=OTHER_POD, share=SHARE), "GPU-a")
            assert isinstance(found, Taken)

    def test_it_has_a_bound(self) -> None:
        full = record(
            *(holder(pod=replace(POD, uid=f"u-{n:03}")) for n in range(MAX_HOLDERS)), share=SHARE
        )
        found = claim_on(full, claim("GPU-a", pod=OTHER_POD, share=SHARE), "GPU-a")
        assert isinstance(found, Taken)
        assert "64 pods" in found.refusal.detail


class TestRollback:
    def test_what_the_call_added_is_taken_back(self) -> None:
        closed = rolled_back(record(), claim("GPU-a"))
        assert closed is not None
        assert closed.is_closed
        assert closed.holders[0].state is HolderState.REVOKED

    @pytest.mark.parametrize(
        "found",
        [
            None,
            record(holder(answers=2)),
            record(holder(call=OTHER_CALL)),
            in_state(HolderState.CONFIRMED),
            in_state(HolderState.RELEASING),
            record(holder(pod=OTHER_POD)),
        ],
    )
    def test_nothing_else_is(self, found: GpuRecord | None) -> None:
        assert rolled_back(found, claim("GPU-a")) is None


class TestOpenAttempt:
    def test_it_is_the_pods_own_on_that_node(self) -> None:
        known = snapshot(record(), record(holder("GPU-b", pod=OTHER_POD), gpu="GPU-b"))
        assert open_attempt(known, "uid-0", "gpu-1") == holder()
        assert open_attempt(known, "uid-0", "gpu-2") is None
        assert open_attempt(known, "uid-2", "gpu-1") is None

    def test_it_is_open_while_proposed(self) -> None:
        assert open_attempt(snapshot(in_state(HolderState.CONFIRMED)), "uid-0", "gpu-1") is None

    def test_a_whole_one_is_taken_before_a_torn_one(self) -> None:
        torn = record(holder("GPU-a", "GPU-c", reservation="v1.k.a"))
        whole = record(holder("GPU-b", reservation="v1.k.b"), gpu="GPU-b")
        assert open_attempt(snapshot(torn, whole), "uid-0", "gpu-1") == whole.holders[0]
        assert open_attempt(snapshot(torn), "uid-0", "gpu-1") == torn.holders[0]


class TestUnbornPods:
    unborn = record(holder(pod=PodRef("team-a", owner="owner-a"), origin=Origin.ADMISSION))
    name = unborn.holders[0].reservation

    def test_the_first_pod_gets_it(self) -> None:
        bound = bound_to_pod(self.unborn, self.name, POD)
        assert isinstance(bound, GpuRecord)
        assert (bound.holders[0].pod, bound.holders[0].answers) == (POD, 2)
        assert isinstance(bound_to_pod(bound, self.name, POD), GpuRecord)
        refused = bound_to_pod(bound, self.name, OTHER_POD)
        assert isinstance(refused, Refusal)
        assert refused.code is ReasonCode.RESERVATION_CONFLICT

    @pytest.mark.parametrize(
        ("found", "pod", "code"),
        [
            (record(), POD, ReasonCode.RESERVATION_EXPIRED),
            (unborn, PodRef("team-b", "x", "uid-9"), ReasonCode.RESERVATION_CONFLICT),
            (unborn, PodRef("team-a", "x"), ReasonCode.RESERVATION_CONFLICT),
            (
                record(replace(unborn.holders[0], state=HolderState.RELEASING)),
                POD,
                ReasonCode.RESERVATION_CONFLICT,
            ),
            (
                unborn.with_holder(holder(pod=STRANGER, restored=True)),
                POD,
                ReasonCode.RESERVATION_CONFLICT,
            ),
        ],
    )
    def test_others_do_not(self, found: GpuRecord, pod: PodRef, code: ReasonCode) -> None:
        refused = bound_to_pod(found, self.name, pod)
        assert isinstance(refused, Refusal)
        assert refused.code is code


# --- Claims of several GPUs: whole or not at all, whatever the store does meanwhile

GPUS = ("GPU-a", "GPU-b", "GPU-c")
MINE = claim(*GPUS)
THEIRS = claim("GPU-b", pod=OTHER_POD, call="f" * 16)


@pytest.fixture
def store() -> MemoryLedgerStore:
    return MemoryLedgerStore()


def held(store: MemoryLedgerStore) -> dict[str, list[str]]:
    """GPU -> reservations."""
    entries = store.snapshot().entries.values()
    return {x.record.gpu: [y.reservation for y in x.record.holders] for x in entries}


async def refused(claimant: Claimant, asked: Claim) -> ReasonCode:
    answer = await claimant.claim(asked)
    assert isinstance(answer, Refusal)
    return answer.code


WHOLE = {gpu: [MINE.reservation] for gpu in GPUS}


async def test_all_of_them_in_order(store: MemoryLedgerStore) -> None:
    watched = FaultyLedgerStore(store)
    assert await Claimant(watched).claim(MINE) == Claimed(MINE)
    assert held(store) == WHOLE
    assert [gpu for gpu, _ in watched.writes] == list(GPUS)


async def test_none_where_one_is_taken(store: MemoryLedgerStore) -> None:
    assert isinstance(await Claimant(store).claim(THEIRS), Claimed)
    assert await refused(Claimant(store), MINE) is ReasonCode.LEDGER_CONFLICT
    assert held(store) == {"GPU-b": [THEIRS.reservation]}


async def test_the_same_again_is_counted_in(store: MemoryLedgerStore) -> None:
    await Claimant(store).claim(MINE)
    again = replace(MINE, call="e" * 16)
    assert await Claimant(store).claim(again) == Claimed(again)
    assert [x.record.holders[0].answers for x in store.snapshot().entries.values()] == [2, 2, 2]
    assert held(store) == WHOLE


async def test_a_group_shares(store: MemoryLedgerStore) -> None:
    first, second = replace(MINE, share=SHARE), claim(*GPUS, pod=OTHER_POD, call="e" * 16)
    await Claimant(store).claim(first)
    assert isinstance(await Claimant(store).claim(replace(second, share=SHARE)), Claimed)
    assert held(store) == {gpu: ["v1.k.uid-0", "v1.k.uid-1"] for gpu in GPUS}
    assert sorted(await Claimant(store).withdraw(first)) == sorted(GPUS)
    assert await Claimant(store).withdraw(first) == ()
    assert held(store) == {gpu: ["v1.k.uid-1"] for gpu in GPUS}


async def test_what_cannot_be_reached_is_not_withdrawn(store: MemoryLedgerStore) -> None:
    await Claimant(store).claim(MINE)
    faulty = FaultyLedgerStore(store)
    faulty.is_dead = True
    assert await Claimant(faulty).withdraw(MINE) == ()
    assert held(store) == WHOLE


async def test_a_rollback_leaves_what_another_relies_on(store: MemoryLedgerStore) -> None:
    """The first call is overtaken by a retry, then meets somebody else."""
    slow = FaultyLedgerStore(store)
    again = claim("GPU-a", "GPU-b", "GPU-c", call="e" * 16)

    async def others() -> None:
        await Claimant(FaultyLedgerStore(store, "ok", "before", "before", "before")).claim(again)
        await Claimant(store).claim(THEIRS)

    slow.meanwhile[1] = others
    assert await refused(Claimant(slow), MINE) is ReasonCode.LEDGER_CONFLICT
    assert held(store) == {"GPU-a": [MINE.reservation], "GPU-b": [THEIRS.reservation]}
    assert store.snapshot().entries["gpu-a"].record.holders[0].answers == 2


@pytest.mark.parametrize("lost", ["before", "after"])
@pytest.mark.parametrize("at", range(3))
async def test_a_lost_answer_is_no_answer(store: MemoryLedgerStore, lost: str, at: int) -> None:
    faulty = FaultyLedgerStore(store, *["ok"] * at, lost)
    assert await Claimant(faulty).claim(MINE) == Claimed(MINE)
    assert held(store) == WHOLE
    assert {x.record.holders[0].answers for x in store.snapshot().entries.values()} == {1}


@pytest.mark.parametrize("at", range(3))
async def test_too_many_of_them_end_it_and_nothing_stays(store: MemoryLedgerStore, at: int) -> None:
    faulty = FaultyLedgerStore(store, *["ok"] * at, *["before"] * (MOST_LOST + 1))
    assert await refused(Claimant(faulty), MINE) is ReasonCode.LEDGER_UNAVAILABLE
    assert held(store) == {}


@pytest.mark.parametrize("at", range(3))
async def test_a_write_that_was_done_unseen_is_taken_back_too(
    store: MemoryLedgerStore, at: int
) -> None:
    faulty = FaultyLedgerStore(store, *["ok"] * at, *["before"] * MOST_LOST, "after")
    assert await refused(Claimant(faulty), MINE) is ReasonCode.LEDGER_UNAVAILABLE
    assert held(store) == {}


async def test_a_dead_store_ends_it_and_leaves_an_attempt(store: MemoryLedgerStore) -> None:
    faulty = FaultyLedgerStore(store)

    async def dies() -> None:
        faulty.is_dead = True

    faulty.meanwhile[2] = dies
    assert await refused(Claimant(faulty), MINE) is ReasonCode.LEDGER_UNAVAILABLE
    assert held(store) == {"GPU-a": [MINE.reservation], "GPU-b": [MINE.reservation]}
    states = {x.record.holders[0].state for x in store.snapshot().entries.values()}
    assert states == {HolderState.PROPOSED}


async def test_an_answer_lost_in_the_rollback_is_asked_for_again(
    store: MemoryLedgerStore,
) -> None:
    await Claimant(store).claim(claim("GPU-c", pod=OTHER_POD, call="f" * 16))
    faulty = FaultyLedgerStore(store, "ok", "ok", "after", "before")
    assert await refused(Claimant(faulty), MINE) is ReasonCode.LEDGER_CONFLICT
    assert held(store) == {"GPU-c": ["v1.k.uid-1"]}


async def test_others_that_are_always_faster_end_it(store: MemoryLedgerStore) -> None:
    """A share group's record changes under a claim each time."""
    faulty = FaultyLedgerStore(store)
    names = [f"uid-{n}" for n in range(10, 30)]

    def another(uid: str) -> Claim:
        pod = replace(OTHER_POD, uid=uid)
        return claim("GPU-a", pod=pod, call="f" * 16, share=SHARE)

    await Claimant(store).claim(another("uid-9"))
    for n, uid in enumerate(names):
        asked = another(uid)
        faulty.meanwhile[n] = lambda asked=asked: Claimant(store).claim(asked)  # type: ignore[misc] # bound now
    code = await refused(Claimant(faulty), claim("GPU-a", share=SHARE))
    assert code is ReasonCode.LEDGER_CONFLICT
    assert "v1.k.uid-0" not in held(store)["GPU-a"]


async def test_of_many_claims_at_once_each_gpu_has_one_holder(store: MemoryLedgerStore) -> None:
    pods = [replace(OTHER_POD, uid=f"uid-{n:02}") for n in range(30)]
    asked = [
        claim(GPUS[n % 3], GPUS[2], pod=pod, call=f"{n:08x}")
        if n % 3 < 2
        else claim(*GPUS, pod=pod, call=f"{n:08x}")
        for n, pod in enumerate(pods)
    ]
    answers = await asyncio.gather(*(Claimant(store).claim(x) for x in asked))
    won = [x.claim for x in answers if isinstance(x, Claimed)]
    taken = [gpu for x in won for gpu in x.gpus]
    assert len(taken) == len(set(taken)) > 0
    assert held(store) == {gpu: [x.reservation] for x in won for gpu in x.gpus}


async def test_what_cannot_be_a_claim_is_an_error(store: MemoryLedgerStore) -> None:
    with pytest.raises(RecordInvalidError, match="sorted"):
        await Claimant(store).claim(claim("GPU-b", "GPU-a"))
    with pytest.raises(RecordInvalidError, match="call"):
        await Claimant(store).claim(claim("GPU-a", call="no"))
    with pytest.raises(RecordInvalidError, match="sorted"):
        claim("GPU-b", "GPU-a").part()


async def test_nor_is_it_refused_where_the_gpu_is_taken(store: MemoryLedgerStore) -> None:
    await Claimant(store).claim(THEIRS)
    with pytest.raises(RecordInvalidError, match="call"):
        await Claimant(store).claim(claim("GPU-b", call="no"))
