"""Section `export` of the controller's settings. Pure; `loader` fills them.

Names of variables and defaults of gpuid are accepted, so that its Deployments can be migrated.
"""

# ruff: noqa: RUF009 -- the defaults are frozen values

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from gpuwarden.settings import keys
from gpuwarden.settings.database import SslMode
from gpuwarden.settings.keys import Spec
from gpuwarden.settings.values import Duration


class ObjectFormat(StrEnum):
    """What is in an object."""

    CSV = "csv"
    NDJSON = "ndjson"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterSettings:
    """Section `export.deadLetter`."""

    dir: Annotated[
        Path,
        Spec(
            keys.ABSOLUTE_PATH,
            "folder for records that could not be delivered, and without a cluster for how far"
            " exporters are",
        ),
    ] = Path("/var/lib/gpuwarden/export")
    bytes: Annotated[
        int,
        Spec(
            keys.whole_number(64 << 10, 1 << 34),
            "size of each exporter's file; when it is full, records wait and nothing is lost",
        ),
    ] = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpExportSettings:
    """Section `export.http`."""

    endpoint: Annotated[
        str | None,
        Spec(keys.URL, "where records go; redirects are refused", aliases=("HTTP_ENDPOINT",)),
    ] = None
    timeout: Annotated[
        Duration,
        Spec(
            keys.duration("100ms", "10m"),
            "longest time for one request",
            aliases=("HTTP_TIMEOUT",),
        ),
    ] = Duration.parse("30s")
    auth_token: Annotated[
        str | None,
        Spec(
            keys.SECRET,
            "bearer token for it",
            secret=True,
            aliases=("HTTP_AUTH_TOKEN",),
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresExportSettings:
    """Section `export.postgres`."""

    host: Annotated[
        str | None,
        Spec(
            keys.SERVER_HOST,
            "host, or folder of the unix socket",
            aliases=("POSTGRES_HOST",),
        ),
    ] = None
    port: Annotated[
        int,
        Spec(
            keys.whole_number(1, 65535),
            "port; another value in `POSTGRES_PORT` means `5432`, with a warning: Kubernetes sets"
            " it for a Service `postgres`",
            aliases=("POSTGRES_PORT",),
            alias_warns=True,
        ),
    ] = 5432
    database: Annotated[
        str | None, Spec(keys.DATABASE_NAME, "database", aliases=("POSTGRES_DB",))
    ] = None
    user: Annotated[str | None, Spec(keys.DATABASE_NAME, "user", aliases=("POSTGRES_USER",))] = None
    password: Annotated[
        str | None,
        Spec(keys.SECRET, "password", secret=True, aliases=("POSTGRES_PASSWORD",)),
    ] = None
    ssl_mode: Annotated[
        SslMode,
        Spec(
            keys.one_of(SslMode),
            "protection of the connection; only `verify-full` proves the server",
            aliases=("POSTGRES_SSLMODE",),
        ),
    ] = SslMode.REQUIRE
    ssl_root_cert: Annotated[
        Path | None, Spec(keys.ABSOLUTE_PATH, "PEM file of the CAs for `verify-ca`, `verify-full`")
    ] = None
    table: Annotated[
        str,
        Spec(keys.TABLE, "table, with its schema before a dot", aliases=("POSTGRES_TABLE",)),
    ] = "gpu"
    auto_migrate: Annotated[
        bool,
        Spec(
            keys.BOOLEAN,
            "whether the controller makes the table and its indexes, and adds columns to one of"
            " gpuid",
            aliases=("POSTGRES_AUTO_MIGRATE",),
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class S3ExportSettings:
    """Section `export.s3`; credentials come from the usual chain of AWS."""

    bucket: Annotated[str | None, Spec(keys.BUCKET, "bucket", aliases=("S3_BUCKET",))] = None
    prefix: Annotated[
        str, Spec(keys.OBJECT_PREFIX, "beginning of every key", aliases=("S3_PREFIX",))
    ] = ""
    region: Annotated[str, Spec(keys.REGION, "region", aliases=("S3_REGION",))] = "us-east-1"
    partition_pattern: Annotated[
        str,
        Spec(
            keys.PARTITION,
            "folders below the prefix; %Y %m %d %H are replaced (UTC)",
            aliases=("S3_PARTITION_PATTERN",),
        ),
    ] = "year=%Y/month=%m/day=%d/hour=%H"
    format: Annotated[
        ObjectFormat, Spec(keys.one_of(ObjectFormat), "content of objects; CSV has no header")
    ] = ObjectFormat.CSV
    endpoint: Annotated[
        str | None,
        Spec(
            keys.URL,
            "another store than AWS; it must support conditional writes",
            aliases=("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSettings:
    """Section `export`."""

    exporters: Annotated[
        tuple[str, ...],
        Spec(
            keys.EXPORTERS,
            "where records of attested GPUs go; several at once; without one nothing is exported",
            aliases=("EXPORTER_TYPE",),
        ),
    ] = ()
    batch_size: Annotated[
        int,
        Spec(
            keys.whole_number(1, 10_000),
            "records that are delivered together at most",
            aliases=("BATCH_SIZE",),
        ),
    ] = 1000
    retries: Annotated[
        int,
        Spec(
            keys.whole_number(0, 100),
            "further attempts for a batch, with pauses of up to 60s; then it goes into the"
            " dead-letter file",
            aliases=("RETRY_COUNT",),
        ),
    ] = 8
    timeout: Annotated[
        Duration,
        Spec(keys.duration("1s", "10m"), "longest time for one attempt", aliases=("TIMEOUT",)),
    ] = Duration.parse("30s")
    waiting: Annotated[
        int,
        Spec(
            keys.whole_number(1000, 10_000_000),
            "records that may wait in memory; beyond it only the newest of each GPU are kept",
        ),
    ] = 200_000
    dead_letter: DeadLetterSettings = field(default_factory=DeadLetterSettings)
    http: HttpExportSettings = field(default_factory=HttpExportSettings)
    postgres: PostgresExportSettings = field(default_factory=PostgresExportSettings)
    s3: S3ExportSettings = field(default_factory=S3ExportSettings)
