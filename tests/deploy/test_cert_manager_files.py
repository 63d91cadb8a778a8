"""What cert-manager is asked for, by kustomize and by the chart."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.rendering import rendered

DEPLOY = Path(__file__).parents[2] / "deploy"
FILES = sorted(x for x in DEPLOY.rglob("certificates.yaml") if x.parent.name != "templates")
PLACES = ["chart", *(str(x.relative_to(DEPLOY)) for x in FILES)]


def objects(place: str) -> list[Any]:
    if place == "chart":
        return rendered("cert-manager")
    return list(yaml.safe_load_all((DEPLOY / place).read_text()))


@pytest.mark.parametrize("place", PLACES)
def test_a_renewed_authority_keeps_its_key_and_nothing_else_does(place: str) -> None:
    """cert-manager's own default has changed with 1.18."""
    found = [x["spec"] for x in objects(place) if x["kind"] == "Certificate"]
    policies = {
        (x.get("isCA", False), x["privateKey"].get("rotationPolicy", "as cert-manager likes"))
        for x in found
    }
    assert policies == {(True, "Never"), (False, "Always")}


@pytest.mark.parametrize("place", ["chart", "kustomize/components/admission/certificates.yaml"])
def test_the_api_servers_certificate_lives_for_a_year(place: str) -> None:
    """Somebody copies it to the API servers, and restarts them."""
    (found,) = (
        x["spec"]
        for x in objects(place)
        if x["kind"] == "Certificate" and x["metadata"]["name"] == "gpuwarden-admission-client"
    )
    assert found["duration"] == "8760h"
