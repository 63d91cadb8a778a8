"""What the first record says, and what an opening that fails leaves behind."""

import json
import os
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from controller.audit.files import Disk, FileStore, LogBrokenError
from controller.audit.key import LogKeyError, LogKeys, log_keys
from controller.audit.opening import Unsigned, open_files, prev_log, unsigned_end
from controller.audit.tree import LogState
from controller.record import AuditUnavailableError, Json, Record
from gpuwarden.audit.chain import BEFORE_FIRST, Head
from gpuwarden.audit.checkpoint import Checkpoint, TreeHead, unverified_checkpoint
from gpuwarden.audit.files import KEY_FILE, PREV_LOG, file_name, log_files
from gpuwarden.audit.merkle import Frontier
from gpuwarden.audit.note import sign_note
from gpuwarden.audit.record import RecordKind
from gpuwarden.evidence.canonical import sha256_hex
from gpuwarden.settings.controller import AuditSettings
from tests.builders.audit_bench import ACCEPTED, STATE, Bench
from tests.builders.audit_log import digest, line, log
from tests.builders.log_keys import ORIGIN, signer
from tests.builders.log_trees import naive_root, records_in
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
    refs: dict[str, Json] = {
        "after": str(BEFORE_FIRST),
        "file": file_name(1),
        "key": key,
        "age": 0,
    }
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


# --- records of another version


def write(folder: Path, lines: list[bytes]) -> None:
    folder.mkdir()
    (folder / file_name(1)).write_bytes(b"".join(lines))


@pytest.mark.parametrize("behind", [0, 2], ids=["at the end", "in the middle"])
async def test_a_log_of_another_version_is_continued(folder: Path, behind: int) -> None:
    lines = log(2)
    for kind in ("evidence.round", "node.painted", *["node.state"] * behind):
        lines += log(1, first=len(lines) + 1, prev=digest(lines[-1]), kind=kind)
    write(folder, lines)
    bench = Bench(folder)
    with capture_logs() as logs:
        async with bench.open() as audit:
            await audit.grant(ACCEPTED)
            assert audit.condition.available
    assert "audit.healed" not in {x["event"] for x in logs}
    (path,) = log_files(folder)
    assert path.read_bytes().startswith(b"".join(lines))
    found = bench.verified()
    assert [x.seq for x in found.unknown.first] == [4]
    assert found.tree.certified >= len(lines) + 2
    assert first(folder).refs["after"] == str(found.head)


async def test_a_record_of_another_format_stops_the_log_and_is_kept(folder: Path) -> None:
    lines = log(2)
    lines.append(line(3, digest(lines[-1]), v="gpuwarden.dev/audit/v2"))
    write(folder, lines)
    async with Bench(folder).open() as audit:
        with pytest.raises(AuditUnavailableError, match="behind record 2 that is no record"):
            await audit.grant(ACCEPTED)
    (path,) = log_files(folder)
    assert path.read_bytes() == b"".join(lines)


# --- records that no checkpoint covers


async def closed(folder: Path) -> Bench:
    """A log that was closed in order."""
    bench = Bench(folder)
    async with bench.open() as audit:
        await audit.grant(ACCEPTED)
        await audit.grant(STATE)
    return bench


def append(folder: Path, *kinds: str, **refs: object) -> None:
    """What somebody can do who may write to the folder, and has no key."""
    (path,) = log_files(folder)
    for kind in kinds:
        last = path.read_bytes().splitlines()[-1]
        seq = json.loads(last)["seq"] + 1
        with path.open("ab") as file:
            file.write(line(seq, digest(last), kind=kind, refs=refs))


async def test_nothing_is_reported_of_a_log_that_was_closed_in_order(folder: Path) -> None:
    await closed(folder)
    with capture_logs() as logs:
        assert "unsigned" not in first(folder).refs
    assert [entry["event"] for entry in logs] == ["audit.opened"]


@pytest.mark.parametrize(
    "kinds",
    [
        ("node.state",),
        ("reservation.released", "log.stop"),
        ("log.stop",),
        ("log.start", "node.state", "log.stop"),
        ("checkpoint",),
    ],
)
async def test_what_was_appended_while_the_controller_was_down_is_reported(
    folder: Path, kinds: tuple[str, ...]
) -> None:
    """The records fit the chain. No checkpoint covers them, and they follow a `log.stop`."""
    await closed(folder)
    last = records_in(folder)[-1]["seq"]
    append(folder, *kinds)
    with capture_logs() as logs:
        refs = first(folder).refs
    found = {"first": last, "last": last + len(kinds)}
    assert refs["unsigned"] == found | {"appended": True}
    assert {"component": "audit", "event": "audit.appended", "log_level": "error"} | found in logs


