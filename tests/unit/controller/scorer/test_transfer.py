"""`gpuwarden-score export` and `import`."""

import io
from pathlib import Path

import pytest

from controller.scorer.__main__ import main
from controller.scorer.failures import failed
from controller.scorer.transfer import HEADER, read_rows, written_rows
from controller.scoring.estimate import Moments
from controller.scoring.learned import Row, RowKind
from controller.store.scores import FileLock, export_rows, import_rows

ROWS = (
    Row(kind=RowKind.BESIDE, job_type="a", other="b", alone=Moments(1.0, 0.5)),
    Row(kind=RowKind.PAIR, job_type="a", other="A100-80GB", alone=Moments(2.0, 3.0), number=2),
)


def test_what_was_learned_moves_to_another_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, between = tmp_path / "old.db", tmp_path / "new.db", tmp_path / "learned.jsonl"
    import_rows(old, ROWS, replace=False)
    assert main(["export", "--database", str(old), "--output", str(between)]) == 0
    assert main(["import", str(between), "--database", str(new)]) == 0
    assert capsys.readouterr().out == f"2 rows are in {new}\n"
    assert set(export_rows(new)) == set(ROWS)


def test_standard_streams_are_the_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.db"
    monkeypatch.setattr("sys.stdin", io.StringIO(written_rows(ROWS)))
    assert main(["import", "--database", str(path)]) == 0
    capsys.readouterr()
    assert main(["export", "--database", str(path)]) == 0
    assert capsys.readouterr().out == written_rows(ROWS)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1: '', expected"),
        ("{}\n", "line 1: '{}', expected"),
        (f"{HEADER}\nodd\n", "line 2: no row of version 1"),
        (written_rows(ROWS) + written_rows(ROWS).splitlines()[1] + "\n", "line 4: "),
    ],
)
def test_a_text_that_is_no_export(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_rows(text)


def test_the_order_is_that_of_names() -> None:
    assert written_rows(ROWS) == written_rows(ROWS[::-1])
    assert read_rows(written_rows(ROWS)) == ROWS


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("export --database {0}/none.db", 2, "export: {0}/none.db: No such file or directory"),
        ("export --database {0}", 2, "export: {0}: Is a directory"),
        ("export --database {0}/odd", 1, "export: {0}/odd: "),
        ("export --database mysql://x", 2, "export: --database (flag): got 'mysql://x'; "),
        ("import {0}/none --database {0}/s", 2, "import: {0}/none: No such file or directory"),
        ("import {0}/odd --database {0}/s", 2, "import: {0}/odd: line 1: 'odd', expected "),
        ("replay {0}/none", 2, "replay: {0}/none: No such file or directory"),
        ("replay {0}/odd", 2, "replay: {0}/odd: line 1: 1 columns, expected 10"),
    ],
)
def test_what_fails_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, code: int, said: str
) -> None:
    """A file that is not there or cannot be read is 2, as everywhere."""
    (tmp_path / "odd").write_text("odd")
    assert main(line.format(tmp_path).split()) == code
    error = capsys.readouterr().err
    assert error.startswith(f"gpuwarden-score {said.format(tmp_path)}")
    assert error.count("\n") == 1
    assert "[Errno" not in error
    assert not (tmp_path / "none.db").exists()


def test_standard_input_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("{}"))
    assert main(["import", "--database", str(tmp_path / "s.db")]) == 2
    assert "import: standard input: line 1: '{}', expected" in capsys.readouterr().err


def test_a_full_disk_is_no_wrong_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert failed("export", OSError(28, "No space left on device", "x")) == 1
    assert capsys.readouterr().err == "gpuwarden-score export: x: No space left on device\n"


def test_an_import_does_not_take_a_services_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, between = tmp_path / "s.db", tmp_path / "learned.jsonl"
    between.write_text(written_rows(ROWS))
    lock = FileLock(path)
    lock.take()
    assert main(["import", str(between), "--database", str(path), "--replace"]) == 1
    assert "is in use by another process" in capsys.readouterr().err
    lock.release()
