"""kube-controller-manager: service accounts, deployments, node life cycle, garbage collection."""

from collections.abc import Sequence
from pathlib import Path

from tests.e2e.lab.api import Api
from tests.e2e.lab.pki import Pair, Pki
from tests.e2e.lab.program import Program, Site

_PORT = 10257


class ControllerManager(Program):
    """All of its default controllers, each with its own service account."""

    def __init__(self, site: Site, kubeconfig: Path, serving: Pair, pki: Pki) -> None:
        super().__init__(site, "kube-controller-manager", usual_port=_PORT)
        self._kubeconfig = kubeconfig
        self._serving = serving
        self._pki = pki

    def arguments(self) -> Sequence[str]:
        return (
            str(self.site.programs[self.name]),
            f"--kubeconfig={self._kubeconfig}",
            f"--authentication-kubeconfig={self._kubeconfig}",
            f"--authorization-kubeconfig={self._kubeconfig}",
            f"--bind-address={self.site.place.address}",
            f"--secure-port={self.port}",
            f"--tls-cert-file={self._serving.certificate}",
            f"--tls-private-key-file={self._serving.key}",
            f"--root-ca-file={self._pki.ca}",
            f"--service-account-private-key-file={self._pki.service_accounts.key}",
            f"--cluster-signing-cert-file={self._pki.authority.certificate}",
            f"--cluster-signing-key-file={self._pki.authority.key}",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
        )

    def is_ready(self) -> bool:
        url = f"https://{self.site.place.address}:{self.port}"
        return Api(url, self._pki.ca).answers("/healthz")
