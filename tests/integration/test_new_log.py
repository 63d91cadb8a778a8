"""`gpuwarden audit begin-new` under a real writer that waits for a log that it can open."""

import asyncio
import errno
import os
from pathlib import Path

import pytest

from gpuwarden.audit.checkpoint import unverified_checkpoint
from gpuwarden.audit.files import log_files, verify_files
from gpuwarden.audit.witness import Shown, conclude, remembered
from gpuwarden.cli.app import run
from gpuwarden.reasons import ReasonCode
from tests.builders.audit_bench import ACCEPTED, Bench, until
from tests.builders.log_trees import notes_in, records_in

WAIT_S = 30


def damage(folder: Path) -> None:
    """In the middle of a record, as a worn disk or a hand does."""
    (path,) = log_files(folder)
    path.write_bytes(path.read_bytes().replace(b'"node/n1"', b'"node/n2"', 1))


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    """Its log had a few grants and is damaged now; no controller runs."""
    made = Bench(tmp_path / "audit")
    async with made.open() as audit:
        for _ in range(3):
            await audit.grant(ACCEPTED)
    damage(made.settings.dir)
    return made


def names_old(folder: Path, note: str) -> bool:
    first, *_ = records_in(folder)
    named: object = first["refs"].get("prevLog")
    return (first["kind"], named) == ("log.start", note)


async def test_a_waiting_controller_goes_on_and_no_witness_raises_an_alarm(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = bench.settings.dir
    _, note = notes_in(folder)[-1]
    key = next(r["refs"]["key"] for r in records_in(folder) if r["kind"] == "log.start")
    async with bench.open() as audit:
        assert not audit.condition.available
        await until(lambda: run(["audit", "begin-new", str(folder)]) == 0)
        async with asyncio.timeout(WAIT_S):
            await until(lambda: audit.condition.available)
        await audit.grant(ACCEPTED)
    assert names_old(folder, note)
    _, fresh = notes_in(folder)[-1]
    assert str(folder.with_name("audit.old")) in capsys.readouterr().out
    _, alarm = conclude(remembered(note, key), Shown(fresh, (), key, ()))
    assert alarm is None
    assert unverified_checkpoint(fresh).prev == unverified_checkpoint(note).head
    assert verify_files(log_files(folder.with_name("audit.old"))).at is not None
    bench.verified()


async def test_a_controller_that_starts_where_the_command_was_ended_waits_for_it(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that it began there would have another key, and be an alarm."""
    folder = bench.settings.dir
    _, note = notes_in(folder)[-1]
    key = next(r["refs"]["key"] for r in records_in(folder) if r["kind"] == "log.start")
    rename = Path.rename

    def ended(path: Path, target: Path) -> Path:
        if target == folder:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", ended)
        assert run(["audit", "begin-new", str(folder)]) == 2
    assert not folder.exists()
    async with bench.open() as audit:
        assert f"run gpuwarden audit begin-new {folder}" in audit.condition.reason
        assert not folder.exists()
        assert run(["audit", "begin-new", str(folder)]) == 0
        async with asyncio.timeout(WAIT_S):
            await until(lambda: audit.condition.available)
        await audit.grant(ACCEPTED)
    assert names_old(folder, note)
    assert str(folder.with_name("audit.old")) in capsys.readouterr().out
    _, fresh = notes_in(folder)[-1]
    _, alarm = conclude(remembered(note, key), Shown(fresh, (), key, ()))
    assert alarm is None
    bench.verified()


async def test_a_folder_that_is_only_moved_away_is_an_alarm(bench: Bench) -> None:
    """A controller makes another key there at once: what the command is for."""
    folder = bench.settings.dir
    _, note = notes_in(folder)[-1]
    key = next(r["refs"]["key"] for r in records_in(folder) if r["kind"] == "log.start")
    folder.rename(folder.with_name("audit.old"))
    async with bench.open() as audit:
        await audit.grant(ACCEPTED)
    other = next(r["refs"]["key"] for r in records_in(folder) if r["kind"] == "log.start")
    _, fresh = notes_in(folder)[-1]
    _, alarm = conclude(remembered(note, key), Shown(fresh, (), other, ()))
    assert alarm is not None
    assert alarm.code is ReasonCode.LOG_RESET


async def test_a_log_that_a_controller_writes_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = Bench(tmp_path / "audit")
    async with bench.open() as audit:
        await audit.grant(ACCEPTED)
        assert run(["audit", "begin-new", str(bench.settings.dir)]) == 1
        await audit.grant(ACCEPTED)
    assert "is in use by another process; if its log cannot be opened" in capsys.readouterr().err
    assert not bench.settings.dir.with_name("audit.old").exists()
    bench.verified()
