"""SPIRE for the real node, as in production: a server with `k8s_psat`, an agent as a DaemonSet.

The server is a program on the node's address; the agent's pod attests with its projected token
and attests workloads by what kubelet says of them (`k8s`).
"""

from tests.e2e.lab.api import Document
from tests.e2e.lab.build import built
from tests.e2e.lab.fake_nodes import KIND_LABEL
from tests.e2e.lab.images import Image
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.shared_objects import shared_objects
from tests.e2e.lab.spire_server import TRUST_DOMAIN, Cluster, SpireServer
from tests.e2e.lab.waiting import until

CLUSTER = "prod"
"""As deploy/ has it."""
SOCKETS = "/run/spire/agent-sockets"
_NAMESPACE, _NAME = "spire-system", "spire-agent"
_IMAGE = "lab.gpuwarden.dev/spire-agent:1"
_META = {"name": _NAME, "namespace": _NAMESPACE}
_LABELS = {"app": _NAME}
_SERVER = "spire-server"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_CORE = f"/api/v1/namespaces/{_NAMESPACE}"
_DAEMON_SETS = f"/apis/apps/v1/namespaces/{_NAMESPACE}/daemonsets"
_READY_S = 120.0


class ClusterSpire:
    """One server and one agent; `close` takes the pod away, the server goes with the lab."""

    def __init__(self, lab: Lab, trust_domain: str = TRUST_DOMAIN) -> None:
        programs = built(["spire"])
        self._lab = lab
        self._trust_domain = trust_domain
        self._program = programs["spire-agent"]
        site = lab.on_node("spire", programs)
        user = lab.control_plane.identities.user(_SERVER)
        cluster = Cluster(CLUSTER, user, f"{_NAMESPACE}:{_NAME}")
        self.server = SpireServer(site, cluster=cluster, trust_domain=trust_domain)

    def start(self) -> None:
        """At the end the node has attested."""
        libraries = shared_objects(self._program)
        image = Image(_IMAGE, {"/spire-agent": self._program, **libraries}, ["/spire-agent"])
        self._lab.node.containerd.load(image)
        api = self._lab.api
        for path, document in _rights():
            api.post(path, document)
        self.server.start()
        files = {"agent.conf": self._configuration(), "bundle.pem": self.server.bundle()}
        api.post(f"{_CORE}/configmaps", {"metadata": _META, "data": files})
        api.post(_DAEMON_SETS, _daemon_set())
        self.attested()

    @property
    def agent_id(self) -> str:
        """SPIFFE ID of the agent of the Node object that there is now."""
        uid = self._lab.api.get(f"/api/v1/nodes/{self._lab.node.name}")["metadata"]["uid"]
        return f"spiffe://{self._trust_domain}/spire/agent/k8s_psat/{CLUSTER}/{uid}"

    def attested(self) -> None:
        """Wait until the agent of this very Node object has attested."""
        until(
            f"{self.agent_id} has attested",
            lambda: self.agent_id in self.server.agents(),
            timeout_s=_READY_S,
        )

    def replace_agent(self) -> None:
        """Another pod, which attests again."""
        self._lab.api.delete(f"{_CORE}/pods/{self._pod()}", grace_s=1)
        self.attested()

    def close(self) -> None:
        """The pod, the socket and everything else of the agent are gone afterwards."""
        self._lab.api.delete(f"{_DAEMON_SETS}/{_NAME}")
        until("the SPIRE agent is gone", lambda: not self._pods(), timeout_s=60)
        self.server.stop()
        for path, document in reversed(_rights()):
            self._lab.api.delete(f"{path}/{document['metadata']['name']}")

    def _pod(self) -> str:
        return until("there is a SPIRE agent", lambda: next(iter(self._pods()), ""))

    def _pods(self) -> list[str]:
        found = self._lab.api.get(f"{_CORE}/pods?labelSelector=app={_NAME}")["items"]
        return [x["metadata"]["name"] for x in found]

    def _configuration(self) -> str:
        """With `node_name` an address: names of nodes are in no DNS here."""
        return f"""
agent {{
  data_dir = "/run/spire/data"
  socket_path = "{SOCKETS}/spire-agent.sock"
  server_address = "{self._lab.plan.inside}"
  server_port = "{self.server.port}"
  trust_domain = "{self._trust_domain}"
  trust_bundle_path = "/run/spire/config/bundle.pem"
  log_level = "INFO"
  experimental {{
    sync_interval = "1s"
  }}
}}
plugins {{
  NodeAttestor "k8s_psat" {{
    plugin_data {{ cluster = "{CLUSTER}" }}
  }}
  KeyManager "memory" {{
    plugin_data {{}}
  }}
  WorkloadAttestor "k8s" {{
    plugin_data {{ node_name = "{self._lab.plan.inside}" }}
  }}
}}
"""


def _rights() -> list[tuple[str, Document]]:
    """(where it is created, object), in order."""
    server = {"kind": "User", "name": _SERVER}
    agent = {"kind": "ServiceAccount", **_META}
    return [
        ("/api/v1/namespaces", {"metadata": {"name": _NAMESPACE}}),
        (f"{_CORE}/serviceaccounts", {"metadata": _META}),
        *_role(_NAME, agent, [_rule("", ["pods", "nodes", "nodes/proxy"], "get")]),
        *_role(
            _SERVER,
            server,
            [
                _rule("", ["pods", "nodes"], "get"),
                _rule("authentication.k8s.io", ["tokenreviews"], "create"),
            ],
        ),
    ]


def _rule(group: str, resources: list[str], verb: str) -> Document:
    return {"apiGroups": [group], "resources": resources, "verbs": [verb]}


def _role(name: str, subject: Document, rules: list[Document]) -> list[tuple[str, Document]]:
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    binding = {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
    return [
        (f"{_RBAC}/clusterroles", {"metadata": {"name": name}, "rules": rules}),
        (f"{_RBAC}/clusterrolebindings", binding),
    ]


def _daemon_set() -> Document:
    return {
        "metadata": _META,
        "spec": {
            "selector": {"matchLabels": _LABELS},
            "template": {"metadata": {"labels": _LABELS}, "spec": _pod_of_agent()},
        },
    }


def _pod_of_agent() -> Document:
    token = {"path": _NAME, "audience": _SERVER, "expirationSeconds": 7200}
    return {
        "serviceAccountName": _NAME,
        "nodeSelector": {KIND_LABEL: "real"},
        "tolerations": [{"operator": "Exists"}],
        "hostNetwork": True,
        "hostPID": True,
        "terminationGracePeriodSeconds": 2,
        "containers": [
            {
                "name": _NAME,
                "image": _IMAGE,
                "imagePullPolicy": "Never",
                "args": ["run", "-config", "/run/spire/config/agent.conf"],
                "volumeMounts": [
                    {"name": "config", "mountPath": "/run/spire/config", "readOnly": True},
                    {"name": "data", "mountPath": "/run/spire/data"},
                    {"name": "sockets", "mountPath": SOCKETS},
                    {"name": "token", "mountPath": "/var/run/secrets/tokens"},
                ],
            }
        ],
        "volumes": [
            {"name": "config", "configMap": {"name": _NAME}},
            {"name": "data", "emptyDir": {}},
            {"name": "sockets", "hostPath": {"path": SOCKETS, "type": "DirectoryOrCreate"}},
            {"name": "token", "projected": {"sources": [{"serviceAccountToken": token}]}},
        ],
    }
