"""CoreDNS as every cluster has it: a Deployment and Service `kube-dns` on the real node."""

from pathlib import Path

from tests.e2e.lab.addresses import AddressPlan
from tests.e2e.lab.api import Api, Document
from tests.e2e.lab.fake_nodes import KIND_LABEL
from tests.e2e.lab.images import Image
from tests.e2e.lab.waiting import until

IMAGE = "lab.gpuwarden.dev/coredns:1"
_NAME, _NAMESPACE = "coredns", "kube-system"
_META = {"name": _NAME, "namespace": _NAMESPACE}
_LABELS = {"k8s-app": "kube-dns"}
_CORE = f"/api/v1/namespaces/{_NAMESPACE}"
_APPS = f"/apis/apps/v1/namespaces/{_NAMESPACE}"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_COREFILE = """
.:53 {
    errors
    ready
    kubernetes cluster.local in-addr.arpa {
        pods insecure
    }
}
"""


def image(program: Path) -> Image:
    """One static file."""
    return Image(IMAGE, {"/coredns": program}, ["/coredns"])


class CoreDns:
    """The objects of CoreDNS in one cluster."""

    def __init__(self, api: Api, plan: AddressPlan) -> None:
        self._api = api
        self._plan = plan

    def start(self) -> None:
        """Create everything; does not wait."""
        for path, document in objects(str(self._plan.dns_service)):
            self._api.post(path, document)

    def ready(self) -> None:
        """Wait until the Service answers from a pod."""
        until("CoreDNS is ready", self.is_ready, timeout_s=60)

    def is_ready(self) -> bool:
        deployment = self._api.get(f"{_APPS}/deployments/{_NAME}")
        return bool(deployment.get("status", {}).get("readyReplicas"))


def objects(address: str) -> list[tuple[str, Document]]:
    """(where it is created, object), in order."""
    return [
        (f"{_CORE}/serviceaccounts", {"metadata": _META}),
        (f"{_RBAC}/clusterroles", {"metadata": {"name": _NAME}, "rules": _RULES}),
        (f"{_RBAC}/clusterrolebindings", _BINDING),
        (f"{_CORE}/configmaps", {"metadata": _META, "data": {"Corefile": _COREFILE}}),
        (f"{_APPS}/deployments", _deployment()),
        (f"{_CORE}/services", _service(address)),
    ]


_RULES = [
    {
        "apiGroups": [""],
        "resources": ["endpoints", "services", "pods", "namespaces"],
        "verbs": ["list", "watch"],
    },
    {
        "apiGroups": ["discovery.k8s.io"],
        "resources": ["endpointslices"],
        "verbs": ["list", "watch"],
    },
]
_BINDING = {
    "metadata": {"name": _NAME},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": _NAME},
    "subjects": [{"kind": "ServiceAccount", **_META}],
}


def _service(address: str) -> Document:
    ports = [{"name": f"dns-{p.lower()}", "port": 53, "protocol": p} for p in ("UDP", "TCP")]
    return {
        "metadata": {"name": "kube-dns", "namespace": _NAMESPACE, "labels": _LABELS},
        "spec": {"selector": _LABELS, "clusterIP": address, "ports": ports},
    }


def _deployment() -> Document:
    container = {
        "name": _NAME,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "volumeMounts": [{"name": "configuration", "mountPath": "/etc/coredns"}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
    }
    pod = {
        "serviceAccountName": _NAME,
        "dnsPolicy": "Default",
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {KIND_LABEL: "real"},
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [{"name": "configuration", "configMap": {"name": _NAME}}],
    }
    template = {"metadata": {"labels": _LABELS}, "spec": pod}
    return {
        "metadata": _META,
        "spec": {"selector": {"matchLabels": _LABELS}, "template": template},
    }
