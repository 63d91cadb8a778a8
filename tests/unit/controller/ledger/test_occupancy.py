from dataclasses import replace

import pytest
from hypothesis import given as given_by
from hypothesis import strategies as st

from controller.ledger.claim import Taken, Write, claim_on
from controller.ledger.occupancy import (
    CardUse,
    Holders,
    Known,
    Occupancy,
    ReconciliationState,
    Users,
    grant_refusal,
    has_stranger,
    is_taken,
    rolled_back,
    uncertainty,
    use_of,
    uses_in,
)
from controller.ledger.record import (
    MAX_HOLDERS,
    GpuRecord,
    Holder,
    HolderState,
    Origin,
    PodRef,
    RecordInvalidError,
)
from controller.ledger.release import GivenDevice, UseReport
from controller.ledger.restore import (
    Elsewhere,
    LivePod,
    LoggedGrant,
    granted_to,
    grants_of,
    lost_grants,
    restored_as_releasing,
)
from controller.ledger.store import Entry, LedgerSnapshot
from gpuwarden.evidence.model import Allocation, GpuProcess
from gpuwarden.reasons import ReasonCode
from tests.builders.fleet_views import acceptance, gpu, mig_slice
from tests.builders.ledger import CALL, OTHER_POD, POD, SHARE, claim, holder, in_state, record

# --- What a node says of the use of its GPUs, against what the ledger says


def use(*uids: str, cards: tuple[str, ...] = ("GPU-a",), given: bool = False) -> CardUse:
    return CardUse(cards[0], tuple(x.lower() for x in cards), frozenset(uids), given)


def held(*records: GpuRecord) -> Holders:
    return Holders(LedgerSnapshot.of(Entry(x, "1") for x in records).entries)


def test_a_record_explains_the_process_of_its_own_pod() -> None:
    assert is_taken(use("uid-0"), Holders())
    assert not is_taken(use("uid-0"), held(record()))
    assert is_taken(use("uid-0"), held(record(holder(pod=OTHER_POD))))
    assert is_taken(use("uid-0"), held(record(holder("GPU-b"), gpu="GPU-b")))
    assert is_taken(use("uid-0", "uid-9"), held(record()))
    assert not is_taken(use(), Holders())


@pytest.mark.parametrize("state", [x for x in HolderState if not x.is_end])
def test_in_each_state_it_does(state: HolderState) -> None:
    assert not is_taken(use("uid-0"), held(in_state(state)))


def test_nothing_explains_what_kubelet_has_given() -> None:
    """It knows names alone: an earlier pod may have had the holder's."""
    assert is_taken(use(given=True), Holders())
    assert is_taken(use("uid-0", given=True), held(record()))


def test_each_pod_of_a_share_group_is_explained_and_no_other() -> None:
    both = held(record(holder(), holder(pod=OTHER_POD), share=SHARE))
    assert not has_stranger(use("uid-0", "uid-1"), both)
    assert has_stranger(use("uid-0", "uid-2"), both)


def test_who_holds_a_part_explains_a_process_on_the_whole() -> None:
    part = held(record(holder("MIG-2"), gpu="MIG-2"))
    split = ("GPU-a", "MIG-1", "MIG-2")
    assert not has_stranger(use("uid-0", cards=split), part)
    assert has_stranger(use("uid-0", "uid-1", cards=split), part)
    assert has_stranger(use("uid-0", cards=("MIG-1",)), part)


def test_a_pod_that_is_not_born_explains_nothing() -> None:
    early = held(record(holder(pod=replace(OTHER_POD, uid=None, name=None))))
    assert has_stranger(use("uid-1"), early)


def test_what_is_read_from_evidence() -> None:
    split = gpu(0, "GPU-a", mig=True, mig_devices=[mig_slice("MIG-1")])
    shown = replace(
        acceptance(gpus=[split]),
        processes=(
            GpuProcess("GPU-a", 7, "uid-1"),
            GpuProcess("GPU-a", 8, "uid-0"),
            GpuProcess("GPU-b", 8, None),
        ),
        allocations=(
            Allocation("team-a", "train-0", "main", "nvidia.com/gpu", "MIG-1::2"),
            Allocation("team-a", "train-0", "main", "rdma/hca", "mlx5_0"),
        ),
    )
    assert set(uses_in(shown)) == {
        use("uid-0", "uid-1", cards=("GPU-a", "MIG-1")),
        use(cards=("MIG-1",), given=True),
    }
    assert uses_in(acceptance()) == ()


