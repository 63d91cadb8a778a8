"""The end of a log, as far as it is about one subject."""

from pathlib import Path

from controller.audit.reading import MOST_RECORDS, Recent, records_about
from tests.builders.audit_log import log

POD = "pod/team-a/train-0"


def write(folder: Path, first: int, lines: list[bytes]) -> None:
    (folder / f"audit-{first:020d}.jsonl").write_bytes(b"".join(lines))


def found(folder: Path, **bounds: int) -> list[int]:
    return [x.seq for x in records_about(folder, POD, **bounds).records]


def test_records_about_the_subject_alone_across_files(tmp_path: Path) -> None:
    write(tmp_path, 1, [*log(2, subject=POD), *log(1, first=3)])
    write(tmp_path, 4, [*log(1, first=4, subject=f"{POD}0"), *log(1, first=5, subject=POD)])
    assert found(tmp_path) == [1, 2, 5]
    assert records_about(tmp_path, POD).since == "2026-03-01T12:00:00.000Z"


def test_not_more_is_read_than_is_allowed(tmp_path: Path) -> None:
    lines = log(10, subject=POD)
    write(tmp_path, 1, lines[:5])
    write(tmp_path, 6, lines[5:])
    assert found(tmp_path, most_bytes=len(b"".join(lines[3:]))) == [4, 5, 6, 7, 8, 9, 10]
    assert found(tmp_path, most_bytes=len(b"".join(lines[8:])) - 1) == [10]
    assert found(tmp_path, most_bytes=1) == []


def test_a_torn_end_and_what_is_no_record_are_left_out(tmp_path: Path) -> None:
    lines = log(3, subject=POD)
    broken = lines[1].replace(b'"v":', b'"w":')
    write(tmp_path, 1, [lines[0], broken, lines[2][:-2]])
    assert found(tmp_path) == [1]


def test_a_record_that_only_quotes_the_subject_is_not_about_it(tmp_path: Path) -> None:
    write(tmp_path, 1, log(1, refs={"subject": POD}))
    assert found(tmp_path) == []


def test_of_many_the_last(tmp_path: Path) -> None:
    write(tmp_path, 1, log(MOST_RECORDS + 2, subject=POD))
    assert found(tmp_path) == list(range(3, MOST_RECORDS + 3))


def test_no_log_says_nothing(tmp_path: Path) -> None:
    assert records_about(tmp_path / "none", POD) == Recent()
