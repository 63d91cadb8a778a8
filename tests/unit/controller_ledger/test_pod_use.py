"""What a node says of the use of its GPUs, against what the ledger says."""

from dataclasses import replace

import pytest

from controller.ledger.occupancy import (
    CardUse,
    Holders,
    Users,
    has_stranger,
    is_taken,
    use_of,
    uses_in,
)
from controller.ledger.record import GpuRecord, HolderState
from controller.ledger.release import GivenDevice, UseReport
from controller.ledger.store import Entry, LedgerSnapshot
from gpuwarden.evidence.model import Allocation, GpuProcess
from tests.builders.fleet_views import acceptance, gpu, mig_slice
from tests.builders.ledger import OTHER_POD, SHARE, holder, in_state, record


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
