"""Who is who in a lab: the users and groups of the certificates, as RBAC's own roles expect."""

from pathlib import Path

from tests.e2e.lab.addresses import AddressPlan
from tests.e2e.lab.kubeconfig import kubeconfig, written
from tests.e2e.lab.pki import Pair, Pki

MASTERS = "system:masters"
NODES = "system:nodes"


class Identities:
    """Certificates and kubeconfig files of one lab."""

    def __init__(self, folder: Path) -> None:
        self.pki = Pki(folder)
        self._folder = folder
        self._server = ""
        self._users: dict[Path, Pair] = {}
        self.admin = self.pki.issue("admin", "lab-admin", groups=[MASTERS])
        self.admin_kubeconfig = self._kubeconfig("admin", self.admin)

    def serving(self, name: str, address: str, plan: AddressPlan) -> Pair:
        """A server's certificate for every name by which it is called."""
        names = {
            address,
            "127.0.0.1",
            str(plan.api_service),
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        }
        return self.pki.issue(f"{name}-serving", name, names=sorted(names))

    def user(self, name: str, *groups: str) -> Path:
        """A kubeconfig for user `name` (a certificate's CN) in `groups` (its O)."""
        file = name.removeprefix("system:").replace(":", "-")
        return self._kubeconfig(file, self.pki.issue(file, name, groups=groups))

    def publish(self, server: str) -> None:
        """Write every kubeconfig, now that the API server's address is known."""
        self._server = server
        for path, pair in self._users.items():
            written(path, kubeconfig(server, self.pki.ca, pair))

    def _kubeconfig(self, file: str, pair: Pair) -> Path:
        path = self._folder / f"{file}.kubeconfig"
        self._users[path] = pair
        if self._server:
            written(path, kubeconfig(self._server, self.pki.ca, pair))
        return path
