"""What the first record says, and what an opening that fails leaves behind."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from controller.audit.files import Disk
from controller.audit.key import LogKeyError, LogKeys, log_keys
from controller.audit.opening import open_files, prev_log
from controller.record import Record
from gpuwarden.audit.chain import BEFORE_FIRST, Head
from gpuwarden.audit.checkpoint import Checkpoint, TreeHead
from gpuwarden.audit.files import file_name
from gpuwarden.audit.note import sign_note
from gpuwarden.audit.record import RecordKind
from gpuwarden.evidence.canonical import sha256_hex
from gpuwarden.settings.controller import AuditSettings
from tests.builders.audit_log import digest, log
from tests.builders.log_keys import ORIGIN, signer
from tests.fakes.clock import FakeClock

KEYS = LogKeys(signer(1), (signer(2),))
TEXT = Checkpoint(ORIGIN, "1f" * 16, TreeHead(5, b"r" * 32)).text()


def first(folder: Path) -> Record:
    """The first record of a log that is opened and let go at once."""
    opened = open_files(AuditSettings(dir=folder, reserve=0), ORIGIN, FakeClock(), Disk())
    opened.close()
    [record] = opened.first
    return record


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_new_log_says_where_it_begins(folder: Path) -> None:
    with capture_logs() as logs:
        record = first(folder)
    key = str(log_keys(None, folder, ORIGIN).current.key)
    refs = {"after": str(BEFORE_FIRST), "file": file_name(1), "key": key}
    assert record == Record(RecordKind.LOG_START, "controller", "log", "started", refs=refs)
    assert logs == [
        {
            "component": "audit",
            "event": "audit.opened",
            "log_level": "info",
            "head": str(BEFORE_FIRST),
            "file": file_name(1),
        }
    ]


def test_a_torn_end_is_reported(folder: Path) -> None:
    folder.mkdir()
    lines = log(2)
    (folder / file_name(1)).write_bytes(lines[0] + lines[1][:9])
    with capture_logs() as logs:
        record = first(folder)
    healed = {"file": file_name(1), "bytes": 9, "digest": sha256_hex(lines[1][:9])}
    assert record.refs["healed"] == healed
    assert record.refs["after"] == str(Head(1, digest(lines[0])))
    told = {"component": "audit", "event": "audit.healed", "log_level": "warning"}
    assert logs[0] == told | healed


def test_what_was_before_is_asked_only_where_a_log_begins(folder: Path) -> None:
    folder.mkdir()
    (folder / file_name(1)).write_bytes(log(1)[0])
    (folder / "prev-log").write_text("junk")
    assert "prevLog" not in first(folder).refs


def test_an_opening_that_fails_leaves_no_descriptor_open(folder: Path, tmp_path: Path) -> None:
    settings = AuditSettings(dir=folder, reserve=0, key=tmp_path / "missing")
    before = descriptors()
    with pytest.raises(LogKeyError):
        open_files(settings, ORIGIN, FakeClock(), Disk())
    assert descriptors() == before


def test_the_note_of_a_lost_log_is_signed_by_any_key_of_ours(tmp_path: Path) -> None:
    assert prev_log(tmp_path, KEYS) is None
    for number in (1, 2):
        note = sign_note(TEXT, [signer(number)])
        (tmp_path / "prev-log").write_text(note)
        assert prev_log(tmp_path, KEYS) == note
    (tmp_path / "prev-log").write_text(sign_note(TEXT, [signer(3)]))
    with pytest.raises(LogKeyError, match="prev-log is no checkpoint"):
        prev_log(tmp_path, KEYS)


def test_the_note_of_a_lost_log_may_be_as_long_as_a_checkpoint(tmp_path: Path) -> None:
    short = len(sign_note(f"{TEXT}x\n", [signer(1)]))
    note = sign_note(f"{TEXT}{'x' * (4096 - short + 1)}\n", [signer(1)])
    assert len(note) == 4096
    (tmp_path / "prev-log").write_text(note)
    assert prev_log(tmp_path, KEYS) == note
