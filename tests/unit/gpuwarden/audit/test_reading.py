import os
from pathlib import Path

import pytest

from controller.audit.sealing import LogIdentity, Sealer
from controller.record import Record
from gpuwarden.audit.chain import BEFORE_FIRST
from gpuwarden.audit.files import file_name
from gpuwarden.audit.reading import (
    BY_THE_CLOCK,
    Recent,
    RecordFilter,
    Tail,
    recent_records,
    record_of,
    records_about,
)
from gpuwarden.audit.record import RecordKind, decode_record
from tests.builders.audit_log import log
from tests.builders.audit_log import log as log_of
from tests.builders.replica_log import ReplicaLog

# --- The end of a log is read again, of a few kinds and of so many bytes

DENIAL, BIND = RecordKind.NODE_QUARANTINE, RecordKind.BIND_DECISION


def write_log(folder: Path, *kinds: RecordKind, per_file: int = 4) -> list[bytes]:
    """Records of these kinds, numbered from 1; their lines."""
    sealer, head, lines = Sealer(LogIdentity("lab/a", "boot", "me")), BEFORE_FIRST, []
    for number, kind in enumerate(kinds):
        sealed = sealer.seal(Record(kind, "me", f"node/gpu-{number}", "x"), 0, head)
        head = sealed.head
        lines.append(sealed.line + b"\n")
    for first in range(0, len(lines), per_file):
        path = folder / file_name(first + 1)
        path.write_bytes(b"".join(lines[first : first + per_file]))
    return lines


def numbers(folder: Path, *prefixes: str, limit: int | None = 1 << 20) -> list[int]:
    return [x.seq for x in recent_records(folder, prefixes, limit)]


def test_only_what_is_wanted_across_files_in_order(tmp_path: Path) -> None:
    write_log(tmp_path, DENIAL, BIND, BIND, DENIAL, BIND, DENIAL)
    assert numbers(tmp_path, "node.quarantine") == [1, 4, 6]
    assert numbers(tmp_path, "bind.") == [2, 3, 5]
    assert numbers(tmp_path, "bind.", "node.") == [1, 2, 3, 4, 5, 6]
    assert numbers(tmp_path, "reservation.") == []


def test_no_more_than_so_many_bytes_from_the_end(tmp_path: Path) -> None:
    lines = write_log(tmp_path, *[BIND] * 10)
    last_three = sum(map(len, lines[-3:]))
    assert numbers(tmp_path, "bind.", limit=last_three) == [8, 9, 10]
    assert numbers(tmp_path, "bind.", limit=last_three - 1) == [9, 10]
    assert numbers(tmp_path, "bind.", limit=last_three + 1) == [8, 9, 10]
    assert numbers(tmp_path, "bind.", limit=1) == []
    assert numbers(tmp_path, "bind.", limit=sum(map(len, lines))) == list(range(1, 11))


def test_a_whole_log_has_no_limit(tmp_path: Path) -> None:
    write_log(tmp_path, *[BIND] * 10)
    assert numbers(tmp_path, "bind.", limit=None) == list(range(1, 11))


def test_files_before_those_bytes_are_not_opened(tmp_path: Path) -> None:
    lines = write_log(tmp_path, *[BIND] * 8)
    older = tmp_path / file_name(1)
    older.unlink()
    os.mkfifo(older)
    newest = sum(map(len, lines[4:]))
    assert numbers(tmp_path, "bind.", limit=newest) == [5, 6, 7, 8]
    assert numbers(tmp_path, "bind.", limit=newest - 1) == [6, 7, 8]


def test_what_is_being_written_is_no_record_yet(tmp_path: Path) -> None:
    lines = write_log(tmp_path, BIND, BIND)
    path = tmp_path / file_name(1)
    path.write_bytes(b"".join(lines) + lines[0][:-20])
    assert numbers(tmp_path, "bind.") == [1, 2]
    path.write_bytes(lines[0] + b'"kind":"bind.' + b"x" * 20_000 + b"\n" + lines[1])
    assert numbers(tmp_path, "bind.") == [1, 2]


