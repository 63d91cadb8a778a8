"""What the audit log gets to hold of Bindings, reservations and operators' orders."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from controller.binding.records import (
    BindDecision,
    ReleaseOrder,
    ReservationChange,
    bind_record,
    ended_record,
    kept_record,
    ledger_record,
    order_record,
    refused_record,
    reservation_record,
    restored_record,
)
from controller.ledger.record import HolderState, PodRef
from controller.ledger.restore import LivePod, LoggedGrant
from controller.record import Record
from gpuwarden.audit.record import RecordKind
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.ledger import OTHER_POD, POD, holder, record

UNNAMED = PodRef("team-a", None, "uid-0")
LONG = "n" * 300
CUT = "n" * 253
OPERATOR = "spiffe://example.org/gpuwarden/operator/ann"

ALLOWED = BindDecision(
    "team-a",
    "train-0",
    "uid-0",
    "gpu-1",
    "jane",
    reservation="v1.k.x",
    gpus=("GPU-a", "GPU-b"),
    evidence="e" * 64,
)
REFUSED = replace(
    ALLOWED,
    reservation="",
    gpus=(),
    refusals=(
        Refusal(ReasonCode.GPU_BUSY, "none free"),
        Refusal(ReasonCode.QUOTA_EXCEEDED, "too many"),
        Refusal(ReasonCode.GPU_BUSY, "none"),
    ),
)
CHANGE = ReservationChange(
    POD, "v1.k.x", "gpu-1", ("GPU-a", "GPU-b"), HolderState.CONFIRMED, "its pod is bound"
)
LIVE = LivePod(POD, "gpu-1", "v1.k.x", ("GPU-a", "GPU-b"))
GRANT = LoggedGrant("GPU-a", "gpu-1", "v1.k.x", POD, ("GPU-a", "GPU-b"))
ORDER = ReleaseOrder("GPU-a", "v1.k.uid-0", "burnt down, ticket 7", OPERATOR)

# --- Bindings


def test_an_allowed_binding() -> None:
    assert bind_record(ALLOWED) == Record(
        RecordKind.BIND_DECISION,
        "jane",
        "pod/team-a/train-0",
        "allowed",
        refs={
            "uid": "uid-0",
            "node": "gpu-1",
            "reservation": "v1.k.x",
            "gpus": ["GPU-a", "GPU-b"],
            "evidence": "e" * 64,
            "reasons": [],
        },
    )


def test_a_refused_binding_has_each_code_once_and_every_reason() -> None:
    found = bind_record(REFUSED)
    assert (found.decision, found.codes) == ("refused", ("GPU_BUSY", "QUOTA_EXCEEDED"))
    assert found.refs["reasons"] == ["none free", "too many", "none"]


def test_what_is_only_reported_is_not_refused() -> None:
    assert bind_record(replace(REFUSED, reported=True)).decision == "reported"
    assert bind_record(replace(ALLOWED, reported=True)).decision == "allowed"


def test_a_decision_refuses_and_names_nothing_by_default() -> None:
    bare = BindDecision("team-a", "train-0", "", "gpu-1", "jane")
    assert (bare.word, bare.reservation, bare.gpus, bare.evidence) == ("allowed", "", (), "")
    refusal = Refusal(ReasonCode.POD_UNKNOWN, "there is no such pod")
    assert replace(bare, refusals=(refusal,)).word == "refused"


def test_a_binding_by_nobody() -> None:
    assert bind_record(replace(ALLOWED, user="")).actor == "unknown"


def test_what_a_caller_can_make_long_is_cut() -> None:
    long = BindDecision(LONG, LONG, LONG, LONG, LONG)
    found = bind_record(long)
    assert (found.actor, found.subject) == (CUT, f"pod/{CUT}/{CUT}")
    assert (found.refs["uid"], found.refs["node"]) == (CUT, CUT)


# --- reservations


@pytest.mark.parametrize(
    ("state", "kind", "decision"),
    [
        (HolderState.PROPOSED, RecordKind.RESERVATION_RESERVED, "proposed"),
        (HolderState.CONFIRMED, RecordKind.RESERVATION_CONFIRMED, "confirmed"),
        (HolderState.RELEASING, RecordKind.RESERVATION_RELEASING, "releasing"),
        (HolderState.RELEASED, RecordKind.RESERVATION_RELEASED, "released"),
        (HolderState.EXPIRED, RecordKind.RESERVATION_EXPIRED, "expired"),
        (HolderState.REVOKED, RecordKind.RESERVATION_REVOKED, "revoked"),
    ],
)
def test_a_change_of_a_reservation(state: HolderState, kind: RecordKind, decision: str) -> None:
    assert reservation_record(replace(CHANGE, state=state)) == Record(
        kind,
        "controller",
        "pod/team-a/train-0",
        decision,
        refs={
            "uid": "uid-0",
            "node": "gpu-1",
            "reservation": "v1.k.x",
            "gpus": ["GPU-a", "GPU-b"],
            "cause": "its pod is bound",
        },
    )


def test_whoever_caused_a_change_is_its_actor() -> None:
    assert reservation_record(replace(CHANGE, actor=OPERATOR)).actor == OPERATOR


def test_the_evidence_that_a_change_rests_on_is_named() -> None:
    assert reservation_record(replace(CHANGE, evidence="e" * 64)).refs["evidence"] == "e" * 64


def test_a_change_of_some_of_the_gpus() -> None:
    assert reservation_record(CHANGE.of(("GPU-b",))).refs["gpus"] == ["GPU-b"]


def test_a_restored_record_is_of_one_gpu() -> None:
    assert restored_record(LIVE, "GPU-b") == Record(
        RecordKind.RESERVATION_RESTORED,
        "controller",
        "pod/team-a/train-0",
        "restored",
        refs={"uid": "uid-0", "node": "gpu-1", "reservation": "v1.k.x", "gpus": ["GPU-b"]},
    )


@pytest.mark.parametrize(
    ("make", "kind", "decision"),
    [
        (kept_record, RecordKind.RESERVATION_RESTORED, "kept"),
        (ended_record, RecordKind.RESERVATION_ENDED, "ended"),
    ],
)
def test_a_grant_that_only_the_log_has(
    make: Callable[[LoggedGrant], Record], kind: RecordKind, decision: str
) -> None:
    assert make(GRANT) == Record(
        kind,
        "controller",
        "pod/team-a/train-0",
        decision,
        refs={"uid": "uid-0", "node": "gpu-1", "reservation": "v1.k.x", "gpus": ["GPU-a"]},
    )


def test_a_pod_without_a_name_is_a_dash() -> None:
    assert reservation_record(replace(CHANGE, pod=UNNAMED)).subject == "pod/team-a/-"
    assert restored_record(replace(LIVE, pod=UNNAMED), "GPU-a").subject == "pod/team-a/-"
    assert kept_record(replace(GRANT, pod=UNNAMED)).subject == "pod/team-a/-"


# --- operators


def test_an_order_names_the_pod_of_its_reservation_only() -> None:
    shared = record(holder(), holder(pod=OTHER_POD))
    assert ORDER.pod_in(shared) == POD
    assert order_record(ORDER, shared, "e" * 64) == Record(
        RecordKind.RESERVATION_OPERATOR,
        OPERATOR,
        "pod/team-a/train-0",
        "released",
        refs={
            "reason": "burnt down, ticket 7",
            "uid": "uid-0",
            "node": "gpu-1",
            "reservation": "v1.k.uid-0",
            "gpus": ["GPU-a"],
            "evidence": "e" * 64,
        },
    )


def test_an_order_about_a_pod_without_a_name() -> None:
    unnamed = record(holder(pod=UNNAMED))
    assert order_record(ORDER, unnamed, None).subject == "pod/team-a/-"


def test_a_refused_order() -> None:
    refusal = Refusal(ReasonCode.RESERVATION_IN_USE, "d" * 301)
    assert refused_record(ORDER, refusal) == Record(
        RecordKind.RESERVATION_OPERATOR,
        OPERATOR,
        "reservation/v1.k.uid-0",
        "refused",
        ("RESERVATION_IN_USE",),
        {
            "reason": "burnt down, ticket 7",
            "reservation": "v1.k.uid-0",
            "gpus": ["GPU-a"],
            "detail": "d" * 300,
        },
    )


def test_the_state_of_the_ledger() -> None:
    assert ledger_record("read", {"count": 2}) == Record(
        RecordKind.LEDGER_STATE, "controller", "ledger", "read", refs={"count": 2}
    )
