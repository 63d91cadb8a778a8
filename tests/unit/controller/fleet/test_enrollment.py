import pytest

from controller.fleet.directory import FOREVER_NS
from controller.fleet.enrollment import (
    MAX_SUPERSEDED,
    Claim,
    EnrollmentRecord,
    EnrollmentSnapshot,
    EnrollmentStore,
    MemoryEnrollmentStore,
    rival,
)
from tests.contracts.enrollment_store import FULL, EnrollmentStoreContract


class TestMemoryEnrollmentStore(EnrollmentStoreContract):
    @pytest.fixture
    def store(self) -> EnrollmentStore:
        return MemoryEnrollmentStore()

    async def test_it_can_start_with_records(self) -> None:
        snapshot = await MemoryEnrollmentStore([FULL]).load()
        assert snapshot == EnrollmentSnapshot().with_record(FULL)
        assert snapshot.fresh_until_ns == FOREVER_NS


def test_a_snapshot_of_records_is_the_same_as_adding_them_one_by_one() -> None:
    other = EnrollmentRecord("gpu-2", gpus=FULL.gpus)
    assert EnrollmentSnapshot.of([FULL, other], fresh_until_ns=5) == EnrollmentSnapshot(
        fresh_until_ns=5
    ).with_record(FULL).with_record(other)


def test_the_line_of_processes_is_bounded_and_newest_first() -> None:
    record = EnrollmentRecord("gpu-1")
    for number in range(MAX_SUPERSEDED + 5):
        record = record.answered_by(f"{number:032x}")
    assert record.instance == f"{MAX_SUPERSEDED + 4:032x}"
    assert len(record.superseded) == MAX_SUPERSEDED
    assert record.superseded[0] == f"{MAX_SUPERSEDED + 3:032x}"


def test_the_first_process_supersedes_nobody_and_the_same_one_changes_nothing() -> None:
    record = EnrollmentRecord("gpu-1").answered_by("a" * 32)
    assert record.superseded == ()
    assert record.answered_by("a" * 32) is record


def test_a_process_is_never_both_present_and_superseded() -> None:
    record = EnrollmentRecord("gpu-1", instance="a" * 32, superseded=("b" * 32,))
    back = record.answered_by("b" * 32)
    assert (back.instance, back.superseded) == ("b" * 32, ("a" * 32,))


MINE, MINE_ENROLLED = Claim("me", enrolled=False), Claim("me", enrolled=True)
FIRST_USE, ENROLLED = Claim("you", enrolled=False), Claim("you", enrolled=True)


@pytest.mark.parametrize(
    ("claims", "enrolled", "loses_to"),
    [
        ((), False, None),
        ((MINE,), False, None),
        ((FIRST_USE,), False, FIRST_USE),
        ((MINE, FIRST_USE), False, FIRST_USE),
        ((MINE, ENROLLED), False, ENROLLED),
        ((MINE_ENROLLED, FIRST_USE), True, None),
        ((MINE_ENROLLED, ENROLLED), True, ENROLLED),
        ((FIRST_USE,), True, None),
    ],
)
def test_who_loses_a_gpu(claims: tuple[Claim, ...], enrolled: bool, loses_to: Claim | None) -> None:
    assert rival("me", claims, enrolled=enrolled) == loses_to
