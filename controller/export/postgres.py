"""Exporter `postgres`: copies records into a staging table and inserts what is not there yet.

One transaction per batch. Names of tables and columns are quoted, values are never part of SQL.
Imported only where this exporter is used.
"""

from dataclasses import dataclass
from typing import Any, Final, LiteralString

import psycopg
from psycopg import AsyncConnection, sql

from controller.export.exporter import Batch
from controller.export.failures import Cure, DeliveryError
from controller.export.records import ExportRecord
from gpuwarden.redaction import error_line

NAME: Final = "postgres"
_STAGING: Final = sql.Identifier("gpuwarden_staging")
_COLUMNS: Final = (
    ("cluster", "cluster"),
    ("node", "node"),
    ("machine", "machine"),
    ("source", "source"),
    ("chassis", "chassis"),
    ("gpu", "gpu"),
    ("read_time", "time"),
    ("uuid", "uuid"),
    ("product", "product"),
    ("class_hash", "class_hash"),
    ("evidence_digest", "evidence"),
    ("level", "level"),
    ("change", "change"),
    ("record_key", "key"),
)
"""Column of the table, and the field of a record."""
_INDEXED: Final = ("cluster", "node", "read_time", "created_at", "uuid", "gpu")
_LOCK: Final = 0x6770757764
"""Of migrations: two replicas make no table at the same time."""
_CONTENT: Final = (psycopg.DataError, psycopg.IntegrityError)
MIGRATIONS: Final[tuple[LiteralString, ...]] = (
    """CREATE TABLE IF NOT EXISTS {table} (
    id BIGSERIAL PRIMARY KEY,
    cluster VARCHAR(255) NOT NULL,
    node VARCHAR(255) NOT NULL,
    machine VARCHAR(255) NOT NULL,
    source VARCHAR(255) NOT NULL,
    chassis VARCHAR(255) NOT NULL DEFAULT 'unknown',
    gpu VARCHAR(255) NOT NULL,
    read_time TIMESTAMPTZ NOT NULL,
    created_at TIMESTAMPTZ NOT NULL DEFAULT NOW()
)""",
    """ALTER TABLE {table}
    ADD COLUMN IF NOT EXISTS chassis VARCHAR(255) NOT NULL DEFAULT 'unknown',
    ADD COLUMN IF NOT EXISTS uuid TEXT,
    ADD COLUMN IF NOT EXISTS product TEXT,
    ADD COLUMN IF NOT EXISTS class_hash TEXT,
    ADD COLUMN IF NOT EXISTS evidence_digest TEXT,
    ADD COLUMN IF NOT EXISTS level TEXT,
    ADD COLUMN IF NOT EXISTS change BIGINT,
    ADD COLUMN IF NOT EXISTS record_key TEXT""",
    "CREATE UNIQUE INDEX IF NOT EXISTS {key_index} ON {table} (record_key)",
)
"""In their order, each without effect the second time. The first makes the table of gpuid but for
its constraint, which two changes within a moment can violate; the others bring such a table up to
date."""


@dataclass(frozen=True, slots=True)
class PostgresTarget:
    """Where to. `table` may have a schema before a dot."""

    host: str
    database: str
    user: str
    password: str
    port: int = 5432
    ssl_mode: str = "require"
    ssl_root_cert: str | None = None
    table: str = "gpu"
    auto_migrate: bool = False
    timeout_s: float = 30.0

    @property
    def identifier(self) -> sql.Identifier:
        """The table, quoted."""
        return sql.Identifier(*self.table.split("."))


class PostgresExporter:
    """Keeps one connection; after an error another one is opened."""

    def __init__(self, target: PostgresTarget) -> None:
        self._target = target
        self._connection: AsyncConnection[Any] | None = None
        self._is_migrated = not target.auto_migrate

    @property
    def name(self) -> str:
        """`postgres`."""
        return NAME

    @property
    def keeps_batches(self) -> bool:
        """No: records are known by `record_key`."""
        return False

    async def send(self, batch: Batch) -> None:
        """Store what is not stored yet; raises DeliveryError."""
        try:
            connection = await self._connected()
            async with connection.transaction(), connection.cursor() as cursor:
                await cursor.execute(self._limit())
                await cursor.execute(self._staging_table())
                async with cursor.copy(_copy()) as copy:
                    for record in batch.records:
                        await copy.write_row(_row(record))
                await cursor.execute(self._insert())
        except (psycopg.Error, OSError) as error:
            raise await self._failed(error) from None
        except BaseException:
            await self.close()  # cancelled in the middle: nobody knows what the server is at
            raise

    async def check(self) -> None:
        """Ask for nothing from the table; raises DeliveryError."""
        try:
            connection = await self._connected()
            async with connection.transaction():
                await connection.execute(
                    sql.SQL("SELECT 1 FROM {} LIMIT 0").format(self._target.identifier)
                )
        except (psycopg.Error, OSError) as error:
            raise await self._failed(error) from None

    async def close(self) -> None:
        """Close the connection; the server ends what is open on it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _connected(self) -> AsyncConnection[Any]:
        if self._connection is None:
            target = self._target
            self._connection = await AsyncConnection.connect(
                host=target.host,
                port=target.port,
                dbname=target.database,
                user=target.user,
                password=target.password,
                sslmode=target.ssl_mode,
                sslrootcert=target.ssl_root_cert,
                connect_timeout=max(2, int(target.timeout_s)),
                application_name="gpuwarden",
                prepare_threshold=None,  # poolers hand the next statement to another session
                autocommit=True,
            )
        if not self._is_migrated:
            await self._migrate(self._connection)
            self._is_migrated = True
        return self._connection

    async def _migrate(self, connection: AsyncConnection[Any]) -> None:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            for statement in migrations(self._target.table):
                await connection.execute(statement)

    def _limit(self) -> sql.Composed:
        """Not a parameter of the connection: poolers refuse those."""
        milliseconds = int(self._target.timeout_s * 1000)
        return sql.SQL("SET LOCAL statement_timeout = {}").format(sql.Literal(milliseconds))

    def _staging_table(self) -> sql.Composed:
        return sql.SQL(
            "CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA"
        ).format(_STAGING, _names(), self._target.identifier)

    def _insert(self) -> sql.Composed:
        return sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} ON CONFLICT DO NOTHING").format(
            self._target.identifier, _names(), _names(), _STAGING
        )

    async def _failed(self, error: psycopg.Error | OSError) -> DeliveryError:
        is_content = isinstance(error, _CONTENT)
        if not is_content:
            await self.close()
        text = error_line(error, self._target.password)
        return DeliveryError(text, Cure.LESS if is_content else Cure.TIME)


def migrations(table: str) -> tuple[sql.Composed, ...]:
    """What makes the table, or brings one of gpuid up to date."""
    parts = table.split(".")
    identifier, name = sql.Identifier(*parts), parts[-1]
    made = [
        sql.SQL(x).format(table=identifier, key_index=sql.Identifier(f"uq_{name}_record_key"))
        for x in MIGRATIONS
    ]
    made += [
        sql.SQL("CREATE INDEX IF NOT EXISTS {} ON {} ({})").format(
            sql.Identifier(f"idx_{name}_{column}"), identifier, sql.Identifier(column)
        )
        for column in _INDEXED
    ]
    return tuple(made)


def _copy() -> sql.Composed:
    return sql.SQL("COPY {} ({}) FROM STDIN").format(_STAGING, _names())


def _names() -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(column) for column, _ in _COLUMNS)


def _row(record: ExportRecord) -> tuple[object, ...]:
    return tuple(getattr(record, field) for _, field in _COLUMNS)
