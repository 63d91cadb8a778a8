"""The file of what was learned: one writer, all or nothing, and no row that nobody wrote."""

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest

from controller.scoring.estimate import Moments
from controller.scoring.learned import Row, RowKind, Variant
from controller.store.learned_rows import (
    InUseError,
    News,
    Rows,
    ScoresUnavailableError,
    decode_row,
    encode_row,
)
from controller.store.scores import FileLock, ScoreFile, export_rows, import_rows
from controller.store.sqlite import StoreError
from gpuwarden.clock import SystemClock

ROW = Row(
    kind=RowKind.PAIR,
    job_type="train",
    other="A100-80GB",
    alone=Moments(3.0, 1.5, 0.25),
    beside=Moments(1.0, 2.0),
    failures=2,
    driver="580.1",
    image="sha256:1",
    number=9,
    earlier=(Variant(alone=Moments(2.0, 1.25, 0.75), driver="570.1", image="sha256:0"),),
)
OTHER = Row(kind=RowKind.BESIDE, job_type="train", other="infer", alone=Moments(1.0, 0.5), number=4)


class Opened:
    """A file that a service has opened, and what it found."""

    def __init__(self, path: Path) -> None:
        self.found: list[News] = []
        self.file = ScoreFile(path, SystemClock())

    async def exchange(self, *written: Row) -> None:
        def learn(news: News) -> Rows:
            self.found.append(news)
            return Rows(written)

        await self.file.exchange(learn)


def test_a_row_reads_as_it_was_written() -> None:
    assert decode_row(encode_row(ROW)) == ROW


def test_a_row_of_an_earlier_version_reads_and_an_earlier_version_reads_ours() -> None:
    """Until images were remembered beside the last one, rows had no `earlier`."""
    written = (
        '{"kind":"pair","job_type":"train","other":"L4","alone":{"weight":2.0,"mean":5.0,'
        '"squares":0.5},"beside":{"weight":0.0,"mean":0.0,"squares":0.0},"failures":1,'
        '"driver":"580.1","image":"sha256:1","number":7}'
    )
    row = decode_row(written)
    assert (row.alone, row.earlier, row.number) == (Moments(2.0, 5.0, 0.5), (), 7)
    assert decode_row(f'{written[:-1]},"later":[1]}}') == row  # so does an older program
    ours = json.loads(encode_row(ROW))
    assert ours.keys() - json.loads(written).keys() == {"earlier"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        encode_row(ROW).replace('"pair"', '"odd"'),
        encode_row(ROW).replace("3.0", "-3.0"),
        encode_row(ROW).replace("0.25", "-0.25"),
        encode_row(ROW).replace('"weight":2.0', '"weight":-2.0'),
        encode_row(ROW).replace("0.75", "-0.75"),
        encode_row(ROW).replace('"failures":2', '"failures":-1'),
        encode_row(ROW).replace('"number":9', '"number":-1'),
        encode_row(ROW).replace("3.0", "NaN"),
        encode_row(ROW).replace("3.0", "1e999"),
    ],
)
def test_a_text_that_is_no_row(text: str) -> None:
    with pytest.raises(StoreError, match="no row of version 1"):
        decode_row(text)


async def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    path.write_bytes(b"not a database, but long enough to look at it" * 50)
    before = path.read_bytes()
    opened = Opened(path)
    with pytest.raises(ScoresUnavailableError, match="not a database"):
        await opened.exchange()
    assert (opened.found, path.read_bytes()) == ([], before)
    await opened.file.close()


@pytest.mark.parametrize("column", ["kind", "job_type", "other", "row"])
async def test_a_row_that_was_changed_is_refused(tmp_path: Path, column: str) -> None:
    path = tmp_path / "s.db"
    import_rows(path, [ROW], replace=False)
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE learned SET {column} = 'beside'")  # noqa: S608 -- ours
    connection.close()
    opened = Opened(path)
    with pytest.raises(ScoresUnavailableError, match=r"no row of|about something else"):
        await opened.exchange()
    assert opened.found == []
    await opened.file.close()


async def test_rows_are_found_once_although_the_first_write_fails(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    import_rows(path, [ROW], replace=False)
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE TRIGGER full BEFORE INSERT ON learned BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
    opened = Opened(path)
    with pytest.raises(ScoresUnavailableError, match="full"):
        await opened.exchange(OTHER)
    connection.execute("DROP TRIGGER full")
    connection.close()
    await opened.exchange(OTHER)
    assert opened.found == [News((ROW,), is_whole=True), News()]
    await opened.file.close()
    assert set(export_rows(path)) == {ROW, OTHER}


async def test_what_is_read_too_late_is_news_of_the_next_exchange(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    import_rows(path, [ROW], replace=False)
    opened = Opened(path)
    opened.file.claim()
    asked = opened.file._thread.ask(None)
    await asyncio.wait([asked])
    await opened.exchange()
    assert opened.found == [News((ROW,), is_whole=True)]
    await opened.file.close()


async def test_the_right_to_write_ends_with_the_use(tmp_path: Path) -> None:
    first, second = Opened(tmp_path / "s.db"), Opened(tmp_path / "s.db")
    first.file.claim()
    with pytest.raises(InUseError):
        second.file.claim()
    with pytest.raises(ScoresUnavailableError, match="in use by another process"):
        await second.exchange()
    assert second.found == []
    await first.file.close()
    await second.exchange()
    await second.file.close()


# --- the lock


def test_one_process_writes(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "s.db"), FileLock(tmp_path / "s.db")
    first.take()
    first.take()
    with pytest.raises(InUseError, match=r"s\.db is in use by another process"):
        second.take()
    assert (first.is_held, second.is_held) == (True, False)
    first.release()
    second.take()
    second.release()
    second.release()


def test_another_name_of_the_file_is_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    lock = FileLock(tmp_path / "real" / "s.db")
    lock.take()
    with pytest.raises(InUseError):
        FileLock(tmp_path / "link" / "s.db").take()
    lock.release()


# --- export and import


def test_an_import_fills_a_new_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    import_rows(path, [ROW], replace=False)
    with pytest.raises(StoreError, match="has 1 rows; --replace"):
        import_rows(path, [OTHER], replace=False)
    assert export_rows(path) == (ROW,)
    import_rows(path, [OTHER], replace=True)
    assert export_rows(path) == (OTHER,)


def test_an_import_beside_a_service_is_refused(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "s.db")
    lock.take()
    with pytest.raises(InUseError):
        import_rows(tmp_path / "s.db", [ROW], replace=True)
    lock.release()
    import_rows(tmp_path / "s.db", [ROW], replace=True)


def test_an_export_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        export_rows(tmp_path / "s.db")
    assert list(tmp_path.iterdir()) == []
