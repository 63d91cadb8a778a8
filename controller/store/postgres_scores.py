"""What the scoring service has learned, in a database of PostgreSQL that replicas share.

One replica writes at a time: it locks one row, reads what others wrote, and writes on top of that.
Each write has a number and an id, so that a replica finds what it has not seen, and whether a write
whose answer was lost is there. Imported only where such a database is used.
"""

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, LiteralString

import psycopg
from psycopg import AsyncConnection, sql

from controller.scoring.learned import Key, RowKind
from controller.store.learned_rows import (
    MOST_RUN_IDS,
    VERSION,
    Learn,
    News,
    Rows,
    ScoresUnavailableError,
    encode_row,
    row_of,
)
from controller.store.sqlite import CALL_SECONDS, StoreError
from gpuwarden.redaction import error_line
from gpuwarden.settings.database import PostgresDatabase

KEPT_WRITES: Final = 10_000
"""Writes, and rows that went, are remembered for so many writes. Who was away for longer reads all
rows again."""
_LOCK: Final = 0x67707573
"""Of making the tables: two replicas do not at the same time."""
_NONE: Final = -1
_MISSING: Final = "SELECT name FROM unnest(%s::text[]) AS name WHERE to_regclass(name) IS NULL"
TABLES: Final[Mapping[str, LiteralString]] = {
    "gpuwarden_score": """CREATE TABLE IF NOT EXISTS gpuwarden_score (
    is_only BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (is_only),
    version INTEGER NOT NULL,
    change BIGINT NOT NULL
)""",
    "gpuwarden_score_write": """CREATE TABLE IF NOT EXISTS gpuwarden_score_write (
    change BIGINT PRIMARY KEY,
    id TEXT NOT NULL
)""",
    "gpuwarden_score_learned": """CREATE TABLE IF NOT EXISTS gpuwarden_score_learned (
    kind TEXT NOT NULL,
    job_type TEXT NOT NULL,
    other TEXT NOT NULL,
    change BIGINT NOT NULL,
    row TEXT,
    PRIMARY KEY (kind, job_type, other)
);
CREATE INDEX IF NOT EXISTS gpuwarden_score_learned_change ON gpuwarden_score_learned (change)""",
    "gpuwarden_score_run": """CREATE TABLE IF NOT EXISTS gpuwarden_score_run (
    number BIGINT PRIMARY KEY,
    id TEXT NOT NULL
)""",
}
"""`row` is null where the row went. Earlier versions made no `gpuwarden_score_run`."""


