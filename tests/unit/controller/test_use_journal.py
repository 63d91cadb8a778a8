"""What comparisons leave in metrics, audit log and Events."""

from collections.abc import Iterable

from prometheus_client.parser import text_string_to_metric_families

from controller.binding.use import FaultChanges, UseFault, UseFaultKind
from controller.ledger.release import GivenGpu
from controller.recorders.binding import UseJournal
from gpuwarden.audit.record import RecordKind
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.node_use import NODE, ref
from tests.fakes.recording_audit import RecordingAudit

OTHER = UseFault(UseFaultKind.OTHER_GPU, NODE, "GPU-a", ref())
OFF_BOOK = UseFault(UseFaultKind.OFF_BOOK, NODE, "GPU-b", None, "uid-9")
NOBODY = UseFault(UseFaultKind.OFF_BOOK, NODE, "GPU-b", None)
UNRESERVED = UseFault(UseFaultKind.UNRESERVED, NODE, "", ref())


class Told:
    def __init__(self) -> None:
        self.instruments = Instruments(Process.CONTROLLER, "0")
        self.audit = RecordingAudit()
        self.heard: list[UseFault] = []
        self.logged: list[tuple[str, str]] = []
        self.journal = UseJournal(self.instruments, self.audit, self.hear, self.begun)

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


def test_a_settlement() -> None:
    told = Told()
    told.journal.settled(GivenGpu(ref(), NODE, "GPU-a"), "v1.k.x")
    told.journal.wrote("written")
    assert told.logged == [("GPU-a", "v1.k.x")]
    (record,) = told.audit.noted
    assert (record.kind, record.decision) == (RecordKind.RESERVATION_SETTLED, "settled")
    assert record.subject == "pod/team-a/train-0"
    assert record.refs == {
        "uid": "uid-train-0",
        "node": NODE,
        "reservation": "v1.k.x",
        "gpus": ["GPU-a"],
    }
    assert told.metric("reservation_changes_total", state="Settled") == 1
    assert told.metric("reservation_writes_total", result="written") == 1


def test_disagreements() -> None:
    told = Told()
    begun = (OTHER, OFF_BOOK, NOBODY, UNRESERVED)
    told.journal.compared(FaultChanges(begun, ()), {UseFaultKind.OFF_BOOK: 2})
    found = [
        (x.kind, x.subject, x.decision, x.refs["uid"], x.refs["gpus"]) for x in told.audit.noted
    ]
    mismatch, off_book = RecordKind.RESERVATION_MISMATCH, RecordKind.RESERVATION_OFF_BOOK
    assert found == [
        (mismatch, "pod/team-a/train-0", "other_gpu", "uid-train-0", ["GPU-a"]),
        (off_book, f"node/{NODE}", "off_book", "uid-9", ["GPU-b"]),
        (off_book, f"node/{NODE}", "off_book", "", ["GPU-b"]),
        (mismatch, "pod/team-a/train-0", "unreserved", "uid-train-0", []),
    ]
    assert told.heard == list(begun)
    assert told.metric("gpu_use_faults", kind="off_book") == 2
    assert told.metric("gpu_use_faults", kind="other_gpu") == 0


def test_their_end_is_no_record() -> None:
    told = Told()
    told.journal.compared(FaultChanges((), (OTHER,)), {})
    assert (told.audit.noted, told.heard) == ([], [])
    assert told.metric("gpu_use_faults", kind="other_gpu") == 0


def test_evictions() -> None:
    told = Told()
    told.journal.evicted(ref(), "")
    told.journal.evicted(ref(), "a budget is against it")
    assert [(x.kind, x.decision, x.refs["cause"]) for x in told.audit.noted] == [
        (RecordKind.RESERVATION_EVICTED, "evicted", ""),
        (RecordKind.RESERVATION_EVICTED, "failed", "a budget is against it"),
    ]
    assert told.metric("evictions_total", result="evicted") == 1
    assert told.metric("evictions_total", result="failed") == 1