def test_what_is_read_from_a_report_of_one_gpu() -> None:
    users: Users = {"GPU-a": frozenset({"uid-0", None}), "GPU-b": frozenset({None})}
    given = frozenset(GivenDevice("team-a", "train-0", x) for x in ("GPU-a::2", "GPU-c", "mlx5_0"))
    report = UseReport("boot", 1, users, given)
    assert use_of(report, "GPU-a") == use("uid-0", given=True)
    assert use_of(report, "GPU-b") is None
    assert use_of(UseReport("boot", 1, None, None), "GPU-a") is None


def occupancy(*records: GpuRecord) -> Occupancy:
    return Occupancy(LedgerSnapshot.of(Entry(x, str(n)) for n, x in enumerate(records)))


A = record()
B = record(holder("GPU-B", pod=OTHER_POD, state=HolderState.RELEASING), gpu="GPU-B")
SHARED = record(holder("GPU-c"), holder("GPU-c", pod=OTHER_POD), gpu="GPU-c", share=SHARE)
EARLY = record(holder("GPU-d", pod=PodRef("team-b", owner="owner-b")), gpu="GPU-d")


GIVEN = [
    record(holder(pod=OTHER_POD, origin=Origin.KUBELET)),
    record(holder(state=HolderState.RELEASING, restored=True)),
]
"""GPU-a, given by kubelet, and brought back as an end that nobody saw."""


@pytest.mark.parametrize("given", GIVEN)
def test_what_kubelet_gave_or_only_a_log_knows_is_no_claim(given: GpuRecord) -> None:
    assert occupancy(given, B).claimed() == {"GPU-B"}
    assert occupancy(given, B).busy() == {"GPU-a", "GPU-B"}


STRANGERS = [
    holder("GPU-c", pod=replace(POD, **change), restored=True)
    for change in ({"owner": "owner-b"}, {"owner": None}, {"namespace": "team-b"})
] + [holder("GPU-c", origin=Origin.KUBELET, restored=True)]


MIXED = record(holder("GPU-c", pod=OTHER_POD), STRANGERS[0], gpu="GPU-c", share=SHARE)


def test_every_held_gpu_is_busy_by_its_own_uuid() -> None:
    assert occupancy(A, B).busy() == {"GPU-a", "GPU-B"}
    assert occupancy().busy() == frozenset()


def test_a_pods_own_attempt_is_not_in_its_way() -> None:
    found = occupancy(A, B)
    assert found.busy_for("uid-0") == {"GPU-B"}
    assert found.busy_for("uid-1") == {"GPU-a", "GPU-B"}
    assert occupancy(in_state(HolderState.CONFIRMED)).busy_for("uid-0") == {"GPU-a"}


def test_others_get_the_very_same_answer() -> None:
    found = occupancy(A, B)
    assert found.busy_for("uid-9") is found.busy_for(None) is found.busy()


def test_a_share_group_does_not_stand_in_its_own_way() -> None:
    found = occupancy(A, SHARED)
    assert found.busy_for("uid-9", SHARE) == {"GPU-a"}
    assert found.busy_for("uid-9", replace(SHARE, entry="other")) == {"GPU-a", "GPU-c"}
    assert found.busy_for("uid-9") == {"GPU-a", "GPU-c"}
    assert found.busy_for("uid-0") == {"GPU-c"}


@pytest.mark.parametrize("part", STRANGERS)
def test_but_unreserved_use_beside_it_does(part: Holder) -> None:
    """Also once the group's own pods have gone."""
    for holders in ((holder("GPU-c", pod=OTHER_POD), part), (part,)):
        mixed = record(*holders, gpu="GPU-c", share=SHARE)
        assert occupancy(mixed).busy_for("uid-9", SHARE) == {"GPU-c"}


