from dataclasses import replace

import pytest
from hypothesis import given as given_by
from hypothesis import strategies as st

from controller.ledger.occupancy import Holders, Occupancy
from controller.ledger.record import GpuRecord, Holder, HolderState, Origin, PodRef
from controller.ledger.store import Entry, LedgerSnapshot
from tests.builders.ledger import OTHER_POD, POD, SHARE, holder, in_state, record


def occupancy(*records: GpuRecord) -> Occupancy:
    return Occupancy(LedgerSnapshot.of(Entry(x, str(n)) for n, x in enumerate(records)))


A = record()
B = record(holder("GPU-B", pod=OTHER_POD, state=HolderState.RELEASING), gpu="GPU-B")
SHARED = record(holder("GPU-c"), holder("GPU-c", pod=OTHER_POD), gpu="GPU-c", share=SHARE)
EARLY = record(holder("GPU-d", pod=PodRef("team-b", owner="owner-b")), gpu="GPU-d")


GIVEN = [
    record(holder(pod=OTHER_POD, origin=Origin.SETTLEMENT)),
    record(holder(state=HolderState.RELEASING, adopted=True)),
]
"""GPU-a, given by kubelet, and brought back as an end that nobody saw."""


@pytest.mark.parametrize("given", GIVEN)
def test_what_kubelet_gave_or_only_a_log_knows_is_no_claim(given: GpuRecord) -> None:
    assert occupancy(given, B).claimed() == {"GPU-B"}
    assert occupancy(given, B).busy() == {"GPU-a", "GPU-B"}


STRANGERS = [
    holder("GPU-c", pod=replace(POD, **change), adopted=True)
    for change in ({"owner": "owner-b"}, {"owner": None}, {"namespace": "team-b"})
] + [holder("GPU-c", origin=Origin.SETTLEMENT, adopted=True)]


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
def test_but_a_stranger_beside_it_does(part: Holder) -> None:
    """Also once the group's own pods have gone."""
    for holders in ((holder("GPU-c", pod=OTHER_POD), part), (part,)):
        mixed = record(*holders, gpu="GPU-c", share=SHARE)
        assert occupancy(mixed).busy_for("uid-9", SHARE) == {"GPU-c"}


class TestTheNextOne:
    @given_by(
        st.lists(st.tuples(st.sampled_from([A, B, SHARED, MIXED, EARLY, *GIVEN]), st.booleans()))
    )
    def test_it_is_what_would_be_made_anew(self, changes: list[tuple[GpuRecord, bool]]) -> None:
        found = occupancy()
        for number, (changed, is_there) in enumerate(changes):
            entry = Entry(changed, str(number)) if is_there else None
            found = found.then(found.snapshot.with_entry(changed.key, entry))
            anew = Occupancy(found.snapshot)
            assert found.busy() == anew.busy()
            assert found.claimed() == anew.claimed()
            for pod in ("uid-0", "uid-9", None):
                assert found.busy_for(pod, SHARE) == anew.busy_for(pod, SHARE)

    def test_a_change_of_state_alone_gives_the_very_same_answer(self) -> None:
        before = occupancy(A, B)
        entry = Entry(in_state(HolderState.CONFIRMED), "9")
        after = before.then(before.snapshot.with_entry("gpu-a", entry))
        assert after.claimed() is before.claimed() is before.busy()
        assert after.busy() is before.busy()
        assert after.busy_for("uid-0") is before.busy()

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
