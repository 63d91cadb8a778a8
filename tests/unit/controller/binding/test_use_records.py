"""What the audit log gets to hold of GPU use, and what a replica knows from it after a restart."""

from dataclasses import replace
from typing import Any

import pytest

from controller.audit.sealing import LogIdentity, Sealer
from controller.binding.idle import Account, Remembered, account_record
from controller.binding.use import UseFault, UseFaultKind
from controller.binding.use_records import (
    LOGGED_KINDS,
    RememberedUse,
    allocation_record,
    eviction_record,
    fault_record,
    remembered_use,
)
from controller.ledger.record import PodRef
from controller.ledger.release import GivenGpu
from controller.record import Record
from gpuwarden.audit.chain import BEFORE_FIRST
from gpuwarden.audit.record import LogRecord, RecordKind, decode_record
from tests.builders.node_use import NODE, ref

K = UseFaultKind
SEALER = Sealer(LogIdentity("lab/a", "boot", "instance"))
NOBODY = UseFault(K.UNRESERVED_USE, NODE, "GPU-b", None)
MS = 1_000_000


def fault(kind: UseFaultKind = K.UNRESERVED_USE, gpu: str = "GPU-a", **changes: Any) -> UseFault:
    return replace(UseFault(kind, NODE, gpu, ref(), since_wall_ns=5 * MS), **changes)


def logged(*records: Record) -> list[LogRecord]:
    """As they come back from the log."""
    return [decode_record(SEALER.seal(x, 0, BEFORE_FIRST).line) for x in records]


UNNAMED = PodRef("team-a", None, "uid-0")
LONG = "n" * 300
CUT = "n" * 253
DIGEST = "e" * 64


def test_the_record_of_an_allocation() -> None:
    found = allocation_record(GivenGpu(ref(), NODE, "GPU-a"), "v1.k.x", DIGEST)
    assert found == Record(
        RecordKind.RESERVATION_ALLOCATED,
        "controller",
        "pod/team-a/train-0",
        "recorded",
        refs={
            "uid": "uid-train-0",
            "node": NODE,
            "reservation": "v1.k.x",
            "gpus": ["GPU-a"],
            "evidence": DIGEST,
        },
    )


@pytest.mark.parametrize(
    ("kind", "recorded", "decision"),
    [
        (K.OTHER_GPU, RecordKind.RESERVATION_MISMATCH, "other_gpu"),
        (K.UNFIT_GPU, RecordKind.RESERVATION_MISMATCH, "unfit_gpu"),
        (K.TAKEN_GPU, RecordKind.RESERVATION_MISMATCH, "taken_gpu"),
        (K.SLICED_GPU, RecordKind.RESERVATION_MISMATCH, "sliced_gpu"),
        (K.GONE_GPU, RecordKind.RESERVATION_MISMATCH, "gone_gpu"),
        (K.UNRESERVED, RecordKind.RESERVATION_MISMATCH, "unreserved"),
        (K.UNRESERVED_USE, RecordKind.RESERVATION_UNRESERVED, "unreserved_use"),
    ],
)
def test_the_record_of_each_kind_of_disagreement(
    kind: UseFaultKind, recorded: RecordKind, decision: str
) -> None:
    began = fault(kind, since_wall_ns=5_999_999)
    refs: Any = {"uid": "uid-train-0", "node": NODE, "gpus": ["GPU-a"], "sinceMs": "5"}
    assert fault_record(began) == Record(
        recorded, "controller", "pod/team-a/train-0", decision, refs=refs
    )
    assert fault_record(replace(began, victims=()), ended=True) == Record(
        RecordKind.USE_ENDED, "controller", "pod/team-a/train-0", decision, refs=refs
    )


def test_the_record_of_a_process_without_a_known_pod_is_about_the_node() -> None:
    nobody = fault_record(NOBODY)
    assert (nobody.subject, nobody.refs["uid"]) == (f"node/{NODE}", "")
    unknown = fault_record(replace(NOBODY, owner="uid-9"))
    assert (unknown.subject, unknown.refs["uid"]) == (f"node/{NODE}", "uid-9")


def test_a_disagreement_about_no_gpu_names_none() -> None:
    assert fault_record(fault(K.UNRESERVED, gpu="")).refs["gpus"] == []


