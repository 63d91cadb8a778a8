import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from controller.audit.files import (
    NAME,
    STEP_BYTES,
    Disk,
    FileStore,
    Healed,
    LogBrokenError,
    Reserve,
)
from gpuwarden.audit.chain import BEFORE_FIRST, Head, Verified
from gpuwarden.audit.files import file_name, log_files, verify_files
from gpuwarden.audit.record import FORMAT
from tests.builders.audit_log import GENESIS, digest, line, log
from tests.fakes.disk import FaultyDisk

ORIGIN = "lab/controller-0"
V1, V2 = FORMAT, "gpuwarden.dev/audit/v2"
LINES = log(6)
HEADS = [Head(seq, digest(text)) for seq, text in enumerate(LINES, start=1)]
OTHERS = log(6, kind="node.painted")
"""Of a kind that only another version knows."""
MIXED = [*LINES[:3], *log(3, first=4, prev=HEADS[2].digest, kind="node.painted")]


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory where that is possible: these tests sync thousands of times."""
    shared = Path("/dev/shm")  # noqa: S108 -- mkdtemp makes a private folder in it
    with TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def store(tmp_path: Path, disk: FaultyDisk) -> Iterator[FileStore]:
    opened = FileStore(tmp_path / "audit", ORIGIN, disk)
    yield opened
    opened.close()


def reopened(folder: Path) -> FileStore:
    store = FileStore(folder, ORIGIN, Disk())
    store.close()
    return store


def write(folder: Path, first: int, data: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / file_name(first)
    path.write_bytes(data)
    return path


def verified(folder: Path) -> Verified:
    result = verify_files(log_files(folder)).result
    assert isinstance(result, Verified)
    return result


def test_new_log_is_empty_and_private(store: FileStore, tmp_path: Path) -> None:
    assert (store.head, store.size, store.file) == (BEFORE_FIRST, 0, file_name(1))
    assert (tmp_path / "audit").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "audit").iterdir()} == {0o600}


def test_lines_are_durable_and_the_next_process_goes_on(
    store: FileStore, tmp_path: Path, disk: FaultyDisk
) -> None:
    store.append(b"".join(LINES[:3]), HEADS[2])
    store.close()

    assert disk.syncs == 1
    again = reopened(tmp_path / "audit")
    assert (again.head, again.size, again.healed) == (HEADS[2], len(b"".join(LINES[:3])), None)


@pytest.mark.usefixtures("store")
def test_two_processes_cannot_write_one_log(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="in use by another process"):
        FileStore(tmp_path / "audit", ORIGIN, Disk())


def test_files_open_for_all_become_private(tmp_path: Path) -> None:
    path = write(tmp_path / "audit", 1, LINES[0])
    path.chmod(0o666)

    reopened(tmp_path / "audit")

    assert path.stat().st_mode & 0o777 == 0o600


def test_what_others_could_read_is_taken_from_them(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    names = (file_name(1), "log-key.pem", "tree", "key-changes", "lock", "prev-log")
    write(folder, 1, LINES[0])
    for name in names:
        (folder / name).touch()
        (folder / name).chmod(0o664)
    target = tmp_path / "target"
    target.touch()
    target.chmod(0o644)
    (folder / "link").symlink_to(target)
    folder.chmod(0o755)

    reopened(folder)

    assert folder.stat().st_mode & 0o777 == 0o700
    assert {(folder / name).stat().st_mode & 0o777 for name in names} == {0o600}
    assert target.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("name", [file_name(1), file_name(3), "lock"])
def test_a_pipe_in_the_place_of_a_file_holds_nobody_up(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "audit"
    write(folder, 2, b"".join(log(1, first=2, prev="a" * 64)))
    os.mkfifo(folder / name)
    with pytest.raises(OSError, match=f"{name} is a named pipe; expected a regular file"):
        reopened(folder)


def test_a_refused_file_is_closed_again(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    folder.mkdir()
    os.mkfifo(folder / "lock")
    before = sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208 -- names only
    with pytest.raises(OSError, match="expected a regular file"):
        reopened(folder)
    assert sorted(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 -- names only


def test_a_pipe_that_comes_later_keeps_files_and_log(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    for first in (1, 2, 3):
        write(folder, first, LINES[first - 1])
    store = FileStore(folder, ORIGIN, Disk())
    (folder / file_name(2)).rename(tmp_path / "moved")
    os.mkfifo(folder / file_name(2))
    assert store.delete_finished(lambda _line: True) == []
    store.append(LINES[3], HEADS[3])
    store.close()


def test_link_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.touch()
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "lock").symlink_to(target)

    with pytest.raises(OSError, match="symbolic links"):
        reopened(tmp_path / "audit")


@pytest.mark.parametrize(
    "lines", [LINES[:4], OTHERS[:4], MIXED[2:]], ids=["known", "of another version", "mixed"]
)
def test_cut_at_every_byte_is_healed_and_goes_on(tmp_path: Path, lines: list[bytes]) -> None:
    whole, first = b"".join(lines[:3]), json.loads(lines[0])["seq"]
    folder = tmp_path / "audit"
    write(folder, 1, b"".join(LINES[: first - 1]))
    for length in range(len(whole) + 1):
        write(folder, first, whole[:length])
        count = whole[:length].count(b"\n")
        torn = length - len(b"".join(lines[:count]))

        store = FileStore(folder, ORIGIN, FaultyDisk(sync_errno=None))
        assert store.head.seq == count + first - 1
        assert (store.healed.bytes if store.healed else 0) == torn
        store.append(lines[count], Head(count + first, digest(lines[count])))
        store.close()
        assert verified(folder).records == count + first
        write(folder, 1, b"".join(LINES[: first - 1]))


@pytest.mark.parametrize("lines", [OTHERS, MIXED])
def test_no_whole_record_of_another_version_is_cut_off(tmp_path: Path, lines: list[bytes]) -> None:
    whole = b"".join(lines)
    path = write(tmp_path / "audit", 1, whole)
    store = reopened(tmp_path / "audit")
    assert (store.head, store.healed) == (Head(6, digest(lines[5])), None)
    assert path.read_bytes() == whole
    path.write_bytes(whole + b"torn")
    healed = reopened(tmp_path / "audit").healed
    assert healed is not None
    assert healed.bytes == 4
    assert path.read_bytes() == whole


def test_a_file_may_follow_one_that_another_version_has_ended(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    write(folder, 1, b"".join(MIXED[:5]))
    write(folder, 6, MIXED[5])
    assert reopened(folder).head == Head(6, digest(MIXED[5]))
    write(folder, 6, b"")
    assert reopened(folder).head == Head(5, digest(MIXED[4]))


def test_the_longest_record_is_read(tmp_path: Path) -> None:
    short = len(line(1, GENESIS, refs={"x": ""}))
    longest = line(1, GENESIS, refs={"x": "y" * (4097 - short)})
    assert len(longest) == 4097
    write(tmp_path / "audit", 1, longest)
    write(tmp_path / "audit", 2, line(2, digest(longest), refs={"x": "y" * (4097 - short)}))
    assert reopened(tmp_path / "audit").head.seq == 2


def test_a_crash_leaves_a_group_of_records_at_most(tmp_path: Path) -> None:
    longest = 64 * 4097
    write(tmp_path / "audit", 1, LINES[0] + b"x" * longest)
    healed = reopened(tmp_path / "audit").healed
    assert healed is not None
    assert healed.bytes == longest
    write(tmp_path / "audit", 1, LINES[0] + b"x" * (longest + 1))
    with pytest.raises(LogBrokenError, match="more than a crash can leave behind"):
        reopened(tmp_path / "audit")


def test_healed_names_what_was_cut_off(tmp_path: Path) -> None:
    write(tmp_path / "audit", 1, LINES[0] + b"torn")

    assert reopened(tmp_path / "audit").healed == Healed(file_name(1), 4, digest(b"torn"))


@pytest.mark.parametrize(
    "rest",
    [b"\0" * 4096, b"\xff\n\xff\n", LINES[1][:-1]],
    ids=["zeros", "garbage lines", "whole record without its end"],
)
def test_what_a_crash_can_leave_is_healed(tmp_path: Path, rest: bytes) -> None:
    write(tmp_path / "audit", 1, LINES[0] + rest)

    assert reopened(tmp_path / "audit").head == HEADS[0]
    assert verified(tmp_path / "audit").records == 1


@pytest.mark.parametrize(
    ("first", "data", "says"),
    [
        (1, LINES[0] + LINES[2], "broken before record 3"),
        (1, LINES[0] + LINES[1].replace(b"n2", b"n9") + LINES[2], "broken before record 3"),
        (1, LINES[0] + b"garbage\n" + LINES[1], "broken before record 2"),
        (1, LINES[0] + b"\0" * 300_000, "more than a crash can leave"),
        (1, LINES[0] + line(2, HEADS[0].digest, v=V2), f"behind record 1 .* {V1!r}; no crash"),
        (1, line(1, GENESIS, v=V2), "behind record 0 that is no record of this version: v must be"),
        (1, LINES[0] + line(2, HEADS[0].digest, more=1), "behind record 1 .*more"),
        (1, LINES[0] + line(2, HEADS[0].digest, kind="Node State"), "behind record 1 .* kind must"),
        (1, LINES[0] + b"torn\n{}\n", "behind record 1 that is no record"),
        (1, b"".join(log(1, origin="lab/controller-1")), "is the log of 'lab/controller-1'"),
        (3, LINES[0], "starts with record 1, not as its name says"),
        (3, b"", "starts with record 1, not as its name says"),
    ],
)
def test_what_a_crash_cannot_leave_is_not_touched(
    tmp_path: Path, first: int, data: bytes, says: str
) -> None:
    path = write(tmp_path / "audit", first, data)

    with pytest.raises(LogBrokenError, match=says):
        reopened(tmp_path / "audit")
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    ("older", "says"),
    [
        (b"", "does not end with a record"),
        (LINES[0] + LINES[1][:-5], "does not end with a record"),
        (LINES[0] + line(2, HEADS[0].digest, decision="forged"), "broken before record 3"),
        (LINES[0], "broken before record 3"),
    ],
)
def test_file_that_does_not_follow_the_one_before_is_refused(
    tmp_path: Path, older: bytes, says: str
) -> None:
    write(tmp_path / "audit", 1, older)
    write(tmp_path / "audit", 3, LINES[2])

    with pytest.raises(LogBrokenError, match=says):
        reopened(tmp_path / "audit")


def test_rotation_begins_a_file_that_the_next_process_finds(
    store: FileStore, tmp_path: Path
) -> None:
    store.append(b"".join(LINES[:2]), HEADS[1])
    store.rotate(LINES[2], HEADS[2])
    store.append(LINES[3], HEADS[3])
    store.close()

    folder = tmp_path / "audit"
    assert (store.file, store.size) == (file_name(3), len(LINES[2] + LINES[3]))
    assert [path.name for path in log_files(folder)] == [file_name(1), file_name(3)]
    assert verified(folder).records == 4
    assert reopened(folder).head == HEADS[3]


@pytest.mark.parametrize("torn", [b"", LINES[2][:40]])
def test_crash_while_a_file_is_begun_leaves_the_old_one(tmp_path: Path, torn: bytes) -> None:
    folder = tmp_path / "audit"
    write(folder, 1, b"".join(LINES[:2]))
    write(folder, 3, torn)

    store = reopened(folder)

    assert (store.head, store.file) == (HEADS[1], file_name(1))
    assert [path.name for path in log_files(folder)] == [file_name(1)]


@pytest.mark.parametrize("fault", [{"room": 10}, {"sync_errno": errno.EIO}])
def test_failed_rotation_stays_with_the_old_file(
    store: FileStore, disk: FaultyDisk, tmp_path: Path, fault: dict[str, int]
) -> None:
    store.append(LINES[0], HEADS[0])
    vars(disk).update(fault)
    with pytest.raises(OSError, match=r"space|error"):
        store.rotate(LINES[1], HEADS[1])
    vars(disk).update(room=None, sync_errno=None)
    store.append(LINES[1], HEADS[1])

    assert store.file == file_name(1)
    assert [path.name for path in log_files(tmp_path / "audit")] == [file_name(1)]
    assert verified(tmp_path / "audit").records == 2


@pytest.mark.parametrize("room", [0, 1, len(LINES[1]) - 1, len(LINES[1]) + 7])
def test_line_cut_by_a_full_disk_is_cut_off_before_the_next(
    store: FileStore, disk: FaultyDisk, tmp_path: Path, room: int
) -> None:
    store.append(LINES[0], HEADS[0])
    disk.room = room
    with pytest.raises(OSError, match="No space left"):
        store.append(LINES[1] + LINES[2], HEADS[2])
    assert store.head == HEADS[0]

    disk.room = None
    store.recover()
    store.append(LINES[1], HEADS[1])

    assert verified(tmp_path / "audit") == Verified(2, 1, HEADS[1], ORIGIN)


def test_line_that_was_written_but_not_synced_does_not_count(
    store: FileStore, disk: FaultyDisk, tmp_path: Path
) -> None:
    store.append(LINES[0], HEADS[0])
    disk.sync_errno = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        store.append(LINES[1], HEADS[1])
    disk.sync_errno = None
    store.recover()

    assert verified(tmp_path / "audit").head == HEADS[0]


def test_log_touched_by_somebody_else_takes_nothing(store: FileStore, tmp_path: Path) -> None:
    store.append(LINES[0], HEADS[0])
    path = tmp_path / "audit" / file_name(1)
    with path.open("ab") as file:
        file.write(b"x")

    with pytest.raises(OSError, match="by somebody else"):
        store.append(LINES[1], HEADS[1])
    os.truncate(path, 3)
    with pytest.raises(LogBrokenError, match="shorter than what was made durable"):
        store.recover()


def test_removed_log_takes_nothing(store: FileStore, tmp_path: Path) -> None:
    store.append(LINES[0], HEADS[0])
    (tmp_path / "audit" / file_name(1)).unlink()

    with pytest.raises(OSError, match="by somebody else"):
        store.append(LINES[1], HEADS[1])
    with pytest.raises(FileNotFoundError):
        store.recover()


def test_only_finished_files_past_their_time_are_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    for first in (1, 2, 3, 4):
        write(folder, first, LINES[first - 1])
    store = FileStore(folder, ORIGIN, Disk())

    assert store.delete_finished(lambda line: line in LINES[1:3]) == [file_name(1), file_name(2)]
    assert store.delete_finished(lambda _line: True) == [file_name(3)]
    store.close()
    result = verified(folder)
    assert (result.first_seq, result.records) == (4, 1)
    assert reopened(folder).head == HEADS[3]


def test_the_disk_reserves_just_what_is_asked_for(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        Disk().reserve(file.fileno(), 8192)
        assert os.fstat(file.fileno()).st_size == 8192


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_no_descriptor_is_left_open(tmp_path: Path, disk: FaultyDisk) -> None:
    folder = tmp_path / "not" / "there"
    before = descriptors()
    store = FileStore(folder, ORIGIN, disk)
    with pytest.raises(OSError, match="in use by another process"):
        FileStore(folder, ORIGIN, disk)
    store.append(LINES[0], HEADS[0])
    store.recover()
    store.rotate(LINES[1], HEADS[1])
    disk.room = 0
    with pytest.raises(OSError, match="No space left"):
        store.rotate(LINES[2], HEADS[2])
    assert descriptors() == before + 2
    store.close()
    store.close()
    assert descriptors() == before


def test_a_store_that_is_closed_twice_closes_nothing_else(store: FileStore, tmp_path: Path) -> None:
    store.close()
    (tmp_path / "other").write_bytes(b"other")
    with (tmp_path / "other").open("rb") as first, (tmp_path / "other").open("rb") as second:
        store.close()
        assert first.read() == second.read() == b"other"


def test_reserve_holds_blocks_and_gives_them_back_in_steps(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path, 2 * STEP_BYTES, Disk())
    reserve.fill()
    held = (tmp_path / NAME).stat()

    assert held.st_blocks * 512 >= 2 * STEP_BYTES
    assert [reserve.release() for _ in range(3)] == [True, True, False]
    assert (tmp_path / NAME).stat().st_blocks == 0
    reserve.fill()
    assert reserve.complete


def test_reserve_is_private_and_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = descriptors()
    reserve = Reserve(tmp_path, STEP_BYTES, Disk())
    assert not reserve.release()
    reserve.fill()
    reserve.fill()
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600
    assert descriptors() == before
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).symlink_to(tmp_path / "target")
    Reserve(tmp_path, STEP_BYTES, Disk()).fill()
    assert not (tmp_path / "target").exists()


def test_reserve_gives_back_a_mebibyte_at_a_time(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path, (1 << 20) + 4096, Disk())
    reserve.fill()
    assert reserve.release()
    assert (tmp_path / NAME).stat().st_size == 4096
    assert not reserve.complete
    assert reserve.release()
    assert (tmp_path / NAME).stat().st_size == 0
    assert not reserve.release()


class TornDisk(FaultyDisk):
    """Allocates a part, and then has no more."""

    def reserve(self, descriptor: int, size: int) -> None:
        os.posix_fallocate(descriptor, 0, size // 2)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_reserve_keeps_nothing_of_what_it_could_not_have(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path, STEP_BYTES, TornDisk())
    reserve.fill()
    assert not reserve.complete
    assert (tmp_path / NAME).stat().st_size == 0


class AskedDisk(FaultyDisk):
    """Allocates nothing, and remembers what it was asked for."""

    asked: int | None = None

    def reserve(self, descriptor: int, size: int) -> None:
        del descriptor
        self.asked = size


@pytest.mark.parametrize(("share", "taken"), [(0.45, True), (0.55, False)])
def test_reserve_leaves_half_of_the_space_to_others(
    tmp_path: Path, share: float, taken: bool
) -> None:
    space = os.statvfs(tmp_path)
    size = int(space.f_bavail * space.f_frsize * share)
    disk = AskedDisk()
    reserve = Reserve(tmp_path, size, disk)
    reserve.fill()
    assert (disk.asked, reserve.complete) == ((size, True) if taken else (None, False))


def test_what_a_reserve_held_before_is_kept_when_it_gets_no_more(tmp_path: Path) -> None:
    Reserve(tmp_path, STEP_BYTES, Disk()).fill()
    reserve = Reserve(tmp_path, 2 * STEP_BYTES, TornDisk())
    reserve.fill()
    assert (tmp_path / NAME).stat().st_size == STEP_BYTES
    assert [reserve.release(), reserve.release()] == [True, False]


def test_nothing_is_held_before_it_is_taken(tmp_path: Path) -> None:
    assert not Reserve(tmp_path, 1, Disk()).complete


def test_reserve_is_found_again(tmp_path: Path) -> None:
    Reserve(tmp_path, STEP_BYTES, Disk()).fill()
    again = Reserve(tmp_path, STEP_BYTES, FaultyDisk(reserve_errno=errno.ENOSPC))

    again.fill()

    assert again.release()


def test_reserve_that_cannot_be_had_is_done_without(tmp_path: Path) -> None:
    full = Reserve(tmp_path, STEP_BYTES, FaultyDisk(reserve_errno=errno.ENOSPC))
    huge = Reserve(tmp_path, 1 << 60, Disk())
    nowhere = Reserve(tmp_path / "missing", STEP_BYTES, Disk())

    for reserve in (full, huge, nowhere):
        reserve.fill()
        assert not reserve.complete
        assert not reserve.release()


def test_reserve_of_nothing_is_complete(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path, 0, Disk())
    reserve.fill()

    assert reserve.complete
    assert not (tmp_path / NAME).exists()


def test_removed_reserve_gives_nothing_back(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path, STEP_BYTES, Disk())
    reserve.fill()
    (tmp_path / NAME).unlink()

    assert not reserve.release()