class TestTheNextOne:
    @given_by(
        st.lists(st.tuples(st.sampled_from([A, B, SHARED, MIXED, EARLY, *GIVEN]), st.booleans()))
    )
    def test_it_is_what_would_be_made_again(self, changes: list[tuple[GpuRecord, bool]]) -> None:
        found = occupancy()
        for number, (changed, is_there) in enumerate(changes):
            entry = Entry(changed, str(number)) if is_there else None
            found = found.then(found.snapshot.with_entry(changed.key, entry))
            again = Occupancy(found.snapshot)
            assert found.busy() == again.busy()
            assert found.claimed() == again.claimed()
            for pod in ("uid-0", "uid-9", None):
                assert found.busy_for(pod, SHARE) == again.busy_for(pod, SHARE)

    def test_a_change_of_state_alone_gives_the_very_same_answer(self) -> None:
        before = occupancy(A, B)
        entry = Entry(in_state(HolderState.CONFIRMED), "9")
        after = before.then(before.snapshot.with_entry("gpu-a", entry))
        assert after.claimed() is before.claimed() is before.busy()
        assert after.busy() is before.busy()
        assert after.busy_for("uid-0") is before.busy()

    def test_where_all_is_claimed_what_is_claimed_is_what_is_held(self) -> None:
        before = occupancy(A)
        after = before.then(before.snapshot.with_entry(B.key, Entry(B, "9")))
        assert after.busy() == {"GPU-a", "GPU-B"}
        assert after.claimed() is after.busy()

    def test_a_change_of_state_beside_what_kubelet_gave_leaves_the_claimed_ones(self) -> None:
        before = occupancy(GIVEN[0], B)
        confirmed = record(replace(B.holders[0], state=HolderState.CONFIRMED), gpu="GPU-B")
        after = before.then(before.snapshot.with_entry(B.key, Entry(confirmed, "9")))
        assert after.claimed() == {"GPU-B"}
        assert after.claimed() is before.claimed()

    def test_it_says_when_a_gpu_passes_to_other_pods(self) -> None:
        before = occupancy(A, B)
        confirmed = Entry(in_state(HolderState.CONFIRMED), "9")
        same = before.then(before.snapshot.with_entry("gpu-a", confirmed))
        fewer = same.then(same.snapshot.with_entry("gpu-b", None))
        assert before.holders() == same.holders() == fewer.holders() == Holders()
        assert fewer.holders().entries is fewer.snapshot.entries
        other = Entry(record(holder(pod=OTHER_POD)), "10")
        passed = fewer.then(fewer.snapshot.with_entry("gpu-a", other))
        assert passed.holders() != fewer.holders()
        assert passed.busy() is fewer.busy()


FIRM = ReconciliationState(100, ledger_read_ns=110, pods_read_ns=120)
REPORT = UseReport("boot", 130, {}, frozenset())


def snapshot(*records: GpuRecord) -> LedgerSnapshot:
    return LedgerSnapshot.of(Entry(x, "1") for x in records)


def code(
    reconciliation: ReconciliationState, report: UseReport | None, *records: GpuRecord
) -> ReasonCode | None:
    known = Known(snapshot(*records), report, 200)
    found = grant_refusal(reconciliation, "gpu-1", ("GPU-a", "GPU-b"), known)
    return None if found is None else found.code


def test_a_firm_one_grants() -> None:
    assert code(FIRM, REPORT) is None
    busy_elsewhere = {"GPU-c": frozenset({"uid-9"}), "GPU-a": frozenset({None})}
    assert code(FIRM, replace(REPORT, users=busy_elsewhere)) is None
    assert code(replace(FIRM, unrecorded=frozenset({"gpu-2"})), REPORT) is None


@pytest.mark.parametrize(
    ("reconciliation", "report"),
    [
        (replace(FIRM, log_replayed=False), REPORT),
        (replace(FIRM, ledger_read_ns=None), REPORT),
        (replace(FIRM, ledger_read_ns=99), REPORT),
        (replace(FIRM, pods_read_ns=None), REPORT),
        (replace(FIRM, pods_read_ns=99), REPORT),
        (replace(FIRM, pods_read_ns=201), REPORT),
        (replace(FIRM, unrecorded=frozenset({"gpu-1"})), REPORT),
        (FIRM, None),
        (FIRM, replace(REPORT, asked_ns=100)),
        (FIRM, replace(REPORT, users=None)),
    ],
)
def test_before_everything_was_read_nothing_is_granted(
    reconciliation: ReconciliationState, report: UseReport | None
) -> None:
    assert code(reconciliation, report) is ReasonCode.CONTROLLER_NOT_READY


def test_a_gpu_that_a_pod_uses_is_not_granted() -> None:
    used = replace(REPORT, users={"GPU-b": frozenset({"uid-9"})})
    assert code(FIRM, used) is ReasonCode.GPU_BUSY
    assert code(FIRM, used, record(gpu="GPU-b")) is ReasonCode.GPU_BUSY


def test_a_gpu_of_a_lost_reservation_is_not_granted_on_any_node() -> None:
    assert code(replace(FIRM, owed=frozenset({"gpu-b"})), REPORT) is ReasonCode.GPU_BUSY
    assert code(replace(FIRM, owed=frozenset({"gpu-c"})), REPORT) is None


