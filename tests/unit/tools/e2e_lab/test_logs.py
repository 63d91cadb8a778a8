"""Logs of a failed test are for people: whatever goes wrong with them, the run goes on."""

import shutil
from pathlib import Path

from tests.e2e.lab.logs import files_below, keep, sizes


def test_what_a_log_has_had_since_the_test_began_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "lab" / "pods" / "a.log"
    log.parent.mkdir(parents=True)
    (tmp_path / "lab" / "a.txt").touch()
    log.write_text("before\n")
    logs = [*files_below(tmp_path / "lab", ".log")]
    since = sizes(logs)
    log.write_text("before\nduring\n")
    told = keep(logs, since, tmp_path / "lab", tmp_path / "kept")
    assert told == f"kept in {tmp_path / 'kept'}"
    assert (tmp_path / "kept" / "pods" / "a.log").read_text() == "during\n"


def test_a_log_that_is_gone_is_left_out(tmp_path: Path) -> None:
    here, gone = tmp_path / "here.log", tmp_path / "pod" / "gone.log"
    here.write_text("x")
    assert sizes([gone, here]) == {here: 1}
    told = keep([gone, here], {}, tmp_path, tmp_path / "kept")
    assert told == f"kept in {tmp_path / 'kept'}; gone.log: No such file or directory"
    assert (tmp_path / "kept" / "here.log").read_text() == "x"


def test_logs_that_cannot_be_kept_are_told(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("x")
    target = tmp_path / "kept"
    target.touch()
    assert keep([log], {}, tmp_path, target) == f"kept in {target}; a.log: File exists"


def test_a_folder_that_goes_while_it_is_listed_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "pod").mkdir()
    (tmp_path / "pod" / "b.log").touch()
    (tmp_path / "a.log").touch()
    found = files_below(tmp_path, ".log")
    assert next(found).name == "a.log"
    shutil.rmtree(tmp_path / "pod")
    assert [*found] == []
