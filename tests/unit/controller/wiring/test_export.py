"""Exporters are made of the settings, and their libraries are imported only for them."""

import subprocess
import sys
from pathlib import Path

import pytest

from controller.export.documents import (
    Document,
    DocumentChangedError,
    DocumentsUnavailableError,
)
from controller.kube.api.resources import ApiError
from controller.settings import ControllerSettings
from controller.wiring.export import ClusterDocuments, exporter
from gpuwarden.settings.loader import CONTROLLER, Inputs, load
from tests.hang import HANG_S

ROOT = Path(__file__).resolve().parents[4]
PROGRAM = """
import sys
import controller.app, controller.wiring.controller, controller.wiring.export
print(sorted({name.partition(".")[0] for name in sys.modules}))
"""


def settings(**environment: str) -> ControllerSettings:
    required = {
        "GPUWARDEN_TRUST_DOMAIN": "example.org",
        "GPUWARDEN_WORKLOAD_API": "unix:///run/spire.sock",
        "CLUSTER_NAME": "prod",
    }
    return load(CONTROLLER, Inputs((), {**required, **environment})).settings


def test_a_controller_without_export_imports_no_library_of_it() -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
    )
    assert "'controller'" in run.stdout
    for name in ("psycopg", "psycopg_binary", "obstore"):
        assert f"'{name}'" not in run.stdout


@pytest.mark.parametrize("name", ["stdout", "http", "postgres", "s3"])
def test_an_exporter_has_its_name(name: str) -> None:
    values = {
        "HTTP_ENDPOINT": "https://example.org/records",
        "POSTGRES_HOST": "db",
        "POSTGRES_DB": "fleet",
        "POSTGRES_USER": "exporter",
        "POSTGRES_PASSWORD": "secret",
        "S3_BUCKET": "fleet",
    }
    made = exporter(name, settings(EXPORTER_TYPE=name, **values), lambda: 0)
    assert made.name == name
    assert made.keeps_batches is (name == "s3")


class Texts:
    """ConfigMaps that answer with an error, or with nothing."""

    def __init__(self, error: ApiError | None = None) -> None:
        self.error = error

    async def read(self, _name: str) -> tuple[str, str] | None:
        if self.error is not None:
            raise self.error
        return ("{}", "7")

    async def write(self, _name: str, _text: str, _version: str | None) -> str:
        if self.error is not None:
            raise self.error
        return "8"


async def test_documents_in_the_cluster_have_the_errors_that_exporters_know() -> None:
    well = ClusterDocuments(Texts())  # type: ignore[arg-type] # what it asks of them
    assert await well.read("a") == Document("{}", "7")
    assert await well.write("a", "{}", "7") == "8"
    conflict = ClusterDocuments(Texts(ApiError("conflict", 409)))  # type: ignore[arg-type]
    with pytest.raises(DocumentChangedError):
        await conflict.write("a", "{}", "7")
    down = ClusterDocuments(Texts(ApiError("down", 503)))  # type: ignore[arg-type]
    with pytest.raises(DocumentsUnavailableError, match="ConfigMap a: down"):
        await down.write("a", "{}", "7")
    with pytest.raises(DocumentsUnavailableError, match="ConfigMap a: down"):
        await down.read("a")
