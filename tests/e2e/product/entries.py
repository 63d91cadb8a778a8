"""The registration entries of deploy/spire/clusterspiffeids.yaml, for one node.

What the SPIRE controller manager would create, read from the same file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from tests.e2e.lab.spire_server import TRUST_DOMAIN
from tests.e2e.product.installation import DEPLOY

AGENT, CONTROLLER = "gpuwarden-agent", "gpuwarden-controller"
"""Names of the ClusterSPIFFEIDs."""


@dataclass(frozen=True, slots=True)
class Entry:
    spiffe_id: str
    selectors: Sequence[str]
    dns: Sequence[str]


def shipped_entries(node: str) -> dict[str, Entry]:
    """By name of the ClusterSPIFFEID."""
    text = (DEPLOY / "spire" / "clusterspiffeids.yaml").read_text()
    return {x["metadata"]["name"]: _entry(x["spec"], node) for x in yaml.safe_load_all(text)}


def _entry(spec: dict[str, Any], node: str) -> Entry:
    spiffe_id = spec["spiffeIDTemplate"]
    for template, value in (
        ("{{ .TrustDomain }}", TRUST_DOMAIN),
        ("{{ .PodSpec.NodeName }}", node),
    ):
        spiffe_id = spiffe_id.replace(template, value)
    assert "{{" not in spiffe_id
    return Entry(spiffe_id, spec["workloadSelectorTemplates"], spec.get("dnsNameTemplates", ()))
