"""Evidence beside the log: by its digest, bounded, and in nobody's way."""

import errno
import json
import os
import resource
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import pytest

from controller.audit.evidence import EvidenceStore
from controller.audit.held_evidence import HeldEvidence
from controller.audit.opening import audit_log
from controller.record import AuditUnavailableError, Record
from gpuwarden.audit.archived_evidence import ArchivedEvidence, read_archived_evidence
from gpuwarden.audit.record import RecordKind
from gpuwarden.telemetry import names
from tests.builders.archived_evidence import archived_evidence
from tests.builders.audit_bench import ACCEPTED, IDENTITY, Bench, until
from tests.hang import HANG_S

DAY_MS = 86_400_000
ONE = archived_evidence()
SIZE = len(ONE.encoded())


class Kept:
    """A store and what it counts."""

    def __init__(
        self, folder: Path, limit: int = 1 << 20, days: int = 90, *, age: int | None = 0
    ) -> None:
        self.age = age
        """How many days old the log is."""
        self.folder = folder / "evidence"
        self.kept = 0
        self.lost = 0
        self.store = EvidenceStore(
            folder,
            limit_bytes=limit,
            retention=timedelta(days=days),
            age=lambda: None if self.age is None else self.age * 86_400,
            kept=self._kept,
            lost=self._lost,
        )

    def _kept(self, count: int) -> None:
        self.kept += count

    def _lost(self, count: int) -> None:
        self.lost += count

    def take(self, *archived_evidence: ArchivedEvidence) -> "Kept":
        for one in archived_evidence:
            self.store.put(one)
        self.store.close(20)
        return self

    def names(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*.json"))


@cache
def later(days: int, number: int) -> ArchivedEvidence:
    """Each is made once: signatures and keys differ every time."""
    return replace(archived_evidence(number=number), received_ms=ONE.received_ms + days * DAY_MS)


def day(one: ArchivedEvidence) -> str:
    return f"{datetime.fromtimestamp(one.received_ms / 1000, UTC):%Y%m%d}"


def name(one: ArchivedEvidence) -> str:
    return f"{day(one)}/{one.digest}.json"


def test_evidence_is_found_by_its_digest_and_is_private(folder: Path) -> None:
    kept = Kept(folder).take(ONE)
    path = kept.folder / name(ONE)
    assert kept.names() == [name(ONE)]
    assert read_archived_evidence(path.read_bytes()) == ONE
    assert path.stat().st_mode & 0o777 == 0o600
    folders = (path.parent, kept.folder)
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}
    assert (kept.kept, kept.lost) == (1, 0)
    kept.store.put(ONE)
    assert kept.lost == 1  # closed


def test_folders_open_to_others_become_private(folder: Path) -> None:
    path = folder / "evidence" / day(later(1, 2))
    path.mkdir(parents=True)
    for open_one in (path, path.parent):
        open_one.chmod(0o755)
    kept = Kept(folder).take(ONE)
    assert kept.kept == 1
    assert {x.stat().st_mode & 0o777 for x in (path, path.parent)} == {0o700}


def test_what_is_too_old_goes_with_its_day(folder: Path) -> None:
    """A day of the log's age more than the retention: evidence may have come until its end."""
    Kept(folder, days=2, age=0).take(ONE)
    Kept(folder, days=2, age=1).take(later(1, 2))
    kept = Kept(folder, days=2, age=3).take(later(3, 3))
    assert kept.names() == [name(one) for one in (ONE, later(1, 2), later(3, 3))]
    kept = Kept(folder, days=2, age=4).take(later(4, 4))
    assert kept.names() == [name(one) for one in (later(1, 2), later(3, 3), later(4, 4))]
    assert not (kept.folder / day(ONE)).exists()


