"""The exporter `s3` against a real S3-compatible server."""

from collections.abc import Iterator
from typing import Any

import obstore
import pytest

from controller.export.exporter import AlreadySentError, Batch
from controller.export.failures import Cure, DeliveryError
from controller.export.layout import Format, ObjectLayout
from controller.export.records import batch_digest, csv_rows, ndjson
from controller.export.s3 import S3Exporter, S3Target
from tests.builders.exported import records
from tests.fakes.s3_server import (
    BUCKET,
    SECRET_KEY,
    NoS3ServerError,
    S3Server,
    s3_server,
)

NAME = "20261129-114501.123-0f3a9c"
KEY = f"year=2026/month=11/day=29/hour=11/{NAME}"


@pytest.fixture(scope="module")
def running() -> Iterator[S3Server]:
    try:
        with s3_server() as server:
            yield server
    except NoS3ServerError as error:
        pytest.skip(str(error))


@pytest.fixture
def server(running: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    with running.fresh():
        yield running


def exporter(server: S3Server, **changes: Any) -> S3Exporter:
    values = {"bucket": BUCKET, "endpoint": server.endpoint, **changes}
    return S3Exporter(S3Target(**values))


def batch(count: int = 3, name: str = NAME) -> Batch:
    return Batch(name, batch_digest(records(count)), records(count))


@pytest.mark.parametrize(
    ("layout", "key", "content"),
    [
        (ObjectLayout(), f"{KEY}.csv", csv_rows(records(3))),
        (
            ObjectLayout("a/b", format=Format.NDJSON),
            f"a/b/{KEY}.ndjson",
            ndjson(records(3)),
        ),
    ],
)
async def test_a_batch_is_one_object(
    server: S3Server, layout: ObjectLayout, key: str, content: bytes
) -> None:
    await exporter(server, layout=layout).send(batch())
    assert server.objects() == {key: content}


async def test_a_name_is_taken_once_and_tells_what_it_holds(server: S3Server) -> None:
    sender = exporter(server)
    await sender.send(batch(3))
    with pytest.raises(AlreadySentError) as caught:
        await sender.send(batch(2))
    assert caught.value.records == records(3)
    assert server.objects() == {f"{KEY}.csv": csv_rows(records(3))}


async def test_an_object_that_is_none_of_ours_is_named(server: S3Server) -> None:
    sender = exporter(server)
    obstore.put(sender._store, f"{KEY}.csv", b"a,b\n")
    with pytest.raises(DeliveryError, match="14 columns") as caught:
        await sender.send(batch())
    assert caught.value.cure is Cure.TIME


async def test_a_bucket_that_is_not_there(server: S3Server) -> None:
    sender = exporter(server, bucket="another-bucket")
    for attempt in (sender.send(batch()), sender.check()):
        with pytest.raises(DeliveryError, match=r"NoSuchBucket|NotFound") as caught:
            await attempt
        assert caught.value.cure is Cure.TIME


async def test_wrong_credentials_are_not_shown(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
    with pytest.raises(DeliveryError) as caught:
        await exporter(server).send(batch())
    text = str(caught.value)
    assert "SignatureDoesNotMatch" in text
    assert "another-secret" not in text
    assert SECRET_KEY not in text


async def test_nobody_listens(server: S3Server) -> None:
    del server
    sender = S3Exporter(S3Target(bucket=BUCKET, endpoint="http://127.0.0.1:9", timeout_s=5.0))
    with pytest.raises(DeliveryError) as caught:
        await sender.send(batch())
    assert caught.value.cure is Cure.TIME


async def test_health(server: S3Server) -> None:
    sender = exporter(server, layout=ObjectLayout("nothing/here"))
    await sender.check()
    await sender.close()
