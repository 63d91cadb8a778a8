"""kubelet: the real node, on the folders where a cluster's DaemonSets look for it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.e2e.lab.addresses import AddressPlan
from tests.e2e.lab.api import Api
from tests.e2e.lab.containerd import SOCKET
from tests.e2e.lab.fake_nodes import KIND_LABEL
from tests.e2e.lab.kubeconfig import written
from tests.e2e.lab.pki import Pair
from tests.e2e.lab.program import Program, Site


class Kubelet(Program):
    """`is_ready` asks the API server whether the node is."""

    def __init__(
        self,
        site: Site,
        plan: AddressPlan,
        api: Api,
        node: str,
        *,
        kubeconfig: Path,
        serving: Pair,
        ca: Path,
    ) -> None:
        super().__init__(site, "kubelet")
        self._plan = plan
        self._api = api
        self._node = node
        self._kubeconfig = kubeconfig
        self._serving = serving
        self._ca = ca
        self.static_pods = self.data / "static-pods"
        """Manifests in here run without the API server's word."""

    def arguments(self) -> Sequence[str]:
        resolver = self.data / "resolv.conf"
        resolver.write_text("nameserver 127.0.0.1\n")  # CoreDNS asks nobody else
        self.static_pods.mkdir(exist_ok=True)
        configuration = {
            **kubelet_configuration(self._plan, self._serving, self._ca, resolver),
            "staticPodPath": str(self.static_pods),
        }
        return (
            str(self.site.programs["kubelet"]),
            f"--config={written(self.data / 'configuration.yaml', configuration)}",
            f"--kubeconfig={self._kubeconfig}",
            f"--hostname-override={self._node}",
            f"--node-ip={self._plan.inside}",
            f"--node-labels={KIND_LABEL}=real",
            "--root-dir=/var/lib/kubelet",
        )

    def is_ready(self) -> bool:
        node = self._api.found(f"/api/v1/nodes/{self._node}")
        if node is None or node["spec"].get("taints"):
            return False
        return ready_condition(node) == "True"


def ready_condition(node: dict[str, Any]) -> str:
    """`True`, `False` or `Unknown`; empty where the node has not said."""
    conditions = node.get("status", {}).get("conditions", [])
    return next((str(c["status"]) for c in conditions if c["type"] == "Ready"), "")


def kubelet_configuration(
    plan: AddressPlan, serving: Pair, ca: Path, resolver: Path
) -> dict[str, object]:
    """A KubeletConfiguration that works on small machines with either version of cgroups."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "0.0.0.0",  # noqa: S104 - its default: SPIRE agents ask it by loopback
        "healthzBindAddress": "127.0.0.1",
        "readOnlyPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(ca)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(serving.certificate),
        "tlsPrivateKeyFile": str(serving.key),
        "clusterDNS": [str(plan.dns_service)],
        "clusterDomain": "cluster.local",
        "resolvConf": str(resolver),
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{plan.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "localStorageCapacityIsolation": True,
        "podLogsDir": "/var/log/pods",
        "maxPods": 50,
        "registerNode": True,
        "nodeStatusUpdateFrequency": "5s",
        "syncFrequency": "5s",
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
    }
