"""Section `export`: the variables of gpuid, what each exporter needs, and secrets."""

import pytest

from gpuwarden.settings.export import ExportSettings
from gpuwarden.settings.loader import CONTROLLER, Inputs, SettingsError, load
from gpuwarden.settings.report import render
from gpuwarden.settings.values import Duration

REQUIRED = {
    "GPUWARDEN_TRUST_DOMAIN": "example.org",
    "GPUWARDEN_WORKLOAD_API": "unix:///run/spire.sock",
    "CLUSTER_NAME": "prod",
}
POSTGRES = {
    "EXPORTER_TYPE": "postgress",
    "POSTGRES_HOST": "db.example.org",
    "POSTGRES_DB": "fleet",
    "POSTGRES_USER": "exporter",
    "POSTGRES_PASSWORD": "pa'ss word\\",
}


def export(**environment: str) -> ExportSettings:
    return load(CONTROLLER, Inputs((), {**REQUIRED, **environment})).settings.export


def findings(**environment: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        export(**environment)
    return [str(x) for x in caught.value.findings]


def test_nothing_is_exported_without_a_word() -> None:
    assert export().exporters == ()


def test_the_variables_of_gpuid_work() -> None:
    loaded = load(CONTROLLER, Inputs((), {**REQUIRED, **POSTGRES, "POSTGRES_PORT": "6432"}))
    found = loaded.settings
    assert (found.cluster, found.export.exporters) == ("prod", ("postgres",))
    postgres = found.export.postgres
    assert (postgres.host, postgres.port, postgres.database, postgres.user, postgres.password) == (
        "db.example.org",
        6432,
        "fleet",
        "exporter",
        "pa'ss word\\",
    )
    assert (postgres.table, postgres.auto_migrate) == ("gpu", False)
    others = export(
        EXPORTER_TYPE="s3,http",
        HTTP_ENDPOINT="https://example.org/x",
        HTTP_TIMEOUT="5s",
        HTTP_AUTH_TOKEN="token",  # noqa: S106 - a test's
        S3_BUCKET="fleet",
        S3_PREFIX="a",
        S3_REGION="eu-central-1",
        S3_PARTITION_PATTERN="dt=%Y-%m-%d",
        BATCH_SIZE="10",
        RETRY_COUNT="2",
        TIMEOUT="20s",
        AWS_ENDPOINT_URL="http://minio:9000",
    )
    assert others.exporters == ("s3", "http")
    assert (others.http.endpoint, others.http.timeout, others.http.auth_token) == (
        "https://example.org/x",
        Duration.parse("5s"),
        "token",
    )
    assert (others.s3.bucket, others.s3.prefix, others.s3.region, others.s3.endpoint) == (
        "fleet",
        "a",
        "eu-central-1",
        "http://minio:9000",
    )
    assert others.s3.partition_pattern == "dt=%Y-%m-%d"
    assert (others.batch_size, others.retries, others.timeout) == (10, 2, Duration.parse("20s"))


def test_a_service_named_postgres_does_not_choose_the_port() -> None:
    inputs = Inputs((), {**REQUIRED, **POSTGRES, "POSTGRES_PORT": "tcp://10.0.0.1:5432"})
    loaded = load(CONTROLLER, inputs)
    assert loaded.settings.export.postgres.port == 5432
    assert [x.setting for x in loaded.warnings] == ["export.postgres.port"]


@pytest.mark.parametrize(
    ("exporter", "missing"),
    [
        ("stdout", []),
        ("http", ["endpoint"]),
        ("postgres", ["host", "database", "user", "password"]),
        ("s3", ["bucket"]),
    ],
)
def test_each_exporter_has_what_it_needs(exporter: str, missing: list[str]) -> None:
    if not missing:
        assert export(EXPORTER_TYPE=exporter).exporters == (exporter,)
        return
    found = findings(EXPORTER_TYPE=exporter)
    assert len(found) == len(missing)
    for name, text in zip(missing, found, strict=True):
        assert f"export.{exporter}.{name}" in text


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("EXPORTER_TYPE", "pubsub"),
        ("EXPORTER_TYPE", "http,,s3"),
        ("HTTP_TIMEOUT", "30"),
        ("HTTP_ENDPOINT", "ftp://example.org"),
        ("HTTP_ENDPOINT", "https://user:word@example.org"),
        ("POSTGRES_SSLMODE", "yes"),
        ("POSTGRES_TABLE", 'gpu"; DROP'),
        ("POSTGRES_TABLE", "a.b.c"),
        ("POSTGRES_HOST", "a b"),
        ("S3_BUCKET", "a"),
        ("S3_PARTITION_PATTERN", "%s"),
        ("S3_PREFIX", "a b"),
        ("BATCH_SIZE", "0"),
        ("RETRY_COUNT", "101"),
        ("HTTP_AUTH_TOKEN", "a\nb"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_its_variable(variable: str, value: str) -> None:
    (found,) = findings(**{variable: value})
    assert variable in found


def test_secrets_are_never_shown() -> None:
    loaded = load(CONTROLLER, Inputs((), {**REQUIRED, **POSTGRES, "HTTP_AUTH_TOKEN": "s3cret"}))
    text = render(loaded)
    assert "pa'ss" not in text
    assert "s3cret" not in text
    assert text.count("<redacted>") >= 2
    (found,) = findings(HTTP_AUTH_TOKEN="s3cret\x01")  # noqa: S106 - a test's
    assert "s3cret" not in found
