from collections.abc import Iterable
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from controller.binding.idle import Account, Holding, IdleChanges, IdleGpu
from controller.binding.records import BindDecision, ReleaseOrder, ReservationChange
from controller.binding.use import FaultChanges, UseFault, UseFaultKind
from controller.ledger.record import HolderState, PodRef
from controller.ledger.release import DriftKind, GivenGpu
from controller.ledger.restore import LivePod, LoggedGrant
from controller.ledger.store import Entry, LedgerSnapshot
from controller.recorders.binding import BindingRecorder, UseRecorder
from gpuwarden.audit.record import RecordKind
from gpuwarden.moment import NS_PER_S
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.ledger import in_state, record
from tests.builders.node_use import NODE, ref
from tests.fakes.recording_audit import RecordingAudit

# --- What the binding webhook and its reservations leave in metrics and audit log

POD = PodRef("team-a", "train-0", "uid-0")
REFUSED = (Refusal(ReasonCode.GPU_BUSY, "none free"), Refusal(ReasonCode.GPU_BUSY, "none"))


class Told:
    def __init__(self) -> None:
        self.instruments = Instruments(Process.CONTROLLER, "0")
        self.audit = RecordingAudit()
        self.heard: list[BindDecision] = []
        self.recorder = BindingRecorder(self.instruments, self.audit, self.heard.append)

    def metric(self, name: str, **labels: str) -> float | None:
        for family in text_string_to_metric_families(self.instruments.render().decode()):
            for sample in family.samples:
                if sample.name == f"gpuwarden_{name}" and sample.labels == labels:
                    return sample.value
        return None


def decision(*refusals: Refusal, reported: bool = False) -> BindDecision:
    reservation = "" if refusals else "v1.k.x"
    gpus = () if refusals else ("GPU-a",)
    return BindDecision(
        "team-a",
        "train-0",
        "uid-0",
        "gpu-1",
        "jane",
        refusals,
        reported,
        reservation,
        gpus,
        "" if refusals else "e" * 64,
    )


def test_reservations_at_creation() -> None:
    told = Told()
    told.recorder.reserved_early(ReasonCode.ACCEPTED, is_new=True)
    told.recorder.reserved_early(ReasonCode.ACCEPTED, is_new=False)
    told.recorder.reserved_early(ReasonCode.GPU_BUSY, is_new=False)
    assert told.metric("early_reservations_total", code="ACCEPTED") == 2
    assert told.metric("early_reservations_total", code="GPU_BUSY") == 1
    assert told.metric("reservation_changes_total", state="Proposed") == 1


def test_a_long_name_of_who_binds_is_cut() -> None:
    told = Told()
    told.recorder.bound(replace(decision(), user="u" * 5000))
    assert [x.actor for x in told.audit.noted] == ["u" * 253]


def test_answers() -> None:
    told = Told()
    told.recorder.bound(decision())
    told.recorder.bound(decision(*REFUSED))
    told.recorder.bound(decision(*REFUSED, reported=True))
    allowed, refused, reported = told.audit.noted
    assert [x.word for x in told.heard] == ["allowed", "refused", "reported"]
    assert allowed.kind is RecordKind.BIND_DECISION
    assert (allowed.actor, allowed.subject, allowed.decision) == (
        "jane",
        "pod/team-a/train-0",
        "allowed",
    )
    assert allowed.refs["gpus"] == ["GPU-a"]
    assert (allowed.refs["evidence"], refused.refs["evidence"]) == ("e" * 64, "")
    assert (refused.decision, refused.codes) == ("refused", ("GPU_BUSY",))
    assert refused.refs["reasons"] == ["none free", "none"]
    assert reported.decision == "reported"
    assert told.metric("bind_decisions_total", code="ACCEPTED", decision="allowed") == 1
    assert told.metric("bind_decisions_total", code="GPU_BUSY", decision="refused") == 1
    assert told.metric("bind_decisions_total", code="GPU_BUSY", decision="reported") == 1
    assert told.metric("reservation_changes_total", state="Proposed") == 1


def test_every_state_has_its_record() -> None:
    told = Told()
    for state in HolderState:
        told.recorder.changed(ReservationChange(POD, "v1.k.x", "gpu-1", ("GPU-a",), state, "why"))
        assert told.metric("reservation_changes_total", state=state.value) == 1
    assert [(x.kind.value, x.decision) for x in told.audit.noted] == [
        ("reservation.reserved", "proposed"),
        ("reservation.confirmed", "confirmed"),
        ("reservation.releasing", "releasing"),
        ("reservation.released", "released"),
        ("reservation.expired", "expired"),
        ("reservation.revoked", "revoked"),
    ]
    assert {x.refs["cause"] for x in told.audit.noted} == {"why"}


