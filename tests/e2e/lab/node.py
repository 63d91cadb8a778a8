"""The real node: containerd, kubelet, kube-proxy and CoreDNS in one capsule."""

from tests.e2e.lab.addresses import AddressPlan
from tests.e2e.lab.capsule import Capsule
from tests.e2e.lab.containerd import Containerd
from tests.e2e.lab.control_plane import ControlPlane
from tests.e2e.lab.core_dns import CoreDns
from tests.e2e.lab.core_dns import image as core_dns_image
from tests.e2e.lab.identities import NODES
from tests.e2e.lab.kube_proxy import KubeProxy
from tests.e2e.lab.kubelet import Kubelet
from tests.e2e.lab.pods import PROBE, probe_image
from tests.e2e.lab.program import Site

NAME = "real-0"


class Node:
    """One node of the cluster whose control plane runs in the same capsule."""

    def __init__(
        self, site: Site, capsule: Capsule, plan: AddressPlan, control_plane: ControlPlane
    ) -> None:
        self.name = NAME
        self.capsule = capsule
        self._site = site
        identities = control_plane.identities
        self.containerd = Containerd(site, capsule, plan, PROBE)
        self.kubelet = Kubelet(
            site,
            plan,
            control_plane.api,
            NAME,
            kubeconfig=identities.user(f"system:node:{NAME}", NODES),
            serving=identities.serving("kubelet", str(plan.inside), plan),
            ca=identities.pki.ca,
        )
        proxy = identities.user("system:kube-proxy")
        self.kube_proxy = KubeProxy(site, capsule, plan, NAME, proxy)
        self.core_dns = CoreDns(control_plane.api, plan)

    def prepare(self) -> None:
        """What needs no API server: containerd and its images."""
        self.containerd.start()
        self.containerd.load(probe_image(self._site.programs["probe"]))
        self.containerd.load(core_dns_image(self._site.programs["coredns"]))

    def start(self) -> None:
        """Join the cluster; at the end pods run, and Services and their names work."""
        self.core_dns.start()
        self.kubelet.launch()
        self.kube_proxy.launch()
        self.kubelet.ready()
        self.kube_proxy.ready()
        self.core_dns.ready()
