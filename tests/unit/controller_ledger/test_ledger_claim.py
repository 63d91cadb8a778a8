from dataclasses import replace

import pytest

from controller.ledger.claim import (
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
    PodRef,
    ShareGroup,
)
from controller.ledger.store import Entry, LedgerSnapshot
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.ledger import CALL, OTHER_POD, POD, SHARE, claim, holder, in_state, record

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
        assert found.by == holder(state=state)

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
def test_an_attempt_beside_a_stranger_is_not_taken_up(share: ShareGroup | None) -> None:
    mixed = record(holder(), holder(pod=STRANGER, adopted=True), share=share)
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
            holder(pod=STRANGER, adopted=True, state=HolderState.CONFIRMED),
            holder(pod=STRANGER, adopted=True, state=HolderState.RELEASING),
            holder(pod=replace(POD, owner=None), adopted=True, state=HolderState.RELEASING),
        ],
    )
    def test_not_beside_a_stranger(self, part: Holder) -> None:
        """One that was adopted, or held again, as neither a claim nor the group let it in."""
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
        assert bound.holders[0].pod == POD
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
                unborn.with_holder(holder(pod=STRANGER, adopted=True)),
                POD,
                ReasonCode.RESERVATION_CONFLICT,
            ),
        ],
    )
    def test_others_do_not(self, found: GpuRecord, pod: PodRef, code: ReasonCode) -> None:
        refused = bound_to_pod(found, self.name, pod)
        assert isinstance(refused, Refusal)
        assert refused.code is code
