"""What is counted and logged of the access for people; many of one kind are few lines."""

from pathlib import Path

import pytest

from controller.recorders.people import PeopleRecorder
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process


def recorder() -> tuple[PeopleRecorder, Instruments]:
    instruments = Instruments(Process.CONTROLLER, "test")
    return PeopleRecorder(instruments), instruments


def shown(instruments: Instruments, series: str) -> str:
    lines = instruments.render().decode().splitlines()
    return next(x.rpartition(" ")[2] for x in lines if x.startswith(f"{series} "))


def test_questions_are_counted_by_what_became_of_them() -> None:
    one, instruments = recorder()
    for question, result in (("token", "accepted"), ("token", "accepted"), ("right", "refused")):
        one.reviewed(question, result)
    name = "gpuwarden_access_reviews_total"
    assert shown(instruments, f'{name}{{question="token",result="accepted"}}') == "2.0"
    assert shown(instruments, f'{name}{{question="right",result="refused"}}') == "1.0"


def test_the_end_of_the_certificate_is_a_gauge() -> None:
    one, instruments = recorder()
    one.show_certificate(lambda: 12.0)
    series = 'gpuwarden_serving_certificate_expires_seconds{listener="access"}'
    assert shown(instruments, series) == "12.0"


def test_a_certificate_that_is_refused_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    one, instruments = recorder()
    one.certificate_changed(None)
    one.certificate_changed("it has ended")
    assert shown(instruments, 'gpuwarden_tls_material_refused_total{listener="access"}') == "1.0"
    assert "it has ended" in capsys.readouterr().out


def test_handshakes_that_cannot_be_served_and_a_missing_authority_are_few_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one, instruments = recorder()
    for _ in range(100):
        one.not_served("accessCertificates", "nothing to verify clients with")
        one.no_authority(Path("ca.crt"), FileNotFoundError())
    out = capsys.readouterr().out
    assert "nothing to verify clients with" in out
    assert "access.tls.ca: ca.crt: FileNotFoundError" in out
    assert len(out.splitlines()) < 20
    labels = 'cause="no-material",listener="accessCertificates"'
    found = instruments.render().decode()
    assert labels in found or 'listener="accessCertificates",cause="no-material"' in found
