"""Exporter `s3`: one object per batch, made only where there is none of its name.

Credentials come from the usual chain of AWS (environment, web identity, container, instance).
The store must support conditional writes (`If-None-Match: *`), as AWS and MinIO
do. Imported only where this exporter is used.
"""

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import S3Store

from controller.export.exporter import AlreadySentError, Batch
from controller.export.failures import Cure, DeliveryError
from controller.export.layout import ObjectLayout
from controller.export.records import COLUMNS, ExportRecord, RecordTextError
from gpuwarden.redaction import without_secrets

if TYPE_CHECKING:
    from obstore.store import S3Config  # is not there at run time

NAME: Final = "s3"
_MAX_SHOWN: Final = 300
_CODE: Final = re.compile(r"<Code>(\w{1,64})</Code>")
_MAX_OBJECT_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class S3Target:
    """Where to."""

    bucket: str
    region: str = "us-east-1"
    endpoint: str | None = None
    """Of another store than AWS's own."""
    layout: ObjectLayout = field(default_factory=ObjectLayout)
    timeout_s: float = 30.0


class S3Exporter:
    """Keeps one client."""

    def __init__(self, target: S3Target) -> None:
        self._target = target
        self._layout = target.layout
        timeout = timedelta(seconds=target.timeout_s)
        endpoint = target.endpoint
        config: S3Config = {"region": target.region}
        if endpoint is not None:
            config["endpoint"] = endpoint
        self._store = S3Store(
            target.bucket,
            config=config,
            client_options={
                "timeout": timeout,
                "connect_timeout": timeout,
                "allow_http": endpoint is not None and endpoint.startswith("http://"),
            },
            retry_config={"max_retries": 0, "retry_timeout": timeout},
        )

    @property
    def name(self) -> str:
        """`s3`."""
        return NAME

    @property
    def keeps_batches(self) -> bool:
        """Yes: nobody looks into objects for a record that is there twice."""
        return True

    async def send(self, batch: Batch) -> None:
        """Make the object; raises DeliveryError, or AlreadySentError if there is one."""
        key = self._layout.key(batch.name, batch.records[0].time)
        form = self._layout.format
        try:
            await obstore.put_async(
                self._store,
                key,
                form.content(batch.records),
                mode="create",
                attributes={
                    "Content-Type": form.content_type,
                    "record_count": str(len(batch.records)),
                    "format": form.value,
                    "columns": ",".join(COLUMNS),
                    "batch_key": batch.key,
                },
            )
        except AlreadyExistsError:
            raise AlreadySentError(await self._records(key)) from None
        except (BaseError, OSError) as error:
            raise _failed(error) from None

    async def check(self) -> None:
        """List at most one object; raises DeliveryError."""
        try:
            await obstore.list_with_delimiter_async(self._store, self._layout.check_prefix)
        except (BaseError, OSError) as error:
            raise _failed(error) from None

    async def close(self) -> None:
        """The client lets go by itself."""

    async def _records(self, key: str) -> tuple[ExportRecord, ...]:
        try:
            found = await obstore.get_async(self._store, key)
            if found.meta["size"] > _MAX_OBJECT_BYTES:
                raise DeliveryError(f"{key} has {found.meta['size']} bytes", Cure.TIME)
            return self._layout.format.read(bytes(await found.bytes_async()))
        except RecordTextError as error:
            raise DeliveryError(f"{key}: {error}", Cure.TIME) from None
        except NotFoundError:
            raise DeliveryError(f"{key} was there and is gone", Cure.TIME) from None
        except (BaseError, OSError) as error:
            raise _failed(error) from None


def _failed(error: Exception) -> DeliveryError:
    """Time may help against whatever a store answers: a right, a bucket or a network may come."""
    whole = str(error)
    code = _CODE.search(whole)
    text = " ".join(without_secrets(whole).split())[:_MAX_SHOWN]
    kind = type(error).__name__ if code is None else code[1]
    return DeliveryError(f"{kind}: {text}", Cure.TIME)
