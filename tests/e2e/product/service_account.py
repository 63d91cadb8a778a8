"""The controller's service account: its tokens, and the way in that kubelet projects into a pod."""

from pathlib import Path
from typing import Any

from controller.kube.api.transport import InCluster
from tests.e2e.lab.lab import Lab
from tests.e2e.product.installation import NAMESPACE

_TOKENS = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/gpuwarden-controller/token"


def token_of_controller(lab: Lab, spec: dict[str, Any]) -> str:
    """A token by a TokenRequest's spec; the account is there."""
    made: str = lab.api.post(_TOKENS, {"spec": spec})["status"]["token"]
    return made


def as_in_a_pod(lab: Lab, folder: Path, token: str) -> InCluster:
    """Use the token with the files that a pod has."""
    (folder / "token").write_text(token)
    (folder / "ca.crt").write_bytes(lab.control_plane.identities.pki.ca.read_bytes())
    host, _, port = lab.control_plane.url.removeprefix("https://").rpartition(":")
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    return InCluster(environ, folder)
