"""The audit log of this machine, as a fact."""

from pathlib import Path

import pytest

from gpuwarden.audit.files import file_name
from gpuwarden.doctor import gather
from gpuwarden.doctor.facts import LogVerdict, read_metrics
from gpuwarden.doctor.gather import local_log
from gpuwarden.telemetry import names
from tests.builders.certified_log import CertifiedLog


def written(folder: Path, lines: list[bytes]) -> Path:
    (folder / file_name(1)).write_bytes(b"".join(lines))
    return folder


def test_a_whole_log(tmp_path: Path) -> None:
    log = CertifiedLog().records(3).checkpoint()
    found = local_log(written(tmp_path, log.lines)).get()
    assert found == LogVerdict("lab/controller-0", 5, 5, 1, folder=str(tmp_path))


def test_a_log_that_was_changed(tmp_path: Path) -> None:
    lines = CertifiedLog().records(3).checkpoint().lines
    lines[1] = lines[1].replace(b'"subject":"', b'"subject":"x')
    found = local_log(written(tmp_path, lines)).get()
    assert found.broken == "record 2: changed after it was written"
    assert (found.folder, found.records) == (str(tmp_path), 0)


def test_records_behind_the_end_of_a_closed_log(tmp_path: Path) -> None:
    lines = CertifiedLog().add("log.stop").add("node.operator").lines
    found = local_log(written(tmp_path, lines)).get()
    assert (found.records, found.folder) == (3, str(tmp_path))
    assert found.broken.startswith("records behind its end: ")


def test_a_log_that_is_not_there_or_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    assert local_log(tmp_path / "none").why.endswith("/none: no such file or folder")
    assert "holds no audit-" in local_log(tmp_path).why
    (tmp_path / file_name(1)).mkdir()
    assert local_log(tmp_path).value is None


def test_a_log_that_takes_long_is_left_to_who_has_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(tmp_path, CertifiedLog().records(3).checkpoint().lines)
    size = (folder / file_name(1)).stat().st_size
    monkeypatch.setattr(gather, "MAX_LOG_BYTES", size)
    assert local_log(folder).value is not None
    monkeypatch.setattr(gather, "MAX_LOG_BYTES", size - 1)
    assert "gpuwarden audit verify" in local_log(folder).why


def test_metrics_are_read_with_their_labels() -> None:
    text = (
        "# TYPE gpuwarden_extender_requests_total counter\n"
        'gpuwarden_extender_requests_total{result="passed",verb="filter"} 12.0\n'
        'gpuwarden_extender_requests_total{result="a\\"b",verb="filter"} 3.0\n'
        "gpuwarden_svid_expires_seconds NaN\n"
        "gpuwarden_clock_suspect one\n"
        "no sample\n"
    )
    found = read_metrics(text)
    assert found.total(names.EXTENDER_REQUESTS) == 15
    assert found.total(names.EXTENDER_REQUESTS, result="passed") == 12
    assert found.value(names.EXTENDER_REQUESTS, verb="filter", result="passed") == 12
    assert found.value(names.EXTENDER_REQUESTS, verb="filter") is None
    assert found.value(names.CLOCK_SUSPECT) is None
    assert found.value(names.SVID_EXPIRY) is None
