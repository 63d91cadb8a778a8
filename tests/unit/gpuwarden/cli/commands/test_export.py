"""`export list` and `export replay`: what they read and what they leave for the controller."""

import json
import os
from pathlib import Path

import pytest

from controller.export.dead_letters import DeadLetters
from tests.builders.exported import records
from tests.unit.gpuwarden.cli.conftest import Cli

AT = "2026-11-29T11:45:01.123Z"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    letters = DeadLetters(tmp_path, "postgres", 1 << 20)
    assert letters.append(records(2), "connection refused", AT)
    assert letters.append(records(3), "value too long", AT)
    return tmp_path


def test_records_are_listed_by_reason(cli: Cli, folder: Path) -> None:
    ran = cli("export", "list", "--folder", str(folder))
    assert ran.code == 0
    assert [line.split(maxsplit=3) for line in ran.lines] == [
        ["EXPORTER", "RECORDS", "REPLAY", "REASON"],
        ["postgres", "2", "no", "connection refused"],
        ["postgres", "3", "no", "value too long"],
    ]


def test_an_empty_folder_lists_nothing(cli: Cli, tmp_path: Path) -> None:
    assert cli("export", "list", "--folder", str(tmp_path)).out == "No records.\n"


def test_for_programs(cli: Cli, folder: Path) -> None:
    (folder / "http.ndjson").write_text("torn")
    found = json.loads(cli("export", "list", "--folder", str(folder), "-o", "json").out)
    assert found[0] == {
        "exporter": "http",
        "records": 1,
        "replay": "no",
        "reason": "a line that is no record",
    }
    names = cli("export", "list", "--folder", str(folder), "-o", "name")
    assert names.lines == ["export/http", "export/postgres"]


def test_a_replay_is_requested_and_the_controller_takes_it_up(cli: Cli, folder: Path) -> None:
    ran = cli("export", "replay", "postgres", "--reason", " INC 88 ", "--folder", str(folder))
    assert (ran.code, ran.out) == (0, "export/postgres replay requested: 5 records\n")
    assert "requested" in cli("export", "list", "--folder", str(folder)).lines[1]
    letters = DeadLetters(folder, "postgres", 1 << 20)
    request = letters.requested()
    assert request is not None
    assert (request.by, request.reason) == (f"local/uid-{os.getuid()}", "INC 88")
    found = letters.replaying()
    assert found is not None
    assert found.records == (*records(2), *records(3))
    assert "running" in cli("export", "list", "--folder", str(folder)).lines[1]


def test_nothing_to_replay_is_an_error(cli: Cli, folder: Path) -> None:
    ran = cli("export", "replay", "s3", "--reason", "x", "--folder", str(folder))
    assert ran.code == 1
    assert "no records of s3" in ran.err
    assert not (folder / "s3.replay.json").exists()


def test_a_replay_has_a_reason(cli: Cli, folder: Path) -> None:
    ran = cli("export", "replay", "postgres", "--reason", " ", "--folder", str(folder))
    assert ran.code == 2
    assert "--reason" in ran.err
    assert not (folder / "postgres.replay.json").exists()


def test_what_is_no_file_is_named(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "http.ndjson").mkdir()
    ran = cli("export", "list", "--folder", str(tmp_path))
    assert ran.code == 2
    assert "a folder" in ran.err