def test_but_one_that_only_those_use_who_have_it_is() -> None:
    """Who may join them is the ledger's to say."""
    group = record(holder("GPU-b"), holder("GPU-b", pod=OTHER_POD), gpu="GPU-b", share=SHARE)
    used = replace(REPORT, users={"GPU-b": frozenset({"uid-0", "uid-1", None})})
    assert code(FIRM, used, group) is None
    used = replace(REPORT, users={"GPU-b": frozenset({"uid-0", "uid-9"})})
    assert code(FIRM, used, group) is ReasonCode.GPU_BUSY
    given = frozenset({GivenDevice("team-a", "train-0", "GPU-b")})
    assert code(FIRM, replace(REPORT, given=given), group) is ReasonCode.GPU_BUSY


@pytest.mark.parametrize("device", ["GPU-b", "GPU-b::1"])
def test_a_gpu_that_kubelet_has_given_away_is_not_granted(device: str) -> None:
    given = frozenset({GivenDevice("team-a", "train-0", device)})
    assert code(FIRM, replace(REPORT, given=given)) is ReasonCode.GPU_BUSY
    others = frozenset(GivenDevice("team-a", "train-0", x) for x in ("GPU-c", "mlx5_0", "GPU-b-1"))
    assert code(FIRM, replace(REPORT, given=others)) is None


class TestHistory:
    def test_it_went_back_where_the_same_record_is_younger(self) -> None:
        older, newer = snapshot(record()), snapshot(replace(record(), version=2))
        assert rolled_back(newer, older) == {"GPU-a"}
        assert rolled_back(older, newer) == frozenset()
        assert rolled_back(newer, newer) == frozenset()

    def test_a_record_made_again_is_no_older_one(self) -> None:
        again = snapshot(record(holder(pod=OTHER_POD, call="f" * 16)))
        assert rolled_back(snapshot(replace(record(), version=2)), again) == frozenset()
        assert rolled_back(snapshot(record()), LedgerSnapshot()) == frozenset()


@pytest.mark.parametrize(
    ("reconciliation", "says"),
    [
        (FIRM, None),
        (replace(FIRM, ledger_read_ns=100, pods_read_ns=100), None),
        (replace(FIRM, log_replayed=False), "audit log"),
        (replace(FIRM, ledger_read_ns=99), "being read"),
        (replace(FIRM, pods_read_ns=None), "being read"),
        (replace(FIRM, unrecorded=frozenset({"a", "b"})), "missing for 2 nodes"),
    ],
)
def test_people_are_reported_what_grants_wait_for(
    reconciliation: ReconciliationState, says: str | None
) -> None:
    told = uncertainty(reconciliation)
    assert (told is None) == (says is None)
    assert says is None or (told is not None and says in told)


# --- What a log knows and the ledger does not is held again, and nobody is driven out for it

GRANT = LoggedGrant("GPU-a", "gpu-1", "v1.k.uid-0", POD, ("GPU-a",))
KNOWN = {("gpu-a", GRANT.reservation): GRANT}
HELD = holder(state=HolderState.RELEASING, restored=True)
LIVE = LivePod(POD, "gpu-1", "v1.k.uid-0", ("GPU-a",))


def ledger_of(*records: object) -> LedgerSnapshot:
    return LedgerSnapshot.of(Entry(x, "1") for x in records)  # type: ignore[arg-type] # GpuRecords


@pytest.mark.parametrize("state", [x for x in HolderState if not x.is_end])
def test_what_the_ledger_has_is_not_lost(state: HolderState) -> None:
    assert lost_grants(KNOWN, ledger_of(in_state(state)), ()) == ()


def test_a_bound_one_that_is_an_attempt_again_is() -> None:
    bound = replace(GRANT, bound=True)
    known = {("gpu-a", GRANT.reservation): bound}
    for state in HolderState:
        if not state.is_end:
            lost = (bound,) if state is HolderState.PROPOSED else ()
            assert lost_grants(known, ledger_of(in_state(state)), ()) == lost
    assert lost_grants(known, ledger_of(in_state(HolderState.PROPOSED)), (LIVE,)) == ()
    assert grants_of(ledger_of(in_state(HolderState.CONFIRMED)).entries.values()) == known


