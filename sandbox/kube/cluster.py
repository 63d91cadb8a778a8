"""A cluster on this machine around one controller: an API server, its certificates, kubelets.

Everything is in memory but what the programs read: a kubeconfig, and the files of the webhooks.
"""

import base64
import json
import secrets
import ssl
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding

from sandbox.kube.kubelet import Kubelet
from sandbox.kube.server import ApiServer
from sandbox.kube.webhooks import Webhooks
from sandbox.spiffe.ca import InsecureCa, LeafShape

NAMESPACE: Final = "gpuwarden-system"
_NAME: Final = "localhost"
"""What all certificates are for; nobody is asked where that is."""
_LASTS: Final = timedelta(days=30)
_KEPT: Final = 10_000
"""Changes of objects: a few seconds apart, for as long as the demo stays up."""


class InsecureCluster:
    """Insecure because one token may do everything. Used from one event loop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ca = InsecureCa("cluster.test", ttl=_LASTS)
        self._token = secrets.token_hex(16)
        self.api = ApiServer(self._server_tls, tokens={self._token}, kept=_KEPT)
        self.kubelets: dict[str, Kubelet] = {}
        folder.mkdir()
        (folder / "ca.crt").write_bytes(self._ca.certificate.public_bytes(Encoding.PEM))
        self._issue("webhook")
        (folder / "id-keys").write_text(f"k1 {secrets.token_hex(32)}\n")

    @property
    def kubeconfig(self) -> Path:
        """Where it listens, and the token."""
        return self._folder / "kubeconfig"

    async def start(self, nodes: Mapping[str, str]) -> None:
        """Listen, with these nodes by name and UID, each with a kubelet."""
        await self.api.start()
        self.api.create("namespaces", _object("Namespace", NAMESPACE))
        for number, (name, uid) in enumerate(nodes.items()):
            labels = {
                "kubernetes.io/hostname": name,
                "topology.kubernetes.io/zone": f"zone-{number % 2 + 1}",
            }
            self.api.create("nodes", _object("Node", name, labels=labels), uid=uid)
            kubelet = Kubelet(self._folder / name)
            await kubelet.start()
            self.kubelets[name] = kubelet
        self._write_kubeconfig()

    async def close(self) -> None:
        """End everything."""
        for kubelet in self.kubelets.values():
            await kubelet.stop()
        await self.api.stop()

    def use_webhooks(self, address: str) -> None:
        """From now on the controller's webhooks are asked, there."""
        context = ssl.create_default_context(cafile=str(self._folder / "ca.crt"))
        context.load_cert_chain(*self._issue("api-server"))
        self.api.webhooks = Webhooks(address, context, _NAME)

    def settings(self) -> dict[str, object]:
        """What the controller has to know."""
        return {
            "kubernetes": {
                "api": "kubeconfig",
                "kubeconfig": str(self.kubeconfig),
                "namespace": NAMESPACE,
            },
            "admission": {
                "tls": {
                    "cert": str(self._folder / "webhook.crt"),
                    "key": str(self._folder / "webhook.key"),
                    "clientCa": str(self._folder / "ca.crt"),
                },
                "idKeys": str(self._folder / "id-keys"),
            },
            "export": {
                "exporters": ["stdout"],
                "deadLetter": {"dir": str(self._folder / "export")},
            },
        }

    def _server_tls(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self._issue("api"))
        return context

    def _issue(self, name: str) -> tuple[Path, Path]:
        certificate, key = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        issued = self._ca.issue(ttl=_LASTS, shape=LeafShape(dns=(_NAME,)))
        certificate.write_bytes(issued.chain_pem)
        key.touch(mode=0o600)
        key.write_bytes(issued.key_pem)
        return certificate, key

    def _write_kubeconfig(self) -> None:
        cluster = {
            "server": self.api.url,
            "tls-server-name": _NAME,
            "certificate-authority-data": base64.b64encode(
                (self._folder / "ca.crt").read_bytes()
            ).decode(),
        }
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "demo",
            "contexts": [{"name": "demo", "context": {"cluster": "demo", "user": "demo"}}],
            "clusters": [{"name": "demo", "cluster": cluster}],
            "users": [{"name": "demo", "user": {"token": self._token}}],
        }
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(json.dumps(document))


def _object(kind: str, name: str, **metadata: object) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, **metadata}}