@pytest.mark.parametrize(("error", "decision"), [("", "evicted"), ("429: budget", "failed")])
def test_the_record_of_an_eviction(error: str, decision: str) -> None:
    assert eviction_record(ref(), error) == Record(
        RecordKind.RESERVATION_EVICTED,
        "controller",
        "pod/team-a/train-0",
        decision,
        refs={"uid": "uid-train-0", "cause": error},
    )


def test_a_pod_without_a_name_is_a_dash() -> None:
    assert eviction_record(UNNAMED, "").subject == "pod/team-a/-"


def test_what_others_can_make_long_is_cut() -> None:
    long = PodRef(LONG, LONG, "uid-0")
    allocated = allocation_record(GivenGpu(long, LONG, "GPU-a"), "v1.k.x", DIGEST)
    assert (allocated.subject, allocated.refs["node"]) == (f"pod/{CUT}/{CUT}", CUT)
    unknown = fault_record(replace(NOBODY, node=LONG))
    assert (unknown.subject, unknown.refs["node"]) == (f"node/{CUT}", CUT)
    assert eviction_record(long, LONG).refs["cause"] == CUT


def test_the_record_of_unreserved_use_names_who_holds_the_gpu() -> None:
    unknown = replace(NOBODY, owner="uid-9")
    assert "heldBy" not in fault_record(unknown).refs
    many = tuple(PodRef("team-a", f"train-{x}", f"uid-{x}") for x in range(9))
    refs = fault_record(replace(unknown, victims=many)).refs
    assert refs["heldBy"] == [f"pod/team-a/train-{x}" for x in range(4)]


# --- after a restart


@pytest.mark.parametrize(
    "known",
    [
        *(fault(kind) for kind in K),
        fault(gpu=""),
        fault(pod=UNNAMED),
        fault(pod=PodRef("team-a", "plain")),
        fault(pod=None),
        fault(pod=None, owner="uid-9"),
    ],
)
def test_a_fault_comes_back_from_the_log_as_it_was(known: UseFault) -> None:
    (found,) = remembered_use(logged(fault_record(known))).faults
    assert found == known
    assert found.since_wall_ns == 5 * MS


def test_the_other_pods_and_the_owner_are_not_in_it() -> None:
    known = fault(pod=replace(ref(), owner="uid-of-the-owner"), victims=(ref("train-1"),))
    (found,) = remembered_use(logged(fault_record(known))).faults
    assert (found, found.victims) == (fault(), ())


def test_what_has_ended_is_not_remembered_and_what_began_again_is() -> None:
    one, two = fault(), fault(gpu="GPU-b")
    begun = [fault_record(one), fault_record(two), fault_record(replace(one, owner=""))]
    records = [*begun, fault_record(one, ended=True)]
    assert remembered_use(logged(*records)).faults == (two,)
    again = replace(one, since_wall_ns=9 * MS)
    found = remembered_use(logged(*records, fault_record(again))).faults
    assert [(x.gpu, x.since_wall_ns) for x in found] == [("GPU-b", 5 * MS), ("GPU-a", 9 * MS)]


@pytest.mark.parametrize(
    "other",
    [
        fault(K.OTHER_GPU),
        fault(gpu="GPU-b"),
        fault(node="gpu-2"),
        fault(pod=ref("train-1")),
        fault(pod=replace(ref(), uid="uid-new")),
    ],
)
def test_the_end_of_another_ends_nothing(other: UseFault) -> None:
    records = [fault_record(fault()), fault_record(other, ended=True)]
    assert remembered_use(logged(*records)).faults == (fault(),)


def test_what_has_not_the_form_of_ours_is_skipped() -> None:
    kept = fault_record(fault())
    for refs in ({"sinceMs": "x"}, {"sinceMs": None}, {"node": 7}):
        odd = replace(kept, refs={**kept.refs, **refs})
        assert remembered_use(logged(odd)).faults == ()
    assert remembered_use(logged(replace(kept, decision="unknown"))).faults == ()
    assert remembered_use(logged(replace(kept, subject="pod/a/b/c"))).faults == (
        fault(pod=None, owner="uid-train-0"),
    )


def test_accounts_come_from_the_same_records() -> None:
    records = logged(account_record("team-a", Account(7 * MS, 3 * MS)), fault_record(fault()))
    found = remembered_use(records)
    accounts = {"team-a": Account(7 * MS, 3 * MS)}
    assert found == RememberedUse(Remembered(accounts, {}, records[0].ts), (fault(),))
    assert {x.kind for x in records} < set(LOGGED_KINDS)
