"""etcd, API server, scheduler and controller manager, started in order and ended in reverse.

Needs no root and nothing of a node.
"""

from collections.abc import Sequence
from pathlib import Path

from tests.e2e.lab.addresses import AddressPlan
from tests.e2e.lab.api import Api
from tests.e2e.lab.api_server import ApiServer
from tests.e2e.lab.controller_manager import ControllerManager
from tests.e2e.lab.etcd import Etcd
from tests.e2e.lab.identities import Identities
from tests.e2e.lab.pki import Pair
from tests.e2e.lab.program import Site
from tests.e2e.lab.scheduler import Scheduler
from tests.e2e.lab.waiting import until


class ControlPlane:
    """Everything of a cluster but its nodes."""

    def __init__(
        self,
        site: Site,
        plan: AddressPlan,
        identities: Identities,
        *,
        has_node: bool = False,
        api_server_extra: Sequence[str] = (),
    ) -> None:
        self._site = site
        self._plan = plan
        self.identities = identities
        self.etcd = Etcd(site)
        self.api_server = ApiServer(
            site,
            plan,
            identities,
            self.etcd.endpoint,
            has_node=has_node,
            extra=api_server_extra,
        )
        self.scheduler = Scheduler(
            site,
            identities.user("system:kube-scheduler"),
            self.serving("kube-scheduler"),
            identities.pki.ca,
        )
        self.controller_manager = ControllerManager(
            site,
            identities.user("system:kube-controller-manager"),
            self.serving("kube-controller-manager"),
            identities.pki,
        )

    @property
    def url(self) -> str:
        """Where the API server serves."""
        return self.api_server.url

    @property
    def api(self) -> Api:
        """The API as the administrator."""
        return self.api_server.api()

    def start(self) -> None:
        """Start all; at the end pods can be created."""
        self.etcd.start()
        self.api_server.start()
        self.identities.publish(self.url)
        for program in (self.controller_manager, self.scheduler):
            program.launch()
        for program in (self.controller_manager, self.scheduler):
            program.ready()
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        until("namespace default has its service account", lambda: self.api.found(account))

    def restore(self, snapshot: Path, options: Sequence[str]) -> None:
        """Restore etcd as people do: everything that knows newer restarts."""
        for program in (self.scheduler, self.controller_manager, self.api_server):
            program.stop()
        self.etcd.restore(snapshot, options)
        for program in (self.api_server, self.controller_manager, self.scheduler):
            program.resume_service()

    def stop(self) -> None:
        """End all."""
        for program in (self.scheduler, self.controller_manager, self.api_server, self.etcd):
            program.stop()

    def serving(self, name: str) -> Pair:
        """A certificate for a server of the control plane."""
        return self.identities.serving(name, self._site.place.address, self._plan)