def test_a_restored_record() -> None:
    told = Told()
    told.recorder.restored(LivePod(POD, "gpu-1", "v1.k.x", ("GPU-a", "GPU-b")), "GPU-b")
    (record,) = told.audit.noted
    assert (record.kind, record.refs["gpus"]) == (RecordKind.RESERVATION_RESTORED, ["GPU-b"])
    assert told.metric("reservation_changes_total", state="Restored") == 1


def test_what_is_held_and_what_does_not_agree() -> None:
    told = Told()
    told.recorder.show(LedgerSnapshot.of([Entry(in_state(HolderState.CONFIRMED), "1")]), 2, 0)
    assert told.metric("bindings_never_stored") == 2
    assert told.metric("reservations", state="Confirmed") == 1
    assert told.metric("reservations", state="Proposed") == 0
    told.recorder.drifts({DriftKind.TORN: 2})
    assert told.metric("reservation_drift", kind="torn") == 2
    told.recorder.drifts({})
    assert told.metric("reservation_drift", kind="torn") == 0
    told.recorder.rollback_detected(frozenset({"GPU-b", "GPU-a"}))
    (record,) = told.audit.noted
    assert (record.kind, record.decision) == (RecordKind.LEDGER_STATE, "rolled-back")
    assert record.refs == {"count": 2, "gpus": ["GPU-a", "GPU-b"]}
    assert told.metric("ledger_rollbacks_total") == 1


def releasing(*gpus: str) -> LedgerSnapshot:
    made = (record(in_state(HolderState.RELEASING, x).holders[0], gpu=x) for x in gpus)
    return LedgerSnapshot.of(Entry(x, "1") for x in made)


@pytest.mark.parametrize(
    ("shown", "seconds"),
    [
        (((0, ()), (900, ())), 0),
        (((0, ("GPU-a",)),), 0),
        (((0, ("GPU-a",)), (1000, ("GPU-a",))), 1000),
        (((0, ("GPU-a",)), (600, ("GPU-a", "GPU-b")), (1000, ("GPU-b",))), 400),
        (((0, ("GPU-a",)), (600, ()), (1000, ("GPU-a",))), 0),
    ],
    ids=["none", "the first time", "one that stays", "others come and go", "ended, then another"],
)
def test_the_age_of_the_oldest_release(
    shown: tuple[tuple[int, tuple[str, ...]], ...], seconds: int
) -> None:
    told = Told()
    for at_s, gpus in shown:
        told.recorder.show(releasing(*gpus), 0, at_s * NS_PER_S)
    assert told.metric("reservation_releasing_oldest_seconds") == seconds


GRANT = LoggedGrant("GPU-a", "gpu-1", "v1.k.x", POD, ("GPU-a",))
OTHER = replace(GRANT, reservation="v1.k.y")


def begun(told: Told, how: str) -> None:
    match how:
        case "reserved":
            told.recorder.bound(decision())
        case "confirmed":
            told.recorder.changed(
                ReservationChange(POD, "v1.k.x", "gpu-1", ("GPU-a",), HolderState.CONFIRMED, "why")
            )
        case "restored":
            told.recorder.restored(LivePod(POD, "gpu-1", "v1.k.x", ("GPU-a",)), "GPU-a")
        case "kept":
            told.recorder.kept(GRANT)
        case "recorded":
            told.recorder.logged("GPU-a", "v1.k.x")
        case _:
            told.recorder.log_replayed({("gpu-a", "v1.k.x"): GRANT})


@pytest.mark.parametrize(
    "how", ["reserved", "confirmed", "restored", "kept", "recorded", "recalled"]
)
def test_what_this_log_has_gets_an_end_there_also_where_another_replica_saw_to_it(
    how: str,
) -> None:
    told = Told()
    begun(told, how)
    before = len(told.audit.noted)
    told.recorder.ended_elsewhere((GRANT, OTHER))
    (record,) = told.audit.noted[before:]
    assert (record.kind, record.decision) == (RecordKind.RESERVATION_ENDED, "ended")
    assert (record.subject, record.refs["reservation"]) == ("pod/team-a/train-0", "v1.k.x")
    told.recorder.ended_elsewhere((GRANT,))
    assert len(told.audit.noted) == before + 1


