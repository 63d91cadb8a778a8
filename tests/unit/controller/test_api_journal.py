"""What calls of the HTTP API leave behind."""

from typing import Any

from controller.record import Record
from controller.recorders.http import ApiJournal
from controller.web.documents import FinalizeRequest
from controller.web.operations import Operation
from gpuwarden.audit.record import RecordKind
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process

REQUEST = FinalizeRequest("team-a", "train-0", "uid-0", "v1.k.x", "GPU-1")


class Notes:
    def __init__(self) -> None:
        self.records: list[Record] = []

    def note(self, record: Record) -> None:
        self.records.append(record)


def journal() -> tuple[ApiJournal, Notes, Any]:
    instruments, notes = Instruments(Process.CONTROLLER, "0"), Notes()
    return ApiJournal(instruments, notes), notes, lambda: instruments.render().decode()


def test_a_call_of_finalize_is_a_record_with_who_called() -> None:
    told, notes, _ = journal()
    told.finalized("jane", REQUEST, None)
    told.finalized("jane", REQUEST, Refusal(ReasonCode.RESERVATION_UNKNOWN, "no such reservation"))
    good, bad = notes.records
    assert (good.kind, good.actor, good.subject) == (
        RecordKind.API_FINALIZE,
        "jane",
        "pod/team-a/train-0",
    )
    assert (good.decision, good.codes) == ("confirmed", ())
    assert (bad.decision, bad.codes) == ("refused", ("RESERVATION_UNKNOWN",))
    assert bad.refs == {
        "uid": "uid-0",
        "reservation": "v1.k.x",
        "gpu": "GPU-1",
        "reason": "no such reservation",
    }


def test_answers_and_reviews_are_counted() -> None:
    told, _, rendered = journal()
    told.answered(Operation.NODES, 200, 0.001)
    told.reviewed("kept")
    told.failed(Operation.NODES, ValueError("x"))
    text = rendered()
    assert 'gpuwarden_api_requests_total{operation="nodes",status="200"} 1.0' in text
    assert 'gpuwarden_token_reviews_total{result="kept"} 1.0' in text


def test_certificates_that_are_refused_are_counted() -> None:
    told, _, rendered = journal()
    told.certificate_changed(None)
    told.certificate_changed("no such file")
    assert 'gpuwarden_tls_material_refused_total{listener="api"} 1.0' in rendered()
