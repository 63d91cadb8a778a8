"""A new log in place of one that cannot go on."""

import errno
import fcntl
import json
import os
import sys
from itertools import count
from pathlib import Path

import pytest

from gpuwarden.audit.files import KEY_FILE, file_name
from gpuwarden.audit.new_log import LogInUseError, begin_new, is_half_begun, last_checkpoint
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
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    begun = begin_new(folder)
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    assert begun.kept == folder.with_name("audit.old")
    assert (begun.kept / "lock").stat().st_mode & 0o777 == 0o600
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
        begun = begin_new(folder)
        assert begun.kept is not None
        kept.append(begun.kept.name)
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


# --- ended at any moment

FORKS = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
"""The processes do nothing that another thread of this one could hold up."""
_CALLS = frozenset({"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"})
_ENDED = 9
_RAISED = 8
_NEW = {"log-key.pem": b"key", "key-changes": b"changes"}


def ended_before(call: int, folder: Path) -> bool:
    """Begin a new log in a process that is ended before its call of this number about files.

    False where it has fewer.
    """
    process = os.fork()
    if process:
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        assert code in {0, _ENDED}
        return code == _ENDED
    left = call

    def count_down(event: str, args: tuple[object, ...]) -> None:
        nonlocal left
        if event in _CALLS and str(args[0]).startswith(str(folder.parent)):
            left -= 1
            if left < 0:
                os._exit(_ENDED)

    try:
        sys.addaudithook(count_down)
        begin_new(folder)
    except BaseException:  # noqa: BLE001 - nothing may leave a fork
        os._exit(_RAISED)
    os._exit(0)


def content(folder: Path) -> dict[str, bytes]:
    return {x.name: x.read_bytes() for x in folder.iterdir() if x.name != "lock"}


def old_log(parent: Path) -> Path:
    parent.mkdir()
    folder = parent / "audit"
    folder.mkdir()
    write(folder, CertifiedLog().records(2).checkpoint().lines)
    for name, data in _NEW.items():
        (folder / name).write_bytes(data)
    return folder


def names(folder: Path) -> str:
    return " ".join(sorted(x.name for x in folder.parent.iterdir()))


def demand_begun(folder: Path, old: dict[str, bytes]) -> None:
    note = last_checkpoint(folder.with_name("audit.old"))
    assert note is not None
    assert content(folder) == _NEW | {"prev-log": note.encode()}
    assert content(folder.with_name("audit.old")) == old
    assert names(folder) == "audit audit.old"


def begin_again(folder: Path) -> None:
    """As the page tells to do."""
    if names(folder) == "audit audit.old":
        with pytest.raises(FileNotFoundError, match=r"holds no audit-\*\.jsonl"):
            begin_new(folder)
    else:
        begun = begin_new(folder)
        assert begun.kept == folder.with_name("audit.old")
        assert begun.prev is not None


@FORKS
def test_whatever_ends_it_and_when_the_next_run_does_the_rest(tmp_path: Path) -> None:
    seen: dict[str, int] = {}
    for call in count():
        folder = old_log(tmp_path / str(call))
        old = content(folder)
        if not ended_before(call, folder):
            break
        seen.setdefault(names(folder), call)
        assert is_half_begun(folder) == (names(folder) == "audit.new audit.old")
        begin_again(folder)
        demand_begun(folder, old)
    assert list(seen) == [
        "audit",
        "audit audit.new.part",
        "audit audit.new",
        "audit.new audit.old",
        "audit audit.old",
    ]
    for state, call in seen.items():
        for second in count():
            folder = old_log(tmp_path / f"{call}-{second}")
            old = content(folder)
            assert ended_before(call, folder)
            if state == "audit audit.old" or not ended_before(second, folder):
                break
            begin_again(folder)
            demand_begun(folder, old)


def half_begun(parent: Path) -> Path:
    call = 0
    while ended_before(call, folder := old_log(parent / str(call))) and not is_half_begun(folder):
        call += 1
    return folder