def test_each_gpu_of_a_reservation_gets_its_own_end() -> None:
    """An operator releases one of them, the node shows the other one later."""
    told, both = Told(), ("GPU-a", "GPU-b")
    told.recorder.changed(
        ReservationChange(POD, "v1.k.x", "gpu-1", both, HolderState.RELEASING, "")
    )
    told.recorder.changed(
        ReservationChange(POD, "v1.k.x", "gpu-1", ("GPU-a",), HolderState.RELEASED, "", "ann")
    )
    told.recorder.ended_elsewhere((replace(GRANT, gpus=both),))
    told.recorder.ended_elsewhere((replace(GRANT, gpu="GPU-b", gpus=both),))
    assert [(x.decision, x.actor, x.refs["gpus"]) for x in told.audit.noted[1:]] == [
        ("released", "ann", ["GPU-a"]),
        ("ended", "controller", ["GPU-b"]),
    ]


def test_how_long_releases_take_is_measured() -> None:
    told = Told()
    for seconds in (0.9, 2.5, 4.0):
        told.recorder.freed(seconds)
    assert told.metric("reservation_release_seconds_sum") == 7.4
    assert told.metric("reservation_release_seconds_bucket", le="1.0") == 1
    assert told.metric("reservation_release_seconds_bucket", le="3.0") == 2


def test_an_order_of_an_operator_is_counted() -> None:
    told = Told()
    order = ReleaseOrder("GPU-a", "v1.k.x", "burnt", "ann")
    told.recorder.ordered(order, None)
    told.recorder.ordered(order, Refusal(ReasonCode.RESERVATION_IN_USE, "no"))
    for code in ("OK", "RESERVATION_IN_USE"):
        assert told.metric("operator_acts_total", act="release-gpu", code=code) == 1
    assert told.audit.noted == []


def test_what_this_replica_ended_itself_has_its_end() -> None:
    told = Told()
    begun(told, "confirmed")
    told.recorder.changed(
        ReservationChange(POD, "v1.k.x", "gpu-1", ("GPU-a",), HolderState.REVOKED, "why")
    )
    told.recorder.ended_elsewhere((GRANT,))
    assert [x.decision for x in told.audit.noted] == ["confirmed", "revoked"]


def test_a_reservation_restored_from_the_log() -> None:
    told = Told()
    told.recorder.kept(GRANT)
    (record,) = told.audit.noted
    assert (record.kind, record.decision) == (RecordKind.RESERVATION_RESTORED, "kept")
    assert record.refs == {
        "uid": "uid-0",
        "node": "gpu-1",
        "reservation": "v1.k.x",
        "gpus": ["GPU-a"],
    }
    assert told.metric("reservation_changes_total", state="Kept") == 1


def test_whether_the_ledger_can_be_read() -> None:
    told = Told()
    told.recorder.ledger_read("")
    assert told.metric("ledger_available") == 1
    told.recorder.ledger_read("away")
    told.recorder.ledger_read("away")
    assert told.metric("ledger_available") == 0
    told.recorder.ledger_read("")
    assert [(x.kind, x.decision) for x in told.audit.noted] == [
        (RecordKind.LEDGER_STATE, "unavailable"),
        (RecordKind.LEDGER_STATE, "available"),
    ]
    assert told.audit.noted[0].refs == {"reason": "away"}
    told.recorder.wrote("overtaken")
    assert told.metric("reservation_writes_total", result="overtaken") == 1


# --- What comparisons leave in metrics, audit log and Events

ANOTHER_GPU = UseFault(UseFaultKind.OTHER_GPU, NODE, "GPU-a", ref())
UNRESERVED_USE = UseFault(UseFaultKind.UNRESERVED_USE, NODE, "GPU-b", None, "uid-9")
NOBODY = UseFault(UseFaultKind.UNRESERVED_USE, NODE, "GPU-b", None)
UNRESERVED = UseFault(UseFaultKind.UNRESERVED, NODE, "", ref())


class UseTold:
    def __init__(self) -> None:
        self.instruments = Instruments(Process.CONTROLLER, "0")
        self.audit = RecordingAudit()
        self.heard: list[UseFault] = []
        self.logged: list[tuple[str, str]] = []
        self.recorder = UseRecorder(self.instruments, self.audit, self.hear, self.begun)

    def begun(self, gpu: str, reservation: str) -> None:
        self.logged.append((gpu, reservation))

    def hear(self, faults: Iterable[UseFault]) -> None:
        self.heard += faults

    def metric(self, name: str, **labels: str) -> float | None:
        for family in text_string_to_metric_families(self.instruments.render().decode()):
            for sample in family.samples:
                if sample.name == f"gpuwarden_{name}" and sample.labels == labels:
                    return sample.value
        return None


