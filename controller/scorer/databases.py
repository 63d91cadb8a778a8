"""Where what was learned is kept: opens the database that the settings name, moves rows in and out.

The library of PostgreSQL is imported only where it is used.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from controller.scoring.learned import Row
from controller.store.learned_rows import (
    Learn,
    News,
    Rows,
    ScoreStore,
    ScoresUnavailableError,
)
from controller.store.scores import ScoreFile, export_rows, import_rows
from controller.store.sqlite import CALL_SECONDS, StoreError
from gpuwarden.clock import SystemClock
from gpuwarden.settings.database import PostgresDatabase

_ALL_S: Final = 60.0
"""Longest time to read or write all rows of a database at once."""


def score_store(
    database: Path | PostgresDatabase, password: str | None, *, call_seconds: float = CALL_SECONDS
) -> ScoreStore:
    """The database, not yet open."""
    if isinstance(database, Path):
        return ScoreFile(database, SystemClock())
    from controller.store.postgres_scores import PostgresScores  # noqa: PLC0415 -- see above

    return PostgresScores(database, password or "", call_seconds=call_seconds)


def all_rows(database: Path | PostgresDatabase, password: str | None) -> tuple[Row, ...]:
    """What a database has, also while services use it; raises OSError, StoreError."""
    if isinstance(database, Path):
        return export_rows(database)
    found: list[Row] = []

    def take(news: News) -> Rows:
        found.extend(news.rows)
        return Rows(())

    asyncio.run(_exchanged(score_store(database, password, call_seconds=_ALL_S), take))
    return tuple(found)


def put_rows(
    database: Path | PostgresDatabase, password: str | None, rows: Sequence[Row], *, replace: bool
) -> None:
    """Make a database hold these rows and no others, or change nothing.

    Raises InUseError, OSError, and StoreError: also for one that has rows, unless `replace`.
    """
    if isinstance(database, Path):
        import_rows(database, rows, replace=replace)
        return

    def put(news: News) -> Rows:
        if news.rows and not replace:
            raise StoreError(f"it has {len(news.rows)} rows; --replace takes their place")
        gone = {row.key for row in news.rows} - {row.key for row in rows}
        return Rows(tuple(rows), tuple(gone))

    asyncio.run(_exchanged(score_store(database, password, call_seconds=_ALL_S), put))


async def _exchanged(store: ScoreStore, learn: Learn) -> None:
    try:
        await store.exchange(learn)
    except ScoresUnavailableError as error:
        raise StoreError(str(error)) from None
    finally:
        await store.close()
