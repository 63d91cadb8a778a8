"""Which pods are in the list, in which state, and what the log says of one of them."""

from typing import Any

import pytest

from controller.explain.pod_views import (
    SeenPod,
    StageView,
    pod_detail,
    pod_rows,
    with_holders,
)
from controller.explain.stages import StageName
from controller.ledger.record import GpuRecord, HolderState, PodGone, PodRef, PodSeen, PodSight
from controller.ledger.store import Entry, LedgerSnapshot
from gpuwarden.wire.v1 import placement_pb2 as pb
from tests.builders.ledger import holder, record

JOB, OTHER = PodRef("team-a", "job-1", "uid-1"), PodRef("team-a", "job-2", "uid-2")
RELEASING = HolderState.RELEASING


def ledger(*records: GpuRecord) -> LedgerSnapshot:
    return LedgerSnapshot.of(Entry(x, "1") for x in records)


HELD = ledger(record(holder(pod=JOB, state=RELEASING)))


def listed(held: LedgerSnapshot, sight: PodSight, *managed: SeenPod) -> list[tuple[str, str]]:
    rows = pod_rows(with_holders(managed, held, lambda pod: sight if pod == JOB else None), held)
    return [(x.name, x.state) for x in rows]


@pytest.mark.parametrize(
    ("sight", "state"),
    [
        (PodSeen("uid-1", "gpu-1", None, has_ended=True), "ended"),
        (PodSeen("uid-1", "gpu-1", None, has_ended=False), "bound"),
        (None, "gone"),
        (PodGone(), "gone"),
    ],
    ids=["ended", "not managed any more", "not in the cache", "gone"],
)
def test_a_pod_that_holds_a_gpu_is_gone_only_where_there_is_none(
    sight: PodSight, state: str
) -> None:
    """The managed pods leave out those that have ended."""
    assert listed(HELD, sight) == [("job-1", state)]


def test_managed_pods_are_listed_once_and_with_what_they_hold() -> None:
    bound, waits = SeenPod("team-a", "job-1", "uid-1", "gpu-1"), SeenPod("team-a", "a", "u", "")
    assert listed(HELD, None, bound, waits) == [("a", "pending"), ("job-1", "bound")]
    (row,) = pod_rows([bound], HELD)
    assert row.gpus == {"GPU-a": "Releasing"}


def test_a_pod_that_has_ended_and_holds_nothing_is_not_listed() -> None:
    ended = SeenPod("team-a", "job-1", "uid-1", "gpu-1", has_ended=True)
    assert pod_rows([ended], ledger()) == []
    assert [x.state for x in pod_rows([ended], HELD)] == ["ended"]


def test_where_nothing_knows_pods_none_is_called_gone() -> None:
    assert [x.state for x in pod_rows(None, HELD)] == ["bound"]


# --- what the log says


def decided(
    *records: tuple[str, str, list[str]], bound: str = "reached", **more: Any
) -> list[StageView]:
    """The stages `admitted` and `filtered`; records are kind, decision and codes."""
    stages = [pb.Stage(name=x, state="reached") for x in StageName]
    stages[2].state = bound
    made = [
        pb.PodRecord(seq=n, kind=kind, decision=decision, codes=codes)
        for n, (kind, decision, codes) in enumerate(records, 7)
    ]
    fields = {"phase": "Running", "managed": True, **more}
    return pod_detail(pb.ExplainPodResponse(stages=stages, records=made, **fields)).stages[1:3]


REFUSED = ("admission.decision", "refused", ["BYPASS_ENV"])
REJECTED = ("filter.decision", "rejected", ["GPU_BUSY"])


def test_a_pod_that_exists_was_admitted_though_it_would_be_denied() -> None:
    admitted, filtered = decided(
        ("admission.decision", "reported", ["BYPASS_ENV"]),
        ("filter.decision", "reported", ["HASH_MISMATCH"]),
        report_only=True,
    )
    assert (admitted.state, filtered.state) == ("reached", "reached")
    assert admitted.findings == ["report-only: would be denied: record 7", "BYPASS_ENV"]
    assert filtered.findings == [
        "report-only: would be rejected by every node: record 8",
        "HASH_MISMATCH",
    ]


def test_a_refusal_that_was_not_the_last_word() -> None:
    """Another replica's log has that one."""
    admitted, filtered = decided(REFUSED, REJECTED)
    assert (admitted.state, filtered.state) == ("reached", "reached")
    assert admitted.findings[-1].startswith("the pod exists: ")
    assert filtered.findings[-1].startswith("the pod is bound: ")
    admitted, filtered = decided(REFUSED, REJECTED, bound="waiting", phase="Pending")
    assert (admitted.state, filtered.state) == ("reached", "waiting")
    assert filtered.findings == ["rejected: record 8", "GPU_BUSY"]


def test_a_pod_that_is_gone_or_has_ended_waits_for_no_decision() -> None:
    assert [x.state for x in decided(REFUSED, REJECTED, bound="over", phase="")] == ["over"] * 2
    ended = decided(REFUSED, REJECTED, bound="over", phase="Failed")
    assert [x.state for x in ended] == ["reached", "over"]


def test_nothing_is_decided_about_a_pod_that_asks_for_nothing() -> None:
    assert [x.state for x in decided(managed=False)] == ["unneeded"] * 2
    assert [x.state for x in decided(managed=False, phase="")] == ["unknown"] * 2
    assert [x.state for x in decided()] == ["unknown"] * 2


def test_what_passed_has_passed_whatever_other_nodes_said() -> None:
    passed = decided(
        ("admission.decision", "admitted", []), ("filter.decision", "passed", ["GPU_BUSY"])
    )
    assert [x.state for x in passed] == ["reached"] * 2
    assert [x.findings[0] for x in passed] == ["admitted: record 7", "passed: record 8"]