def test_a_recorded_allocation() -> None:
    told = UseTold()
    told.recorder.allocation_recorded(GivenGpu(ref(), NODE, "GPU-a"), "v1.k.x", "e" * 64)
    told.recorder.wrote("written")
    assert told.logged == [("GPU-a", "v1.k.x")]
    (record,) = told.audit.noted
    assert (record.kind, record.decision) == (RecordKind.RESERVATION_ALLOCATED, "recorded")
    assert record.subject == "pod/team-a/train-0"
    assert record.refs == {
        "uid": "uid-train-0",
        "node": NODE,
        "reservation": "v1.k.x",
        "gpus": ["GPU-a"],
        "evidence": "e" * 64,
    }
    assert told.metric("reservation_changes_total", state="Allocated") == 1
    assert told.metric("reservation_writes_total", result="written") == 1


def test_disagreements() -> None:
    told = UseTold()
    begun = (ANOTHER_GPU, UNRESERVED_USE, NOBODY, UNRESERVED)
    told.recorder.compared(FaultChanges(begun, ()), {UseFaultKind.UNRESERVED_USE: 2})
    found = [
        (x.kind, x.subject, x.decision, x.refs["uid"], x.refs["gpus"]) for x in told.audit.noted
    ]
    mismatch, unreserved_use = RecordKind.RESERVATION_MISMATCH, RecordKind.RESERVATION_UNRESERVED
    assert found == [
        (mismatch, "pod/team-a/train-0", "other_gpu", "uid-train-0", ["GPU-a"]),
        (unreserved_use, f"node/{NODE}", "unreserved_use", "uid-9", ["GPU-b"]),
        (unreserved_use, f"node/{NODE}", "unreserved_use", "", ["GPU-b"]),
        (mismatch, "pod/team-a/train-0", "unreserved", "uid-train-0", []),
    ]
    assert told.heard == list(begun)
    assert told.metric("gpu_use_faults", kind="unreserved_use") == 2
    assert told.metric("gpu_use_faults", kind="other_gpu") == 0


def test_their_end_is_a_record_and_no_event() -> None:
    told = UseTold()
    told.recorder.compared(FaultChanges((), (ANOTHER_GPU,)), {})
    (found,) = told.audit.noted
    assert (found.kind, found.decision) == (RecordKind.USE_ENDED, "other_gpu")
    assert told.heard == []
    assert told.metric("gpu_use_faults", kind="other_gpu") == 0


def test_evictions() -> None:
    told = UseTold()
    told.recorder.evicted(ref(), "")
    told.recorder.evicted(ref(), "a budget is against it")
    assert [(x.kind, x.decision, x.refs["cause"]) for x in told.audit.noted] == [
        (RecordKind.RESERVATION_EVICTED, "evicted", ""),
        (RecordKind.RESERVATION_EVICTED, "failed", "a budget is against it"),
    ]
    assert told.metric("evictions_total", result="evicted") == 1
    assert told.metric("evictions_total", result="failed") == 1


def test_idle_gpus_and_accounts() -> None:
    told = UseTold()
    idle = IdleGpu(Holding("GPU-a", NODE, ref(), "v1.k.x"), since_wall_ns=1_500_000_000)
    told.recorder.idled(IdleChanges((idle,), (idle,)), 1)
    told.recorder.accounted({"team-a": Account(9_000_000, 4_000_000)})
    refs = {
        "uid": "uid-train-0",
        "node": NODE,
        "reservation": "v1.k.x",
        "gpus": ["GPU-a"],
        "sinceMs": "1500",
    }
    assert [(x.kind, x.subject, x.decision, x.refs) for x in told.audit.noted] == [
        (RecordKind.USE_IDLE, "pod/team-a/train-0", "idle", refs),
        (RecordKind.USE_IDLE, "pod/team-a/train-0", "ended", refs),
        (
            RecordKind.USE_ACCOUNT,
            "namespace/team-a",
            "accounted",
            {"reservedMs": "9", "idleMs": "4"},
        ),
    ]
    assert told.metric("idle_gpus") == 1
