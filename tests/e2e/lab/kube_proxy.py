"""kube-proxy: Services of the lab, by iptables in the node's own network."""

from collections.abc import Sequence
from pathlib import Path

from tests.e2e.lab.addresses import AddressPlan
from tests.e2e.lab.capsule import Capsule, CapsuleError
from tests.e2e.lab.kubeconfig import written
from tests.e2e.lab.program import Program, Site


class KubeProxy(Program):
    """Ready as soon as Service `kubernetes` has its rule."""

    def __init__(
        self, site: Site, capsule: Capsule, plan: AddressPlan, node: str, kubeconfig: Path
    ) -> None:
        super().__init__(site, "kube-proxy")
        self._capsule = capsule
        self._plan = plan
        self._node = node
        self._kubeconfig = kubeconfig

    def arguments(self) -> Sequence[str]:
        configuration = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "clientConnection": {"kubeconfig": str(self._kubeconfig)},
            "clusterCIDR": str(self._plan.pods),
            "hostnameOverride": self._node,
            "bindAddress": str(self._plan.inside),
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
        }
        path = written(self.data / "configuration.yaml", configuration)
        return (str(self.site.programs[self.name]), f"--config={path}")

    def is_ready(self) -> bool:
        try:
            rules = self._capsule.run("iptables-save", "-t", "nat")
        except CapsuleError:
            return False
        return str(self._plan.api_service) in rules
