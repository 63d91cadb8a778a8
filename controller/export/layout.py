"""Names and contents of the objects that the exporter `s3` makes. Pure."""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from controller.export.records import ExportRecord, csv_rows, ndjson, read_csv, read_ndjson

HIVE: Final = "year=%Y/month=%m/day=%d/hour=%H"
_NAME_TIME: Final = "%Y%m%d-%H%M%S.%f"
_TIME_PARTS: Final = 2


class Format(StrEnum):
    """What is in an object."""

    CSV = "csv"
    """Without a header."""
    NDJSON = "ndjson"

    @property
    def content_type(self) -> str:
        """For the object's metadata."""
        return "text/csv" if self is Format.CSV else "application/x-ndjson"

    def content(self, records: tuple[ExportRecord, ...]) -> bytes:
        """The content of an object with these records."""
        return csv_rows(records) if self is Format.CSV else ndjson(records)

    def read(self, data: bytes) -> tuple[ExportRecord, ...]:
        """The records of an object; raises RecordTextError."""
        return read_csv(data) if self is Format.CSV else read_ndjson(data)


@dataclass(frozen=True, slots=True)
class ObjectLayout:
    """Keys: `[prefix/]partition/<name of the batch>.<format>`."""

    prefix: str = ""
    partition: str = HIVE
    """In `strftime`'s letters (%Y %m %d %H), of the time in the batch's name, UTC."""
    format: Format = Format.CSV

    def key(self, batch: str, time: str) -> str:
        """The key of a batch. Where its name has no time, `time` of its first record counts."""
        parts = [self.prefix.strip("/"), _when(batch, time).strftime(self.partition).strip("/")]
        return "/".join(x for x in (*parts, f"{batch}.{self.format.value}") if x)

    @property
    def check_prefix(self) -> str | None:
        """What a check lists."""
        return self.prefix.strip("/") or None


def _when(batch: str, time: str) -> datetime:
    """The time in a name such as `20261129-114501.123-0f3a…`, else `time` (RFC 3339)."""
    stamp = "-".join(batch.split("-")[:_TIME_PARTS])
    try:
        return datetime.strptime(stamp, _NAME_TIME).replace(tzinfo=UTC)
    except ValueError:
        return datetime.fromisoformat(time)