def test_a_word_in_the_text_of_another_record_is_no_kind(tmp_path: Path) -> None:
    sealer = Sealer(LogIdentity("lab/a", "boot", "me"))
    odd = Record(BIND, "me", "s", "x", refs={"kind": "node.quarantine"})
    line = sealer.seal(odd, 0, BEFORE_FIRST).line
    (tmp_path / file_name(1)).write_bytes(line + b"\n")
    assert b'"kind":"node.quarantine"' in line
    assert numbers(tmp_path, "node.quarantine") == []


def test_where_no_log_was_there_is_nothing(tmp_path: Path) -> None:
    assert numbers(tmp_path / "none", "bind.") == []
    assert numbers(tmp_path, "bind.") == []


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / file_name(1)).mkdir()
    with pytest.raises(OSError, match="is a folder; expected a regular file"):
        numbers(tmp_path, "bind.")


# --- The end of a log, as far as it is about one subject

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
    write(tmp_path, 1, log(42, subject=POD))
    assert found(tmp_path) == list(range(3, 43))


def test_no_log_says_nothing(tmp_path: Path) -> None:
    assert records_about(tmp_path / "none", POD) == Recent()


# --- The end of a log, and what comes


def numbers_of(tail: Tail) -> list[int]:
    return [x.seq for _, x in tail.new()]


def test_a_tail_gives_each_whole_record_once(tmp_path: Path) -> None:
    log = ReplicaLog(tmp_path / "a")
    log.state("gpu-0")
    tail = Tail(log.folder)
    assert numbers_of(tail) == [1]
    log.state("gpu-1")
    log.rotate()
    log.state("gpu-2")
    path = log.folder / file_name(3)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert numbers_of(tail) == [2]
    path.write_bytes(whole)
    assert numbers_of(tail) == [3]
    assert list(tail.new()) == []


def test_a_long_log_is_read_from_its_end(tmp_path: Path) -> None:
    log = ReplicaLog(tmp_path / "a")
    for n in range(6):
        if n in {2, 4}:
            log.rotate()
        log.state(f"gpu-{n}")
    size = (log.folder / file_name(5)).stat().st_size
    assert numbers_of(Tail(log.folder, size + 10)) == [5, 6]
    assert numbers_of(Tail(log.folder, size - 10)) == [6]
    assert numbers_of(Tail(log.folder)) == [1, 2, 3, 4, 5, 6]


def test_a_tail_goes_on_behind_a_record_in_whatever_file_it_is(tmp_path: Path) -> None:
    log = ReplicaLog(tmp_path / "a")
    for n in range(6):
        if n in {2, 4}:
            log.rotate()
        log.state(f"gpu-{n}")
    tails = [Tail(log.folder, 1, after=after) for after in range(1, 7)]
    for after, tail in enumerate(tails, 1):
        lines = [line for line, _ in tail.new()]
        assert [record_of(x) for x in lines] == [x for _, x in Tail(log.folder).new()][after:]
    log.state("gpu-6")
    assert [numbers_of(x) for x in tails] == [[7]] * 6
    (log.folder / file_name(1)).unlink()
    assert numbers_of(Tail(log.folder, after=1)) == [3, 4, 5, 6, 7]


def test_which_records_are_asked_for(tmp_path: Path) -> None:
    log = ReplicaLog(tmp_path / "a")
    kinds = (RecordKind.CHECKPOINT, RecordKind.NODE_STATE, RecordKind.NODE_OPERATOR)
    for kind in kinds:
        log.state("gpu-1", kind=kind)
    records = [x for _, x in Tail(log.folder).new()]

    def fit(*kinds: str, subject: str = "") -> list[int]:
        return [x.seq for x in records if RecordFilter(kinds, subject).fits(x)]

    assert fit() == [2, 3]
    assert fit("checkpoint") == [1]
    assert fit("check", "node.o") == [1, 3]
    assert fit(subject="node/gpu") == [2, 3]
    assert fit(subject="node/gpu-2") == []
    (former, other) = (
        decode_record(log_of(1, kind=x)[0][:-1]) for x in ("evidence.round", "node.painted")
    )
    assert not RecordFilter().fits(former)
    assert RecordFilter(("evidence.round",)).fits(former)
    assert RecordFilter().fits(other)
    assert [k for k in RecordKind if k.value in BY_THE_CLOCK] == [
        RecordKind.EVIDENCE_REPEATED,
        RecordKind.USE_ACCOUNT,
        RecordKind.LOG_ROTATE,
        RecordKind.CHECKPOINT,
    ]
