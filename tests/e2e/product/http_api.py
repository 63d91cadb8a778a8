"""Callers of a controller's HTTP API: with tokens of the lab's API server, or with SVIDs."""

import http.client
import json
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuwarden.settings.values import Address
from sandbox.nodes import TRUST_DOMAIN
from sandbox.spiffe.ca import InsecureCa
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.pods import Namespace
from tests.e2e.product.controller import HttpApi

AUDIENCE = "gpuwarden"


def http_api(lab: Lab, host: str, *readers: str) -> HttpApi:
    """A certificate for the address, and who may read."""
    pair = lab.control_plane.identities.pki.issue("http-api", "gpuwarden-api", names=[host])
    return HttpApi(pair.certificate, pair.key, readers)


@dataclass(frozen=True, slots=True)
class Caller:
    """Asks one replica."""

    address: Address
    ca: Path
    token: str = ""
    svid: Path | None = None
    """PEM file of key and chain."""

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if self.svid is not None:
            context.load_cert_chain(self.svid)
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        connection = http.client.HTTPSConnection(
            self.address.host, self.address.port, context=context, timeout=20
        )
        try:
            connection.request(method, path, json.dumps(body).encode(), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()


def token_of(
    pods: Namespace, account: str, *, audience: str = AUDIENCE, pod: str | None = None
) -> str:
    """A token of a service account, bound to a pod where one is named."""
    spec: dict[str, Any] = {"audiences": [audience], "expirationSeconds": 600}
    if pod is not None:
        uid = pods.get(pod)["metadata"]["uid"]
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": uid}
        spec["boundObjectRef"] = bound
    path = f"{pods.path}/serviceaccounts/{account}/token"
    token: str = pods.api.post(path, {"spec": spec})["status"]["token"]
    return token


def svid_file(folder: Path, ca: InsecureCa, path: str) -> Path:
    """Key and chain of an identity below our trust domain."""
    issued = ca.issue(f"spiffe://{TRUST_DOMAIN}/gpuwarden/{path}")
    file = folder / f"{path.replace('/', '-')}.pem"
    file.touch(mode=0o600)
    file.write_bytes(issued.key_pem + issued.chain_pem)
    return file
