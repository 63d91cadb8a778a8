"""What every exporter keeps, with its real destination: all of a batch arrives, once by its key."""

import contextlib
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import pytest

from controller.export.exporter import AlreadySentError, Batch, Exporter
from controller.export.failures import DeliveryError
from controller.export.http import HttpExporter, HttpTarget
from controller.export.layout import ObjectLayout
from controller.export.postgres import PostgresExporter, PostgresTarget
from controller.export.records import batch_digest, read_csv, read_json
from controller.export.s3 import S3Exporter, S3Target
from controller.export.standard_output import StandardOutputExporter
from tests.builders.exported import record, records
from tests.fakes.http_receiver import receiver
from tests.fakes.postgres_server import (
    DATABASE,
    PASSWORD,
    USER,
    NoPostgresError,
    PostgresServer,
    postgres_server,
)
from tests.fakes.s3_server import BUCKET, NoS3ServerError, S3Server, s3_server


@dataclass(frozen=True, slots=True)
class Destination:
    """An exporter, what arrived, and an exporter whose destination is not there."""

    exporter: Exporter
    keys: Callable[[], list[str]]
    broken: Exporter


class Make(Protocol):
    def __call__(
        self, request: pytest.FixtureRequest
    ) -> contextlib.AbstractAsyncContextManager[Destination]: ...


class _Closed(io.StringIO):
    def write(self, _text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


@contextlib.asynccontextmanager
async def stdout(_request: pytest.FixtureRequest) -> AsyncIterator[Destination]:
    stream = io.StringIO()

    def keys() -> list[str]:
        found = [json.loads(x)["key"] for x in stream.getvalue().splitlines()]
        return list(dict.fromkeys(found))  # a reader of lines drops what it knows

    yield Destination(StandardOutputExporter(stream), keys, StandardOutputExporter(_Closed()))


@contextlib.asynccontextmanager
async def http(_request: pytest.FixtureRequest) -> AsyncIterator[Destination]:
    async with receiver() as found:
        yield Destination(
            HttpExporter(HttpTarget(found.url), lambda: 0),
            lambda: list(found.records),
            HttpExporter(HttpTarget("http://127.0.0.1:9/"), lambda: 0),
        )


@contextlib.asynccontextmanager
async def postgres(request: pytest.FixtureRequest) -> AsyncIterator[Destination]:
    running: PostgresServer = request.getfixturevalue("postgres_running")

    def target(port: int) -> PostgresTarget:
        return PostgresTarget(
            host="127.0.0.1",
            port=port,
            database=DATABASE,
            user=USER,
            password=PASSWORD,
            ssl_mode="prefer",
            auto_migrate=True,
        )

    with running.fresh() as server:
        yield Destination(
            PostgresExporter(target(server.port)),
            lambda: [x for (x,) in server.rows("SELECT record_key FROM gpu ORDER BY id")],
            PostgresExporter(target(9)),
        )


@contextlib.asynccontextmanager
async def s3(request: pytest.FixtureRequest) -> AsyncIterator[Destination]:
    running: S3Server = request.getfixturevalue("s3_running")
    with pytest.MonkeyPatch.context() as patch, running.fresh() as server:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield Destination(
            S3Exporter(S3Target(BUCKET, endpoint=server.endpoint, layout=ObjectLayout("x"))),
            lambda: [y.key for x in server.objects().values() for y in read_csv(x)],
            S3Exporter(S3Target(BUCKET, endpoint="http://127.0.0.1:9", timeout_s=5.0)),
        )


@pytest.fixture(scope="module")
def postgres_running() -> Iterator[PostgresServer]:
    try:
        with postgres_server() as server:
            yield server
    except NoPostgresError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def s3_running() -> Iterator[S3Server]:
    try:
        with s3_server() as server:
            yield server
    except NoS3ServerError as error:
        pytest.skip(str(error))


@pytest.fixture(params=[stdout, http, postgres, s3], ids=lambda make: make.__name__)
async def destination(request: pytest.FixtureRequest) -> AsyncIterator[Destination]:
    make: Make = request.param
    async with make(request) as found:
        yield found
        await found.exporter.close()
        await found.broken.close()


def batch(count: int, name: str = "20261129-114501.123-a") -> Batch:
    return Batch(name, batch_digest(records(count)), records(count))


async def test_all_of_a_batch_arrives_in_its_order(destination: Destination) -> None:
    await destination.exporter.send(batch(50))
    assert destination.keys() == [x.key for x in records(50)]


async def test_a_batch_that_is_sent_again_is_there_once(destination: Destination) -> None:
    for _ in range(2):
        with contextlib.suppress(AlreadySentError):
            await destination.exporter.send(batch(3))
    assert destination.keys() == [x.key for x in records(3)]


async def test_a_further_change_of_a_gpu_is_a_further_record(destination: Destination) -> None:
    first, second = record(0, 1), record(0, 2, level="L0")
    for number, one in enumerate((first, second)):
        await destination.exporter.send(Batch(f"batch-{number}", one.key, (one,)))
    assert destination.keys() == [first.key, second.key]


async def test_any_text_arrives_as_it_is(destination: Destination) -> None:
    odd = record(0, 1, product='"q",\\N \\. {} %s; DROP TABLE gpu;-- \t é 名')
    await destination.exporter.send(Batch("odd", odd.key, (odd,)))
    assert destination.keys() == [odd.key]


async def test_a_destination_that_is_not_there_is_an_error(destination: Destination) -> None:
    with pytest.raises(DeliveryError):
        await destination.broken.send(batch(1))


async def test_health_is_asked_without_leaving_anything(destination: Destination) -> None:
    await destination.exporter.check()
    assert destination.keys() == []


async def test_an_exporter_is_of_use_after_close(destination: Destination) -> None:
    asked: Awaitable[None]
    for asked in (destination.exporter.close(), destination.exporter.close()):
        await asked
    if destination.exporter.name != "stdout":
        await destination.exporter.send(batch(1))
        assert destination.keys() == [record(0).key]


def test_a_line_of_standard_output_is_a_record() -> None:
    text = '{"cluster":"c"}'
    with pytest.raises(ValueError, match="node"):
        read_json(text)
