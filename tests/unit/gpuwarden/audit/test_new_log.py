"""A new log in place of one that cannot go on."""

import fcntl
import json
from pathlib import Path

import pytest

from gpuwarden.audit.files import KEY_FILE, file_name
from gpuwarden.audit.new_log import LogInUseError, begin_new, last_checkpoint
from tests.builders.certified_log import CertifiedLog


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "audit"
    made.mkdir()
    return made


def write(folder: Path, lines: list[bytes]) -> None:
    (folder / file_name(1)).write_bytes(b"".join(lines))


def test_the_new_folder_has_keys_and_last_checkpoint_and_the_old_one_is_whole(
    folder: Path,
) -> None:
    log = CertifiedLog().records(2).checkpoint().add().checkpoint().add()
    write(folder, log.lines)
    (folder / "log-key.pem").write_bytes(b"key")
    (folder / "key-changes").write_bytes(b"changes")
    begun = begin_new(folder)
    assert begun.kept == folder.with_name("audit.old")
    assert (begun.kept / file_name(1)).read_bytes() == b"".join(log.lines)
    assert {x.name: x.read_bytes() for x in folder.iterdir()} == {
        "log-key.pem": b"key",
        "key-changes": b"changes",
        "prev-log": json.loads(log.lines[-2])["refs"]["checkpoint"].encode(),
    }
    assert {x.stat().st_mode & 0o777 for x in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert begun.prev is not None
    assert begun.prev.head.size == 5
    assert sorted(x.name for x in folder.parent.iterdir()) == ["audit", "audit.old"]


def test_an_older_folder_that_was_kept_stays(folder: Path) -> None:
    kept = []
    for _ in range(3):
        write(folder, CertifiedLog().lines)
        kept.append(begin_new(folder).kept.name)
    assert kept == ["audit.old", "audit.old1", "audit.old2"]


def test_a_log_in_use_is_left_alone(folder: Path) -> None:
    write(folder, CertifiedLog().lines)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(LogInUseError, match="in use by another process"):
            begin_new(folder)
    assert [x.name for x in folder.parent.iterdir()] == ["audit"]


def test_a_folder_without_a_log_is_left_alone(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no audit-\*\.jsonl"):
        begin_new(folder)
    assert list(folder.iterdir()) == []


def test_a_log_without_a_checkpoint_names_none(folder: Path) -> None:
    write(folder, CertifiedLog().lines)
    assert begin_new(folder).prev is None
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "line",
    [
        b'{"kind":"checkpoint","refs":{"checkpoint":"cut o',
        b'["checkpoint"]',
        b'{"kind":"checkpoint","refs":["checkpoint"]}',
        b'{"kind":"checkpoint","refs":{"checkpoint":["x"]}}',
        b'{"kind":"checkpoint","refs":{"checkpoint":"no note"}}',
        b'{"refs":{"checkpoint":"no kind"}}',
    ],
)
def test_lines_that_are_no_record_hide_no_checkpoint(folder: Path, line: bytes) -> None:
    log = CertifiedLog().checkpoint()
    note = json.loads(log.lines[-1])["refs"]["checkpoint"]
    write(folder, [*log.lines, line + b"\n"])
    assert last_checkpoint(folder) == note


def test_only_records_that_certify_count_of_whatever_version(folder: Path) -> None:
    log = CertifiedLog().checkpoint()
    note = json.loads(log.lines[-1])["refs"]["checkpoint"]
    newer = log.records(1).rotate().lines[-1]
    expected = json.loads(newer)["refs"]["checkpoint"]
    alarm = json.dumps({"kind": "log.alarm", "refs": {"checkpoint": note}}).encode()
    write(folder, [*log.lines[:-1], newer.replace(b"audit/v1", b"audit/v9"), alarm + b"\n"])
    assert last_checkpoint(folder) == expected


def test_what_fails_leaves_nothing_behind_and_can_be_run_again(folder: Path) -> None:
    """Here its key is no file; a full disk ends it at the same place."""
    write(folder, CertifiedLog().checkpoint().lines)
    (folder / KEY_FILE).mkdir()
    with pytest.raises(OSError, match="regular file"):
        begin_new(folder)
    assert list(folder.parent.iterdir()) == [folder]
    (folder / KEY_FILE).rmdir()
    assert begin_new(folder).prev is not None
