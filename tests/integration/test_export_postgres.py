"""The exporter `postgres` against a real server: its table, its keys, its errors."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from controller.export.exporter import Batch
from controller.export.failures import Cure, DeliveryError
from controller.export.postgres import PostgresExporter, PostgresTarget
from controller.export.records import ExportRecord, batch_digest
from tests.builders.exported import record, records
from tests.fakes.postgres_server import (
    DATABASE,
    PASSWORD,
    USER,
    NoPostgresError,
    PostgresServer,
    postgres_server,
)

SEED_TABLE = """CREATE TABLE gpu (
    id BIGSERIAL PRIMARY KEY, cluster VARCHAR(255) NOT NULL, node VARCHAR(255) NOT NULL,
    machine VARCHAR(255) NOT NULL, source VARCHAR(255) NOT NULL, gpu VARCHAR(255) NOT NULL,
    read_time TIMESTAMPTZ NOT NULL, created_at TIMESTAMPTZ NOT NULL DEFAULT NOW(),
    UNIQUE (cluster, node, machine, source, gpu, read_time))"""


@pytest.fixture(scope="module")
def running() -> Iterator[PostgresServer]:
    try:
        with postgres_server() as server:
            yield server
    except NoPostgresError as error:
        pytest.skip(str(error))


@pytest.fixture
def server(running: PostgresServer) -> Iterator[PostgresServer]:
    with running.fresh():
        yield running


def target(server: PostgresServer, **changes: object) -> PostgresTarget:
    found = PostgresTarget(
        host="127.0.0.1",
        database=DATABASE,
        user=USER,
        password=PASSWORD,
        port=server.port,
        ssl_mode="prefer",
        auto_migrate=True,
    )
    return replace(found, **changes)  # type: ignore[arg-type] # a test's


def batch(*found: ExportRecord) -> Batch:
    return Batch("b", batch_digest(found), found)


async def failure(exporter: PostgresExporter, *found: ExportRecord) -> DeliveryError:
    with pytest.raises(DeliveryError) as caught:
        await exporter.send(batch(*found))
    await exporter.close()
    assert PASSWORD not in str(caught.value)
    return caught.value


async def test_a_row_has_what_the_record_says(server: PostgresServer) -> None:
    exporter = PostgresExporter(target(server))
    await exporter.send(batch(record(7, 3, product='A "quoted"\\ name, é')))
    await exporter.close()
    (row,) = server.rows(
        "SELECT cluster, node, machine, source, chassis, gpu, read_time::text, uuid, product,"
        " class_hash, evidence_digest, level, change, record_key FROM gpu"
    )
    found = record(7, 3, product='A "quoted"\\ name, é')
    assert row[:6] == (
        found.cluster,
        found.node,
        found.machine,
        found.source,
        found.chassis,
        found.gpu,
    )
    assert row[6].startswith("2026-11-29 11:45:01.123")
    assert row[7:] == (
        found.uuid,
        found.product,
        found.class_hash,
        found.evidence,
        found.level,
        3,
        found.key,
    )


async def test_rows_that_are_there_are_not_doubled(server: PostgresServer) -> None:
    exporter = PostgresExporter(target(server))
    await exporter.send(batch(*records(3)))
    later = record(1, 1, time="2027-01-01T00:00:00.000Z", evidence="f" * 64)
    await exporter.send(batch(later, *records(5)))
    await exporter.close()
    assert server.rows("SELECT count(*), count(DISTINCT record_key) FROM gpu") == [(5, 5)]


async def test_a_table_of_gpuid_is_brought_up_to_date(server: PostgresServer) -> None:
    server.do(SEED_TABLE)
    server.do(
        "INSERT INTO gpu (cluster, node, machine, source, gpu, read_time)"
        " VALUES ('c', 'n', 'm', 's', 'g', now())"
    )
    exporter = PostgresExporter(target(server))
    await exporter.send(batch(*records(2)))
    await exporter.close()
    found = server.rows("SELECT chassis, uuid IS NULL, record_key IS NULL FROM gpu ORDER BY id")
    assert found == [("unknown", True, True), ("unknown", False, False), ("unknown", False, False)]


async def test_migrations_have_no_effect_the_second_time(server: PostgresServer) -> None:
    for _ in range(2):
        exporter = PostgresExporter(target(server))
        await exporter.check()
        await exporter.close()
    indexes = {x for (x,) in server.rows("SELECT indexname FROM pg_indexes WHERE tablename='gpu'")}
    assert {
        "uq_gpu_record_key",
        "idx_gpu_cluster",
        "idx_gpu_node",
        "idx_gpu_read_time",
        "idx_gpu_created_at",
    } <= indexes


async def test_without_the_opt_in_no_table_is_made(server: PostgresServer) -> None:
    error = await failure(PostgresExporter(target(server, auto_migrate=False)), *records(1))
    assert error.cure is Cure.TIME
    assert 'relation "gpu" does not exist' in str(error)
    assert server.rows("SELECT 1 FROM pg_tables WHERE tablename = 'gpu'") == []


async def test_names_are_quoted(server: PostgresServer) -> None:
    server.do('CREATE SCHEMA "Fleet"')
    exporter = PostgresExporter(target(server, table="Fleet.Select"))
    await exporter.send(batch(*records(2)))
    await exporter.close()
    assert server.rows('SELECT count(*) FROM "Fleet"."Select"') == [(2,)]
    server.do('DROP SCHEMA "Fleet" CASCADE')


async def test_a_value_that_does_not_fit_is_a_matter_of_the_record(server: PostgresServer) -> None:
    exporter = PostgresExporter(target(server))
    with pytest.raises(DeliveryError, match="too long") as caught:
        await exporter.send(batch(record(0), record(1, machine="m" * 256)))
    assert caught.value.cure is Cure.LESS
    await exporter.send(batch(record(0)))  # the connection is of use still
    await exporter.close()
    assert server.rows("SELECT count(*) FROM gpu") == [(1,)]


async def test_a_wrong_password_is_named_and_not_shown(server: PostgresServer) -> None:
    exporter = PostgresExporter(target(server, password="another'secret"))  # noqa: S106 - a test's
    error = await failure(exporter, *records(1))
    assert "password authentication failed" in str(error)
    assert "another'secret" not in str(error)
    assert error.cure is Cure.TIME


async def test_a_server_without_tls_is_refused_where_tls_is_required(
    server: PostgresServer,
) -> None:
    error = await failure(PostgresExporter(target(server, ssl_mode="require")), *records(1))
    assert "SSL" in str(error)


async def test_a_server_that_restarts_gets_everything_once(server: PostgresServer) -> None:
    exporter = PostgresExporter(target(server))
    await exporter.send(batch(*records(2)))
    server.stop()
    try:
        with pytest.raises(DeliveryError) as caught:
            await exporter.send(batch(*records(4)))
        assert caught.value.cure is Cure.TIME
        with pytest.raises(DeliveryError):
            await exporter.check()
    finally:
        server.start()
    await exporter.send(batch(*records(4)))
    await exporter.close()
    assert server.rows("SELECT count(*), count(DISTINCT record_key) FROM gpu") == [(4, 4)]


async def test_a_connection_that_the_server_ends_is_replaced(server: PostgresServer) -> None:
    exporter = PostgresExporter(target(server))
    await exporter.check()
    server.do(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'gpuwarden'"
    )
    with pytest.raises(DeliveryError):
        await exporter.check()
    await exporter.check()
    await exporter.close()


async def test_a_lock_on_the_table_does_not_hold_it_for_ever(server: PostgresServer) -> None:
    exporter = PostgresExporter(target(server, timeout_s=2.0))
    await exporter.check()
    with server.connected() as blocking:
        blocking.execute("BEGIN")
        blocking.execute("LOCK TABLE gpu IN ACCESS EXCLUSIVE MODE")
        error = await failure(exporter, *records(1))
    assert "statement timeout" in str(error)
