"""Writes the generated reference pages: `python -m tests.docs_pages`; tests compare them."""

from collections.abc import Callable
from pathlib import Path

from controller.access import authorization_document
from controller.web.documents import openapi_json
from gpuwarden.audit.page import audit_page
from gpuwarden.cli.page import cli_page
from gpuwarden.reasons_page import reasons_page
from gpuwarden.settings.report import configuration_page
from gpuwarden.telemetry.page import telemetry_page
from tests.e2e.lab.compatibility import compatibility_page

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"

PAGES: dict[str, Callable[[], str]] = {
    "../authorization.md": authorization_document,
    "../compatibility.md": compatibility_page,
    "audit.md": audit_page,
    "cli.md": cli_page,
    "configuration.md": configuration_page,
    "openapi.json": lambda: openapi_json().decode(),
    "reasons.md": reasons_page,
    "telemetry.md": telemetry_page,
}


def main() -> None:
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page())


if __name__ == "__main__":
    main()
