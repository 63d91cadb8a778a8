"""Ways into the Kubernetes API: what a connection needs, and a pod's service account."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MAX_BYTES: Final = 4 << 20


class AccessError(Exception):
    """There is no way into a cluster, or none that may be used; says which and why."""


@dataclass(frozen=True, slots=True)
class Access:
    """Everything that a connection needs."""

    server: str
    """`https://HOST:PORT`, perhaps with a path."""
    ca: str | None
    """PEM; None: the machine's authorities."""
    authorization: str | None = field(default=None, repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    """PEM of the client's certificate chain."""
    private_key: bytes | None = field(default=None, repr=False)
    server_name: str | None = None
    """What the server's certificate is for, where it is not the host."""
    proxy: str | None = field(default=None, repr=False)
    """URL of an HTTP proxy."""


def pod_access(environ: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> Access:
    """The way of a pod; raises AccessError where this is none."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise AccessError("no kubeconfig (--kubeconfig, KUBECONFIG, ~/.kube/config), and no pod")
    token = _read(folder / "token").decode("ascii", "replace").strip()
    ca = _read(folder / "ca.crt").decode("ascii", "replace")
    shown = f"[{host}]" if ":" in host else host
    return Access(f"https://{shown}:{port}", ca, f"Bearer {token}")


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise AccessError(f"{path}: {error.strerror}") from None
    if len(content) > _MAX_BYTES:
        raise AccessError(f"{path}: larger than {_MAX_BYTES} bytes")
    return content