@FORKS
def test_what_a_controller_has_put_there_meanwhile_is_kept_beside(tmp_path: Path) -> None:
    folder = half_begun(tmp_path)
    (folder / "evidence").mkdir(parents=True)
    (folder / file_name(1)).touch()
    assert is_half_begun(folder)
    assert begin_new(folder).kept == folder.with_name("audit.old")
    assert names(folder) == "audit audit.old audit.old1"
    assert sorted(x.name for x in folder.with_name("audit.old1").iterdir()) == [
        file_name(1),
        "evidence",
    ]


@FORKS
def test_an_old_folder_that_somebody_took_away_is_not_named(tmp_path: Path) -> None:
    folder = half_begun(tmp_path)
    folder.with_name("audit.old").rename(tmp_path / "elsewhere")
    folder.mkdir()
    begun = begin_new(folder)
    assert begun.kept is None
    assert begun.prev is not None
    assert names(folder) == "audit"


def test_what_others_have_put_at_its_place_stays(folder: Path) -> None:
    write(folder, CertifiedLog().lines)
    other = folder.with_name("audit.new")
    other.mkdir()
    (other / "notes").touch()
    with pytest.raises(OSError, match="has other files in it; move it away"):
        begin_new(folder)
    assert names(folder) == "audit audit.new"
    assert [x.name for x in other.iterdir()] == ["notes"]


def test_a_folder_that_cannot_be_moved_leaves_nothing_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a volume of its own, for example."""
    write(folder, CertifiedLog().lines)
    rename, asked = Path.rename, list[Path]()

    def busy(path: Path, target: Path) -> Path:
        if path == folder and not asked:
            asked.append(path)
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", busy)
    with pytest.raises(OSError, match="busy"):
        begin_new(folder)
    assert names(folder) == "audit"


def test_the_new_folder_is_on_the_disk_before_the_old_one_is_moved(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, CertifiedLog().checkpoint().lines)
    (folder / "log-key.pem").write_bytes(b"key")
    done: list[str] = []
    rename, fsync = Path.rename, os.fsync

    def renamed(path: Path, target: Path) -> Path:
        done.append(f"{path.name} > {target.name}")
        return rename(path, target)

    def synced(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        done.append(f"sync {path.relative_to(folder.parent.parent)}")
        fsync(descriptor)

    monkeypatch.setattr(Path, "rename", renamed)
    monkeypatch.setattr(os, "fsync", synced)
    begin_new(folder)
    top = folder.parent.name
    assert done == [
        f"sync {top}/audit.new.part/log-key.pem",
        f"sync {top}/audit.new.part/prev-log",
        f"sync {top}/audit.new.part",
        "audit.new.part > audit.new",
        f"sync {top}",
        "audit > audit.old",
        "audit.new > audit",
        f"sync {top}",
    ]


def test_as_much_of_a_file_is_copied_as_a_controller_reads(folder: Path) -> None:
    write(folder, CertifiedLog().lines)
    (folder / "log-key.pem").write_bytes(b"k" * (64 * 1024 + 2))
    begin_new(folder)
    assert (folder / "log-key.pem").stat().st_size == 64 * 1024


@FORKS
def test_what_a_run_has_moved_away_is_not_named_as_the_old_log(tmp_path: Path) -> None:
    """It was ended after that."""
    folder = half_begun(tmp_path)
    (folder.with_name("audit.old1") / "evidence").mkdir(parents=True)
    assert begin_new(folder).kept == folder.with_name("audit.old")


@FORKS
def test_a_folder_behind_a_link_is_begun_and_finished_where_it_is(tmp_path: Path) -> None:
    folder = half_begun(tmp_path)
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert is_half_begun(link)
    assert begin_new(link).kept == folder.with_name("audit.old")
    assert link.is_symlink()
    write(folder, CertifiedLog().lines)
    assert begin_new(link).kept == folder.with_name("audit.old1")
    assert not is_half_begun(link)