@pytest.mark.parametrize("days", [-3650, 3650])
def test_a_wall_clock_that_jumps_makes_nothing_old(folder: Path, days: int) -> None:
    Kept(folder, days=2, age=0).take(ONE)
    jumped = Kept(folder, days=2, age=0).take(later(days, 2))
    assert jumped.names() == sorted([name(ONE), name(later(days, 2))])
    back = Kept(folder, days=2, age=1).take(later(1, 3))
    assert back.names() == sorted(name(one) for one in (ONE, later(days, 2), later(1, 3)))


def test_a_wall_clock_that_jumped_back_renews_the_day_that_it_writes_to(folder: Path) -> None:
    Kept(folder, days=2, age=0).take(ONE)
    Kept(folder, days=2, age=3).take(later(0, 2))
    kept = Kept(folder, days=2, age=6).take(later(9, 3))
    assert name(ONE) in kept.names()


def test_a_wall_clock_that_stands_still_renews_its_day(folder: Path) -> None:
    kept = Kept(folder, days=2, age=0)
    kept.store.put(ONE)
    while not kept.kept:
        threading.Event().wait(0.005)
    kept.age = 1
    kept.take(later(0, 2))
    again = Kept(folder, days=2, age=4).take(later(9, 3))
    assert name(ONE) in again.names()


@pytest.mark.parametrize("ages", [b"", b"[]", b"junk", b'{"%s":"9"}', b"[" * 5000])
def test_a_day_of_which_nothing_is_known_counts_from_now(folder: Path, ages: bytes) -> None:
    Kept(folder, days=2, age=0).take(ONE)
    (folder / "evidence" / "ages").write_bytes(ages.replace(b"%s", day(ONE).encode()))
    assert name(ONE) in Kept(folder, days=2, age=100).take(later(1, 2)).names()
    assert name(ONE) not in Kept(folder, days=2, age=104).take(later(2, 3)).names()


def test_what_is_too_old_makes_room_before_anything_is_written(folder: Path) -> None:
    Kept(folder, days=2, age=0).take(ONE)
    (folder / "evidence" / "ages.new").mkdir()  # what is written there fails, as on a full disk
    full = Kept(folder, days=2, age=4).take(later(4, 2))
    assert (full.names(), full.lost) == ([], 1)


def test_a_day_is_never_from_after_now(folder: Path) -> None:
    Kept(folder, days=2, age=0).take(ONE)
    ages = json.dumps({day(ONE): 10**12})
    (folder / "evidence" / "ages").write_text(ages)
    Kept(folder, days=2, age=1).take(later(1, 2))
    assert name(ONE) not in Kept(folder, days=2, age=9).take(later(2, 3)).names()


def test_nothing_is_too_old_while_the_log_is_not_open(folder: Path) -> None:
    Kept(folder, days=2, age=0).take(ONE)
    kept = Kept(folder, days=2, age=None).take(later(3650, 2))
    assert name(ONE) in kept.names()
    assert (kept.kept, kept.lost) == (1, 0)
    ages = json.loads((folder / "evidence" / "ages").read_bytes())
    assert ages == {day(ONE): 0}


def test_a_pipe_or_folder_among_the_evidence_holds_nobody_up(folder: Path) -> None:
    path = folder / "evidence" / name(ONE)
    path.parent.mkdir(parents=True)
    (path.parent / "folder").mkdir()
    os.mkfifo(path.with_suffix(".new"))
    os.mkfifo(path.parent / "pipe")
    os.mkfifo(folder / "evidence" / "ages")
    kept = Kept(folder, days=2, age=0).take(ONE)
    assert (kept.kept, kept.lost) == (1, 0)
    assert read_archived_evidence(path.read_bytes()) == ONE
    again = Kept(folder, days=2, age=9).take(later(9, 2))
    assert (again.kept, again.lost) == (1, 0)
    assert [x.name for x in path.parent.iterdir()] == ["folder"]


