from dataclasses import replace

import pytest

from controller.ledger.occupancy import Footing, Known, grant_refusal, uncertainty, went_back
from controller.ledger.record import GpuRecord
from controller.ledger.release import GivenDevice, UseReport
from controller.ledger.store import Entry, LedgerSnapshot
from gpuwarden.reasons import ReasonCode
from tests.builders.ledger import OTHER_POD, SHARE, holder, record

FIRM = Footing(100, ledger_read_ns=110, pods_read_ns=120)
REPORT = UseReport("boot", 130, {}, frozenset())


def snapshot(*records: GpuRecord) -> LedgerSnapshot:
    return LedgerSnapshot.of(Entry(x, "1") for x in records)


def code(footing: Footing, report: UseReport | None, *records: GpuRecord) -> ReasonCode | None:
    known = Known(snapshot(*records), report, 200)
    found = grant_refusal(footing, "gpu-1", ("GPU-a", "GPU-b"), known)
    return None if found is None else found.code


def test_a_firm_one_grants() -> None:
    assert code(FIRM, REPORT) is None
    busy_elsewhere = {"GPU-c": frozenset({"uid-9"}), "GPU-a": frozenset({None})}
    assert code(FIRM, replace(REPORT, users=busy_elsewhere)) is None
    assert code(replace(FIRM, unrecorded=frozenset({"gpu-2"})), REPORT) is None


@pytest.mark.parametrize(
    ("footing", "report"),
    [
        (replace(FIRM, recalled=False), REPORT),
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
    footing: Footing, report: UseReport | None
) -> None:
    assert code(footing, report) is ReasonCode.CONTROLLER_NOT_READY


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
        assert went_back(newer, older) == {"GPU-a"}
        assert went_back(older, newer) == frozenset()
        assert went_back(newer, newer) == frozenset()

    def test_a_record_made_anew_is_no_older_one(self) -> None:
        anew = snapshot(record(holder(pod=OTHER_POD, call="f" * 16)))
        assert went_back(snapshot(replace(record(), version=2)), anew) == frozenset()
        assert went_back(snapshot(record()), LedgerSnapshot()) == frozenset()


@pytest.mark.parametrize(
    ("footing", "says"),
    [
        (FIRM, None),
        (replace(FIRM, recalled=False), "audit log"),
        (replace(FIRM, ledger_read_ns=99), "being read"),
        (replace(FIRM, pods_read_ns=None), "being read"),
        (replace(FIRM, unrecorded=frozenset({"a", "b"})), "2 nodes wait"),
    ],
)
def test_people_are_told_what_grants_wait_for(footing: Footing, says: str | None) -> None:
    told = uncertainty(footing)
    assert (told is None) == (says is None)
    assert says is None or (told is not None and says in told)