def test_what_it_lacks_or_gives_to_others_is() -> None:
    assert lost_grants(KNOWN, ledger_of(), ()) == (GRANT,)
    assert lost_grants(KNOWN, ledger_of(record(holder(pod=OTHER_POD))), ()) == (GRANT,)
    elsewhere = record(holder("GPU-b"), gpu="GPU-b")
    assert lost_grants(KNOWN, ledger_of(elsewhere), ()) == (GRANT,)


def test_a_live_pod_is_restored_instead() -> None:
    assert lost_grants(KNOWN, ledger_of(), (LIVE,)) == ()
    assert lost_grants(KNOWN, ledger_of(), (replace(LIVE, gpus=("GPU-b",)),)) == (GRANT,)
    assert lost_grants(KNOWN, ledger_of(), (replace(LIVE, reservation="v1.k.x"),)) == (GRANT,)


def test_what_the_ledger_had_is_known_in_the_same_words() -> None:
    unborn = holder("GPU-b", pod=PodRef("team-a"), reservation="v1.k.unborn")
    entries = ledger_of(record(), record(unborn, gpu="GPU-b")).entries
    assert grants_of(entries.values()) == KNOWN


def test_it_is_held_as_one_that_is_being_released() -> None:
    assert restored_as_releasing(None, GRANT, CALL) == record(HELD)
    beside = restored_as_releasing(record(holder(pod=OTHER_POD)), GRANT, CALL)
    assert isinstance(beside, GpuRecord)
    assert beside.holders == (HELD.without_owner(), holder(pod=OTHER_POD))
    assert beside.version == 2


@pytest.mark.parametrize("owner", [POD.owner, "owner-b", None])
def test_beside_a_share_group_unreserved_use_closes_the_group(owner: str | None) -> None:
    """Whose pod it was says nothing of the group that it had the GPU in."""
    group = record(holder(pod=OTHER_POD), share=SHARE)
    grant = replace(GRANT, pod=replace(POD, owner=owner))
    beside = restored_as_releasing(group, grant, CALL)
    assert isinstance(beside, GpuRecord)
    assert beside.share == SHARE
    assert not beside.is_shared_by(SHARE)
    third = claim("GPU-a", pod=replace(POD, uid="uid-2"), share=SHARE)
    assert isinstance(claim_on(group, third, "GPU-a"), Write)
    assert isinstance(claim_on(beside, third, "GPU-a"), Taken)
    alone = beside.moved("v1.k.uid-1", HolderState.REVOKED)
    assert isinstance(claim_on(alone, third, "GPU-a"), Taken)


def test_what_is_held_already_stays_as_it_is() -> None:
    for state in (HolderState.PROPOSED, HolderState.CONFIRMED, HolderState.RELEASING):
        assert restored_as_releasing(in_state(state), GRANT, CALL) is None


@pytest.mark.parametrize("part", [holder(pod=OTHER_POD), holder(state=HolderState.CONFIRMED)])
def test_what_is_recorded_on_another_node_is_not_held_on_its_own(part: Holder) -> None:
    moved = replace(record(part), node="gpu-2")
    assert restored_as_releasing(moved, GRANT, CALL) == Elsewhere("gpu-2")
    assert lost_grants(KNOWN, ledger_of(moved), ()) == (GRANT,)


def test_what_a_live_pod_says_is_a_grant_of_one_that_was_bound() -> None:
    assert granted_to(LIVE, "GPU-a") == replace(GRANT, bound=True)


def test_an_attempt_that_was_bound_once_does_not_expire() -> None:
    bound = replace(GRANT, bound=True)
    again = restored_as_releasing(in_state(HolderState.PROPOSED), bound, CALL)
    assert isinstance(again, GpuRecord)
    assert again.holders == (holder(state=HolderState.RELEASING),)
    assert restored_as_releasing(in_state(HolderState.CONFIRMED), bound, CALL) is None


def test_what_makes_no_record_is_refused() -> None:
    for wrong in (
        replace(GRANT, gpus=("0",)),
        replace(GRANT, gpus=("GPU-b",)),
        replace(GRANT, reservation="No"),
        replace(GRANT, node=""),
    ):
        with pytest.raises(RecordInvalidError):
            restored_as_releasing(None, wrong, CALL)
    parts = [
        holder(pod=PodRef("team-a", f"p-{n}", f"x-{n:03}", "owner-a")) for n in range(MAX_HOLDERS)
    ]
    with pytest.raises(RecordInvalidError, match="holders"):
        restored_as_releasing(record(*parts, share=SHARE), GRANT, CALL)