def test_the_oldest_goes_when_there_is_too_much(folder: Path) -> None:
    """Also what an earlier process has kept counts."""
    first = Kept(folder, limit=3 * SIZE + 200).take(ONE, later(0, 2))
    for number, path in enumerate((name(ONE), name(later(0, 2)))):
        os.utime(first.folder / path, (number, number))
    kept = Kept(folder, limit=3 * SIZE + 200).take(later(1, 3), later(2, 4), later(2, 5))
    assert kept.names() == [name(later(1, 3)), *sorted(map(name, (later(2, 4), later(2, 5))))]
    assert not (kept.folder / day(ONE)).exists()
    assert kept.lost == 0

    alone = Kept(folder, limit=SIZE + 200).take(later(2, 6), later(2, 7))
    assert (alone.names(), alone.lost) == ([name(later(2, 7))], 0)


def size(one: ArchivedEvidence) -> int:
    return len(one.encoded())


def test_as_much_is_kept_as_is_allowed(folder: Path) -> None:
    two = later(0, 2)
    kept = Kept(folder, limit=SIZE).take(ONE)
    assert (kept.names(), kept.lost) == ([name(ONE)], 0)
    both = Kept(folder, limit=SIZE + size(two)).take(two)
    assert both.names() == sorted([name(ONE), name(two)])
    less = Kept(folder, limit=SIZE + size(two) + size(later(1, 3)) - 1).take(later(1, 3))
    assert len(less.names()) == 2
    assert name(later(1, 3)) in less.names()


def test_a_sixteenth_is_made_free_at_once(folder: Path) -> None:
    many = [later(number, number) for number in range(17)]
    kept = Kept(folder, limit=sum(map(size, many[:16])) + 200).take(*many)
    assert kept.names() == sorted(map(name, many[2:]))