class PostgresScores:
    """Implements `ScoreStore`. Keeps one connection; after an error another one is opened."""

    def __init__(
        self, target: PostgresDatabase, password: str, *, call_seconds: float = CALL_SECONDS
    ) -> None:
        self._target = target
        self._password = password
        self._call_seconds = call_seconds
        self._connection: AsyncConnection[Any] | None = None
        self._change, self._id = _NONE, ""
        """The last write that was seen."""
        self._run = 0
        """Number of the last id of a run that was seen."""
        self._unheard = ""
        """Id of a write whose end was not heard; empty if there is none."""
        self._given_up: set[asyncio.Task[None]] = set()

    def claim(self) -> None:
        """Everybody may write."""

    async def exchange(self, learn: Learn) -> None:
        """Read what others wrote, and write, in one transaction."""
        task = asyncio.ensure_future(self._exchange(learn))
        try:
            finished, _ = await asyncio.wait({task}, timeout=self._call_seconds)
        finally:
            if not task.done():  # psycopg waits for the server once more: nobody else has to
                self._given_up.add(task)
                task.add_done_callback(self._given_up.discard)
                task.cancel()
        if not finished:
            text = f"no answer within {self._call_seconds:g} s"
            raise ScoresUnavailableError(f"{self._target}: {text}")
        try:
            task.result()
        except (psycopg.Error, OSError, StoreError) as error:
            text = error_line(error, self._password)
            raise ScoresUnavailableError(f"{self._target}: {text}") from None

    async def checkpoint(self) -> None:
        """The server does."""

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _exchange(self, learn: Learn) -> None:
        connection, self._connection = self._connection, None
        try:
            if connection is None:
                connection = await self._connected()
                await self._make_tables(connection)
            await self._transaction(connection, learn)
            self._unheard = ""
        except BaseException:
            if connection is not None:
                await connection.close()
            raise
        self._connection = connection

    async def _connected(self) -> AsyncConnection[Any]:
        target = self._target
        return await AsyncConnection.connect(
            host=target.host,
            port=target.port,
            dbname=target.database,
            user=target.user,
            password=self._password,
            sslmode=target.ssl_mode.value,
            sslrootcert=target.ssl_root_cert,
            connect_timeout=max(2, int(self._call_seconds)),
            application_name="gpuwarden-score",
            prepare_threshold=None,  # poolers hand the next statement to another session
            autocommit=True,
        )

    async def _make_tables(self, connection: AsyncConnection[Any]) -> None:
        async with connection.transaction():
            await connection.execute(self._limits())
            # without this a user who may make no tables could not use those that are there
            found = await connection.execute(_MISSING, (list(TABLES),))
            missing = [name for (name,) in await found.fetchall()]
            if not missing:
                return
            await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            for name in missing:
                await self._make_table(connection, name)
            if "gpuwarden_score" in missing:
                await connection.execute(
                    "INSERT INTO gpuwarden_score (version, change) VALUES (%s, 0)"
                    " ON CONFLICT DO NOTHING",
                    (VERSION,),
                )
                await connection.execute(
                    "INSERT INTO gpuwarden_score_write VALUES (0, %s) ON CONFLICT DO NOTHING",
                    (secrets.token_hex(16),),
                )

    async def _make_table(self, connection: AsyncConnection[Any], name: str) -> None:
        try:
            await connection.execute(TABLES[name])
        except psycopg.errors.InsufficientPrivilege as error:
            text = f"missing, and {self._target.user!a} may not make it: {error}"
            raise StoreError(f"table {name}: {text}") from None

    async def _transaction(self, connection: AsyncConnection[Any], learn: Learn) -> None:
        async with connection.transaction():
            await connection.execute(self._limits())
            change = await self._lock(connection)
            news, run = await self._news(connection)
            last = "SELECT id FROM gpuwarden_score_write WHERE change = %s"
            self._change, self._id = change, await _value(connection, last, change) or ""
            self._run = run
            self._unheard = ""
            rows = learn(news)
            if not rows.is_change:
                return
            self._unheard = secrets.token_hex(16)
            await _write(connection, change + 1, self._unheard, rows)
            await _write_runs(connection, run, rows.run_ids)
        self._change, self._id = change + 1, self._unheard
        self._run = run + len(rows.run_ids)

    def _limits(self) -> sql.Composed:
        """Not parameters of the connection: poolers refuse those.

        The second ends a transaction whose client is gone without a word.
        """
        limit = sql.Literal(max(1, int(self._call_seconds * 1000)))
        return sql.SQL(
            "SET LOCAL statement_timeout = {}; SET LOCAL idle_in_transaction_session_timeout = {}"
        ).format(limit, limit)

    async def _lock(self, connection: AsyncConnection[Any]) -> int:
        """The number of the last write; nobody else writes before the transaction ends."""
        found = await connection.execute("SELECT version, change FROM gpuwarden_score FOR UPDATE")
        version, change = await found.fetchone() or (None, 0)
        if version != VERSION:
            raise StoreError(f"gpuwarden_score has version {version}, this program knows {VERSION}")
        return int(change)

    async def _news(self, connection: AsyncConnection[Any]) -> tuple[News, int]:
        """What came after the write that was seen last; all there is, where that is not there.

        So it is at the first time, after a longer absence, and in a database that was restored.
        Beside it the number of the last id of a run.
        """
        known = "SELECT count(*) FROM gpuwarden_score_write WHERE change = %s AND id = %s"
        is_known = bool(await _value(connection, known, self._change, self._id))
        kept = "SELECT count(*) FROM gpuwarden_score_write WHERE id = %s"
        found = await connection.execute(
            "SELECT kind, job_type, other, row FROM gpuwarden_score_learned WHERE change > %s",
            (self._change if is_known else _NONE,),
        )
        columns = await found.fetchall()
        seen = self._run if is_known else 0
        found = await connection.execute(
            "SELECT number, id FROM gpuwarden_score_run WHERE number > %s ORDER BY number", (seen,)
        )
        runs = await found.fetchall()
        news = News(
            rows=tuple(row_of(*each) for each in columns if each[3] is not None),
            removed=tuple(_key(*each[:3]) for each in columns if each[3] is None),
            run_ids=tuple(name for _, name in runs),
            is_whole=not is_known,
            kept=bool(self._unheard and await _value(connection, kept, self._unheard)),
        )
        return news, runs[-1][0] if runs else seen


async def _write(connection: AsyncConnection[Any], change: int, name: str, rows: Rows) -> None:
    texts: dict[Key, str | None] = dict.fromkeys(rows.removed)
    texts |= {row.key: encode_row(row) for row in rows.written}
    given = [(key.kind.value, key.job_type, key.other, text) for key, text in texts.items()]
    await connection.execute("UPDATE gpuwarden_score SET change = %s", (change,))
    await connection.execute("INSERT INTO gpuwarden_score_write VALUES (%s, %s)", (change, name))
    await connection.execute(
        "INSERT INTO gpuwarden_score_learned (change, kind, job_type, other, row)"
        " SELECT %s, * FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[])"
        " ON CONFLICT (kind, job_type, other)"
        " DO UPDATE SET change = EXCLUDED.change, row = EXCLUDED.row",
        (change, *map(list, zip(*given, strict=True))),
    )
    old = (change - KEPT_WRITES,)
    await connection.execute("DELETE FROM gpuwarden_score_write WHERE change <= %s", old)
    await connection.execute(
        "DELETE FROM gpuwarden_score_learned WHERE row IS NULL AND change <= %s", old
    )


async def _write_runs(connection: AsyncConnection[Any], last: int, names: tuple[str, ...]) -> None:
    if names:
        numbers = list(range(last + 1, last + len(names) + 1))
        await connection.execute(
            "INSERT INTO gpuwarden_score_run SELECT * FROM unnest(%s::bigint[], %s::text[])",
            (numbers, list(names)),
        )
        await connection.execute(
            "DELETE FROM gpuwarden_score_run WHERE number <= %s", (numbers[-1] - MOST_RUN_IDS,)
        )


async def _value(connection: AsyncConnection[Any], query: LiteralString, *given: object) -> Any:  # noqa: ANN401 -- of any type
    found = await connection.execute(query, given)
    row = await found.fetchone()
    return None if row is None else row[0]


def _key(kind: str, job_type: str, other: str) -> Key:
    with suppress(ValueError):
        return Key(RowKind(kind), job_type, other)
    raise StoreError(f"the row of {kind} {job_type!a} {other!a} is of no kind")