async def test_a_checkpoint_of_another_key_covers_nothing(folder: Path) -> None:
    await closed(folder)
    lines = log_files(folder)[0].read_bytes().splitlines()
    last = len(lines)
    old = [r for r in records_in(folder) if r["kind"] == "checkpoint"][-1]["refs"]["checkpoint"]
    root = TreeHead(last, naive_root(lines))
    forged = Checkpoint("lab/controller-0", unverified_checkpoint(old).log, root)
    for note in (forged.signed(signer(9)), old):
        append(folder, "checkpoint", checkpoint=note)
    refs = first(folder).refs
    assert refs["unsigned"] == {"first": last, "last": last + 2, "appended": True}


async def test_what_a_crash_leaves_behind_the_last_checkpoint_is_reported(folder: Path) -> None:
    await closed(folder)
    (path,) = log_files(folder)
    lines = path.read_bytes().splitlines(keepends=True)
    kinds = [json.loads(one)["kind"] for one in lines]
    assert kinds[-2:] == ["checkpoint", "log.stop"]
    path.write_bytes(b"".join(lines[:-1]))
    assert "unsigned" not in first(folder).refs

    path.write_bytes(b"".join(lines[:-2]))
    with capture_logs() as logs:
        refs = first(folder).refs
    signed = len(lines) - 2 - kinds[-3::-1].index("checkpoint")
    found = {"first": signed + 1, "last": len(lines) - 2}
    assert refs["unsigned"] == found | {"appended": False}
    assert {"component": "audit", "event": "audit.unsigned", "log_level": "warning"} | found in logs


async def test_the_first_record_of_a_further_file_covers_what_lies_before_it(folder: Path) -> None:
    bench = Bench(folder)
    async with bench.open(rotate_bytes=4000) as audit:
        for _ in range(12):
            await audit.grant(ACCEPTED)
    assert len(log_files(folder)) > 1
    assert "unsigned" not in first(folder).refs
    *_, path = log_files(folder)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:1]))
    assert "unsigned" not in first(folder).refs


@pytest.mark.parametrize(
    ("before", "stops", "head", "unsigned"),
    [
        (5, [], 5, None),
        (5, [], 6, (6, 6, False)),
        (5, [6], 6, None),
        (5, [3], 6, (6, 6, False)),
        (5, [5], 6, (6, 6, False)),
        (5, [7], 7, (6, 7, False)),
        (5, [6], 7, (6, 7, True)),
    ],
)
def test_records_behind_what_is_signed_are_told_but_the_end_of_the_log(
    before: int, stops: list[int], head: int, unsigned: tuple[int, int, bool] | None
) -> None:
    state = LogState(Frontier(), before=before, stops=deque(stops))
    expected = None if unsigned is None else Unsigned(*unsigned)
    assert unsigned_end(state, Head(head, "a" * 64), KEYS) == expected


def test_a_pipe_in_place_of_what_an_operator_puts_there_holds_nobody_up(folder: Path) -> None:
    folder.mkdir()
    os.mkfifo(folder / "prev-log")
    with pytest.raises(OSError, match="prev-log is a named pipe"):
        first(folder)
    (folder / "prev-log").unlink()
    os.mkfifo(folder / "key-changes")
    (folder / "tree").unlink()
    os.mkfifo(folder / "tree")
    assert "prevLog" not in first(folder).refs


def test_a_pipe_in_place_of_the_key_holds_nobody_up(folder: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "key")
    settings = AuditSettings(dir=folder, reserve=0, key=tmp_path / "key")
    with pytest.raises(LogKeyError, match="a named pipe; expected a regular file"):
        open_files(settings, ORIGIN, FakeClock(), Disk())
    (folder / "log-key.pem").unlink(missing_ok=True)
    os.mkfifo(folder / "log-key.pem")
    with pytest.raises(LogKeyError, match="a named pipe; expected a regular file"):
        first(folder)


def half_begun(folder: Path) -> None:
    new = folder.with_name(f"{folder.name}.new")
    new.mkdir(parents=True)
    (new / PREV_LOG).write_text("the old log's last checkpoint")


def test_nothing_begins_while_a_new_log_is_half_begun(folder: Path) -> None:
    """Its key would be another than the old log's."""
    half_begun(folder)
    told = f"not begun to its end; run gpuwarden audit begin-new {folder}"
    with pytest.raises(LogBrokenError, match=told):
        first(folder)
    assert not folder.exists()


def test_a_log_that_is_moved_while_it_is_opened_gets_no_new_key(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class MovedMeanwhile(FileStore):
        def __init__(self, *args: Any) -> None:
            half_begun(folder)
            super().__init__(*args)

    monkeypatch.setattr("controller.audit.opening.FileStore", MovedMeanwhile)
    with pytest.raises(LogBrokenError, match="not begun to its end"):
        first(folder)
    assert not (folder / KEY_FILE).exists()


def test_a_log_goes_on_beside_what_a_run_has_left(folder: Path) -> None:
    folder.mkdir()
    (folder / file_name(1)).write_bytes(b"".join(log(2)))
    half_begun(folder)
    assert first(folder).refs["after"] != str(BEFORE_FIRST)
