"""The dead-letter file: bounded, readable, taken up for a replay once."""

import json
import os
from pathlib import Path

import pytest

from controller.export.dead_letters import DeadLetters
from gpuwarden.dead_letter_files import Request, exporter_of, read_request, request_text
from tests.builders.exported import records

AT = "2026-11-29T11:45:01.123Z"


def letters(folder: Path, most: int = 1 << 20) -> DeadLetters:
    return DeadLetters(folder / "export", "http", most)


def ask(folder: Path, text: str = request_text(Request("a", "b"))) -> None:
    (folder / "export" / "http.replay.json").write_text(text)


def test_a_line_has_the_record_and_why_it_is_there(tmp_path: Path) -> None:
    assert letters(tmp_path).append(records(1), "HTTP 401", AT)
    path = tmp_path / "export" / "http.ndjson"
    found = json.loads(path.read_text())
    assert (found["reason"], found["failed"], found["key"]) == ("HTTP 401", AT, records(1)[0].key)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_what_does_not_fit_is_refused_as_a_whole(tmp_path: Path) -> None:
    assert letters(tmp_path).append(records(1), "x", AT)
    size = (tmp_path / "export" / "http.ndjson").stat().st_size
    assert not letters(tmp_path, 3 * size - 1).append(records(2), "x", AT)
    assert letters(tmp_path).count() == 1
    assert letters(tmp_path, 3 * size).append(records(2), "x", AT)
    assert letters(tmp_path).count() == 3


def test_records_under_replay_count(tmp_path: Path) -> None:
    found = letters(tmp_path)
    assert found.append(records(1), "x", AT)
    size = (tmp_path / "export" / "http.ndjson").stat().st_size
    ask(tmp_path)
    assert found.requested() is not None
    assert not letters(tmp_path, 2 * size - 1).append(records(1), "x", AT)
    assert letters(tmp_path, 2 * size).append(records(1), "x", AT)
    assert found.count() == 2


def test_without_a_request_nothing_is_taken_up(tmp_path: Path) -> None:
    found = letters(tmp_path)
    assert found.append(records(1), "x", AT)
    assert found.requested() is None
    assert found.replaying() is None


def test_a_request_counts_once(tmp_path: Path) -> None:
    found = letters(tmp_path)
    assert found.append(records(2), "x", AT)
    ask(tmp_path)
    assert found.requested() == Request("a", "b")
    assert found.requested() is None
    replay = found.replaying()
    assert replay is not None
    assert (replay.records, replay.unreadable) == (records(2), 0)
    found.replayed()
    assert found.replaying() is None
    assert found.count() == 0


def test_a_second_request_does_not_overwrite_what_is_under_replay(tmp_path: Path) -> None:
    found = letters(tmp_path)
    assert found.append(records(2), "x", AT)
    ask(tmp_path)
    found.requested()
    assert found.append(records(1), "x", AT)
    ask(tmp_path)
    found.requested()
    replay = found.replaying()
    assert replay is not None
    assert replay.records == records(2)
    assert found.count() == 3


def test_a_torn_line_is_counted_and_takes_no_other_with_it(tmp_path: Path) -> None:
    found = letters(tmp_path)
    assert found.append(records(1), "x", AT)
    with (tmp_path / "export" / "http.ndjson").open("ab") as file:
        file.write(b'{"cluster":"pr')
    ask(tmp_path)
    found.requested()
    replay = found.replaying()
    assert replay is not None
    assert (replay.records, replay.unreadable) == (records(1), 1)


def test_what_comes_after_a_torn_line_is_kept(tmp_path: Path) -> None:
    found, size = letters(tmp_path), 0
    assert found.append(records(1), "x", AT)
    path = tmp_path / "export" / "http.ndjson"
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b'{"cluster":"pr')
    torn = path.stat().st_size
    assert not letters(tmp_path, torn + size).append(records(1), "x", AT)
    assert letters(tmp_path, torn + size + 1).append(records(1), "x", AT)
    ask(tmp_path)
    found.requested()
    replay = found.replaying()
    assert replay is not None
    assert (replay.records, replay.unreadable) == ((*records(1), *records(1)), 1)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"by":1}', "{" * 10_000])
def test_a_request_that_cannot_be_read_is_one_of_nobody(text: str) -> None:
    assert read_request(text.encode()) == Request("unknown", "")


def test_a_request_is_bounded() -> None:
    found = read_request(request_text(Request("a" * 999, "b" * 999)).encode())
    assert (len(found.by), len(found.reason)) == (500, 500)


@pytest.mark.parametrize(
    ("name", "exporter"),
    [
        ("s3.ndjson", "s3"),
        ("s3.replaying.ndjson", "s3"),
        ("s3.replay.json", None),
        ("other.ndjson", None),
    ],
)
def test_whose_file_it_is(name: str, exporter: str | None) -> None:
    assert exporter_of(name) == exporter


def test_a_pipe_in_its_place_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    os.mkfifo(tmp_path / "export" / "http.ndjson")
    with pytest.raises(OSError):  # noqa: PT011 - no reader, or not regular: either names the path
        letters(tmp_path).append(records(1), "x", AT)
