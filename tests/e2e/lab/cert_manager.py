"""cert-manager's controllers and CA injector, beside the cluster; without its webhook."""

import json
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import yaml

from tests.e2e.lab.api import Api, Document
from tests.e2e.lab.build import built
from tests.e2e.lab.cache import cache_folder
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.program import Program
from tests.e2e.lab.upstreams import CERT_MANAGER, least_go, upstream
from tests.go_toolchain import find_go

_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_DOWNLOAD_S = 300


class CertManager(Program):
    """One process, as the administrator: its own rights are no subject here."""

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab.beside(CERT_MANAGER, built([CERT_MANAGER])), CERT_MANAGER)
        self._lab = lab

    def install(self) -> None:
        """Its custom resources, then itself."""
        for document in _definitions():
            self._lab.api.post(_DEFINITIONS, document)
        self.start()

    def arguments(self) -> Sequence[str]:
        return (
            str(self.site.programs[CERT_MANAGER]),
            f"--kubeconfig={self._lab.kubeconfig}",
        )

    def is_ready(self) -> bool:
        """controller-runtime says this once its caches are filled: for the injector."""
        return self.log.read_text().count("Starting workers") > 1


class Certificates:
    """Those of one namespace, as cert-manager's command line renews and shows them."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self._path = f"/apis/cert-manager.io/v1/namespaces/{namespace}/certificates"

    def revisions(self, suffix: str) -> dict[str, int]:
        """How often each was issued whose name ends so; 0 while one is being issued."""
        found = self._api.get(self._path)["items"]
        return {
            x["metadata"]["name"]: _revision(x)
            for x in found
            if x["metadata"]["name"].endswith(suffix)
        }

    def renew(self, name: str) -> None:
        """As `cmctl renew` does it."""
        path = f"{self._path}/{name}"
        found = self._api.get(path)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        issuing = {
            "type": "Issuing",
            "status": "True",
            "reason": "ManuallyTriggered",
            "message": "Certificate re-issuance manually triggered",
            "lastTransitionTime": now,
        }
        conditions = [x for x in found["status"]["conditions"] if x["type"] != "Issuing"]
        self._api.patch(f"{path}/status", {"status": {"conditions": [*conditions, issuing]}})


def _revision(certificate: Document) -> int:
    status = certificate.get("status", {})
    conditions = {x["type"]: x["status"] for x in status.get("conditions", [])}
    is_done = conditions.get("Ready") == "True" and conditions.get("Issuing", "False") == "False"
    return int(status.get("revision", 0)) if is_done else 0


def _definitions() -> list[Document]:
    """Its custom resources, from the module that the program is built of."""
    project = upstream(CERT_MANAGER)
    go = find_go(cache_folder(), at_least=least_go(project.go_mod))
    done = subprocess.run(
        [go, "mod", "download", "-json", project.module],
        cwd=project.path,
        capture_output=True,
        text=True,
        timeout=_DOWNLOAD_S,
        check=True,
    )
    folder = Path(json.loads(done.stdout)["Dir"]) / "deploy" / "crds"
    return [yaml.safe_load(x.read_text()) for x in sorted(folder.glob("cert-manager.io_*.yaml"))]