def test_no_more_than_a_sixteenth_is_made_free(folder: Path) -> None:
    one, two, three = (later(number, number) for number in (1, 2, 3))
    goal = size(two) + size(three)
    limit = next(x for x in range(goal, 2 * goal) if x - x // 16 == goal)
    kept = Kept(folder, limit=limit).take(one, two, three)
    assert kept.names() == sorted(map(name, (two, three)))


def test_what_else_lies_there_is_left_alone(folder: Path) -> None:
    (folder / "evidence").mkdir(parents=True)
    (folder / "evidence" / "README").touch()
    (folder / "evidence" / "lost+found").mkdir()
    (folder / "evidence" / "lost+found" / "piece").write_bytes(b"x" * SIZE)
    (folder / "evidence" / "20200101").touch()
    (folder / "evidence" / "20200102").symlink_to(folder / "evidence" / "lost+found")
    assert Kept(folder, limit=SIZE).take(ONE).kept == 1
    assert (folder / "evidence" / "lost+found" / "piece").exists()


def test_nothing_is_written_through_a_link(folder: Path) -> None:
    target = folder / "target"
    path = folder / "evidence" / name(ONE)
    path.parent.mkdir(parents=True)
    target.write_text("precious")
    path.with_suffix(".new").symlink_to(target)
    assert Kept(folder).take(ONE).kept == 1
    assert target.read_text() == "precious"
    assert read_archived_evidence(path.read_bytes()) == ONE


def test_what_a_crash_left_half_written_is_written_again(folder: Path) -> None:
    path = folder / "evidence" / name(ONE)
    path.parent.mkdir(parents=True)
    path.with_suffix(".new").write_bytes(b"x" * 2 * SIZE)
    assert Kept(folder).take(ONE).kept == 1
    assert read_archived_evidence(path.read_bytes()) == ONE


def test_evidence_is_written_when_it_comes(folder: Path) -> None:
    kept = Kept(folder)
    assert kept.store._thread.daemon
    kept.store.put(ONE)
    while not kept.kept:
        threading.Event().wait(0.005)
    kept.store.close(20)


def test_what_is_larger_than_everything_is_lost(folder: Path) -> None:
    kept = Kept(folder, limit=100).take(ONE)
    assert (kept.names(), kept.lost) == ([], 1)


def test_nothing_is_kept_where_nothing_is_wanted(folder: Path) -> None:
    kept = Kept(folder, limit=0).take(ONE)
    assert (kept.folder.exists(), kept.kept, kept.lost) == (False, 0, 0)


def test_a_disk_that_fails_loses_evidence_only(folder: Path) -> None:
    folder.mkdir()
    (folder / "evidence").touch()
    kept = Kept(folder).take(ONE)
    assert (kept.kept, kept.lost) == (0, 1)


def test_what_does_not_fit_leaves_nothing_behind(folder: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE // 2, hard))
    try:
        kept = Kept(folder).take(ONE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (kept.kept, kept.lost) == (0, 1)
    assert [x.name for x in kept.folder.rglob("*") if x.is_file()] == ["ages"]


def test_too_much_that_waits_is_lost(folder: Path) -> None:
    slow = threading.Event()

    class Slow(ArchivedEvidence):
        """Takes its time to be encoded."""

        def encoded(self) -> bytes:
            slow.wait(HANG_S)
            return b"{}"

    def held(size: int) -> ArchivedEvidence:
        return Slow("type", b"x" * size, b"", (), (), ONE.received_ms)

    kept = Kept(folder)
    kept.store.put(held((32 << 20) + 1))
    assert kept.lost == 1
    kept.store.put(held(32 << 20))
    kept.store.put(held(1))
    assert kept.lost == 2
    slow.set()
    while kept.store._waiting_bytes:
        threading.Event().wait(0.005)
    kept.store.put(held(32 << 20))
    kept.store.close(20)
    assert (kept.kept, kept.lost) == (2, 2)


def refused(one: ArchivedEvidence) -> Record:
    return replace(
        ACCEPTED, kind=RecordKind.EVIDENCE_REFUSED, decision="refused", archived_evidence=one
    )


async def test_grants_and_news_are_kept_and_repetitions_are_not(folder: Path) -> None:
    bench = Bench(folder)
    audit = audit_log(bench.settings, IDENTITY, bench.clock, bench.instruments, copies_to=None)
    await audit.open()
    await audit.grant(replace(ACCEPTED, archived_evidence=ONE))
    for number in (2, 3):
        audit.note(refused(archived_evidence(number=number)))
    audit.note(
        replace(
            ACCEPTED,
            kind=RecordKind.EVIDENCE_REPEATED,
            archived_evidence=archived_evidence(number=4),
        )
    )
    assert await audit.close(20)

    assert bench.metric(names.AUDIT_EVIDENCE_KEPT) == 2
    kept = {path.stem for path in (folder / "evidence").rglob("*.json")}
    assert ONE.digest in kept
    assert len(kept) == 2


async def test_where_space_is_short_the_log_goes_first(folder: Path) -> None:
    bench = Bench(folder, reserve=1 << 20)
    kept: list[ArchivedEvidence] = []
    async with bench.open(keep=kept.append) as audit:
        full: Callable[[], bool] = lambda: (folder / "reserve").stat().st_size > 0  # noqa: E731
        bench.disk.full_while = full
        bench.disk.reserve_errno = 28
        await audit.grant(ACCEPTED)
        assert audit.condition.low
        await audit.grant(replace(ACCEPTED, archived_evidence=ONE))
    assert kept == []
    shutil.rmtree(folder)


# --- evidence of unchanged rounds, which a later record may cite

BINDING = Record(RecordKind.BIND_DECISION, "user", "pod/a/b", "allowed")


def round_of(one: ArchivedEvidence) -> Record:
    return replace(
        ACCEPTED,
        kind=RecordKind.EVIDENCE_REPEATED,
        refs={"evidence": one.digest},
        archived_evidence=one,
    )


def citing(one: ArchivedEvidence) -> Record:
    return replace(BINDING, refs={"evidence": one.digest})


def archived(folder: Path, name: str) -> set[str]:
    return {path.stem for path in (folder / name).rglob("*.json")}


async def test_a_round_is_archived_once_something_rests_on_it(folder: Path) -> None:
    bench = Bench(folder)
    audit = audit_log(bench.settings, IDENTITY, bench.clock, bench.instruments, copies_to=None)
    await audit.open()
    noted, granted, unused = (archived_evidence(number=number) for number in (1, 2, 3))
    for one in (noted, granted, unused):
        audit.note(round_of(one))
    for _ in range(2):
        audit.note(citing(noted))
    reserved = replace(citing(granted), kind=RecordKind.RESERVATION_RESERVED)
    await audit.grant(reserved)
    audit.note(BINDING)
    assert await audit.close(20)
    assert archived(folder, "evidence-cited") == {noted.digest, granted.digest}
    assert archived(folder, "evidence") == set()
    assert bench.metric(names.AUDIT_EVIDENCE_KEPT) == 2


async def test_a_repeated_refusal_is_archived_once_an_operator_accepts_by_it(folder: Path) -> None:
    bench = Bench(folder)
    audit = audit_log(bench.settings, IDENTITY, bench.clock, bench.instruments, copies_to=None)
    await audit.open()
    first, again = (archived_evidence(number=number) for number in (1, 2))
    for one in (first, again):
        audit.note(replace(refused(one), refs={"evidence": one.digest}))
    await audit.grant(replace(citing(again), kind=RecordKind.NODE_OPERATOR))
    assert await audit.close(20)
    assert archived(folder, "evidence") == {first.digest}
    assert archived(folder, "evidence-cited") == {again.digest}


async def test_what_no_record_could_be_written_for_is_still_held(folder: Path) -> None:
    bench, kept = Bench(folder), list[ArchivedEvidence]()
    async with bench.open(keep_cited=kept.append, held=HeldEvidence()) as audit:
        audit.note(round_of(ONE))
        bench.disk.sync_errno = errno.EIO
        with pytest.raises(AuditUnavailableError):
            await audit.grant(citing(ONE))
        assert kept == []
        bench.disk.sync_errno = None
        await until(lambda: audit.condition.available)
        await audit.grant(citing(ONE))
    assert kept == [ONE]


async def test_grants_push_no_refused_evidence_out(folder: Path) -> None:
    """Each of the two folders has half of the space."""
    limit = 2 * (SIZE + 200)
    bench = Bench(folder, evidence_bytes=limit)
    audit = audit_log(bench.settings, IDENTITY, bench.clock, bench.instruments, copies_to=None)
    await audit.open()
    audit.note(refused(ONE))
    rounds = [archived_evidence(number=number) for number in (2, 3)]
    for one in rounds:
        audit.note(round_of(one))
        audit.note(citing(one))
    assert await audit.close(20)
    assert archived(folder, "evidence") == {ONE.digest}
    assert archived(folder, "evidence-cited") == {rounds[-1].digest}


async def test_without_an_archive_nothing_waits_for_it(folder: Path) -> None:
    bench = Bench(folder, evidence_bytes=0)
    audit = audit_log(bench.settings, IDENTITY, bench.clock, bench.instruments, copies_to=None)
    await audit.open()
    audit.note(round_of(ONE))
    assert audit._held.take(ONE.digest) is None
    audit.note(citing(ONE))
    assert await audit.close(20)
    assert not (folder / "evidence-cited").exists()
    assert bench.metric(names.AUDIT_EVIDENCE_LOST) == 0


def test_the_same_evidence_again_takes_no_more_space(folder: Path) -> None:
    two = later(0, 2)
    kept = Kept(folder, limit=SIZE + size(two)).take(ONE, ONE, two)
    assert kept.names() == sorted([name(ONE), name(two)])


async def test_closing_the_log_ends_both_archives(folder: Path) -> None:
    def writers() -> set[threading.Thread]:
        return {x for x in threading.enumerate() if x.name == "audit-evidence"}

    before, bench = writers(), Bench(folder)
    audit = audit_log(bench.settings, IDENTITY, bench.clock, bench.instruments, copies_to=None)
    await audit.open()
    assert len(writers() - before) == 2
    assert await audit.close(20)
    assert not writers() - before
