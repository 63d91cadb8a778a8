"""The generated pages: name below docs/reference -> what writes its text."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from controller.web.api.openapi import openapi_json
from tests.docs_pages.audit import audit_page
from tests.docs_pages.authorization import authorization_page
from tests.docs_pages.chart_templates import CHART_PARTS
from tests.docs_pages.chart_values import readme, schema
from tests.docs_pages.command_line import command_line_page
from tests.docs_pages.configuration import configuration_page
from tests.docs_pages.doctor import doctor_page
from tests.docs_pages.reasons import reasons_page
from tests.docs_pages.telemetry import telemetry_page
from tests.e2e.lab.compatibility import compatibility_page

REFERENCE: Final = Path(__file__).resolve().parents[2] / "docs" / "reference"
_CHART: Final = "../../deploy/helm/gpuwarden"

PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "../authorization.md": authorization_page,
    "../compatibility.md": compatibility_page,
    "../doctor.md": doctor_page,
    "audit.md": audit_page,
    "cli.md": command_line_page,
    "configuration.md": configuration_page,
    "openapi.json": lambda: openapi_json().decode(),
    "reasons.md": reasons_page,
    "telemetry.md": telemetry_page,
    f"{_CHART}/README.md": readme,
    f"{_CHART}/values.schema.json": schema,
    **{f"{_CHART}/{name}": text for name, text in CHART_PARTS.items()},
}
