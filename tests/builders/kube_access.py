"""Ways into the fake API server: a service account's folder, or a kubeconfig."""

import base64
import json
from pathlib import Path

from controller.kube.api.client import MAX_PAGE_BYTES, ApiClient
from controller.kube.api.transport import AccessSource, InCluster, Transport
from gpuwarden.clock import Clock
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.fakes.api_server import TOKEN, FakeApiServer
from tests.fakes.clock import FakeClock


def service_account(folder: Path, server: FakeApiServer, token: str = TOKEN) -> Path:
    """Write (or replace) the files that kubelet would project."""
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text(token + "\n")
    (folder / "ca.crt").write_bytes(server.ca.file.read_bytes())
    return folder


def in_cluster(folder: Path, server: FakeApiServer) -> InCluster:
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.port)}
    return InCluster(environ, service_account(folder, server))


def kubeconfig(folder: Path, api: FakeApiServer, **cluster: object) -> Path:
    """With a client certificate; everything inline."""
    certificate, key = api.client_ca.issue("gpuwarden-test")

    def encoded(path: Path) -> str:
        return base64.b64encode(path.read_bytes()).decode()

    path = folder / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [
            {
                "name": "k",
                "cluster": {
                    "server": api.url,
                    "certificate-authority-data": encoded(api.ca.file),
                    **cluster,
                },
            }
        ],
        "users": [
            {
                "name": "u",
                "user": {
                    "client-certificate-data": encoded(certificate),
                    "client-key-data": encoded(key),
                },
            }
        ],
    }
    path.write_text(json.dumps(document))
    return path


def api_client(
    source: AccessSource,
    clock: Clock | None = None,
    *,
    page_objects: int = 2,
    page_bytes: int = MAX_PAGE_BYTES,
) -> tuple[ApiClient, Transport]:
    transport = Transport(source, clock or FakeClock())
    instruments = Instruments(Process.CONTROLLER, "test")
    api = ApiClient(transport, instruments, page_objects=page_objects, page_bytes=page_bytes)
    return api, transport
