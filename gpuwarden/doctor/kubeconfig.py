"""Ways into the Kubernetes API: a kubeconfig, or the service account of a pod.

As kubectl finds them: `--kubeconfig`, `KUBECONFIG`, `~/.kube/config`; in a pod without any of
these, its service account. Tokens and keys stay in `Access` and out of every text.
"""

import base64
import binascii
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gpuwarden.strict_yaml import YamlError, parse_plain

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MAX_BYTES: Final = 4 << 20
_PLUGIN_SECONDS: Final = 60.0


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


def find_access(
    kubeconfig: Path | None,
    context: str | None,
    environ: Mapping[str, str],
    *,
    service_account: Path = SERVICE_ACCOUNT,
) -> Access:
    """The way that options and environment choose; raises AccessError."""
    files = _files(kubeconfig, environ)
    if files:
        return _from_files(files, context, environ)
    if "KUBERNETES_SERVICE_HOST" in environ and (service_account / "token").exists():
        return _from_pod(environ, service_account)
    raise AccessError(
        "no kubeconfig (--kubeconfig, KUBECONFIG, ~/.kube/config) and no service account"
    )


def _files(kubeconfig: Path | None, environ: Mapping[str, str]) -> list[Path]:
    if kubeconfig is not None:
        return [kubeconfig]
    listed = [Path(x) for x in environ.get("KUBECONFIG", "").split(os.pathsep) if x]
    if listed:
        there = [one for one in listed if one.exists()]
        if not there:
            raise AccessError(f"KUBECONFIG: {listed[0]}: no such file")
        return there
    home = environ.get("HOME")
    default = Path(home) / ".kube" / "config" if home else None
    return [default] if default is not None and default.exists() else []


def _from_pod(environ: Mapping[str, str], folder: Path) -> Access:
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
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


# --- kubeconfig


@dataclass(frozen=True, slots=True)
class _Entry:
    """A cluster or user, and the file that its relative paths are beside."""

    values: Mapping[str, Any]
    file: Path

    def content(self, key: str) -> bytes | None:
        """What `KEY-data` holds, or the file that `KEY` names; None without both."""
        data, name = self.values.get(f"{key}-data"), self.values.get(key)
        if data:
            try:
                return base64.b64decode(str(data), validate=True)
            except binascii.Error:
                raise AccessError(f"{self.file}: {key}-data is not base64") from None
        return _read(self.file.parent / str(name)) if name else None


def _from_files(files: list[Path], context: str | None, environ: Mapping[str, str]) -> Access:
    documents = [(file, _document(file)) for file in files]
    name = context or next((x for _, d in documents if (x := d.get("current-context"))), None)
    if not name:
        raise AccessError(f"{files[0]}: no current-context; name one with --context")
    chosen = _entry(documents, "contexts", "context", str(name)).values
    cluster = _entry(documents, "clusters", "cluster", str(chosen.get("cluster", "")))
    user = _entry(documents, "users", "user", str(chosen.get("user", "")))
    server = str(cluster.values.get("server", ""))
    if cluster.values.get("insecure-skip-tls-verify"):
        raise AccessError(f"{cluster.file}: insecure-skip-tls-verify is set; name the CA instead")
    if not server.startswith("https://"):
        raise AccessError(f"{cluster.file}: the server must be an https:// URL")
    if cluster.values.get("proxy-url"):
        raise AccessError(f"{cluster.file}: proxy-url is not supported")
    ca = cluster.content("certificate-authority")
    server_name = cluster.values.get("tls-server-name")
    authorization, certificate, private_key = _credentials(user, environ)
    return Access(
        server.rstrip("/"),
        None if ca is None else ca.decode("ascii", "replace"),
        authorization,
        certificate,
        private_key,
        None if server_name is None else str(server_name),
    )


def _document(file: Path) -> Mapping[str, Any]:
    try:
        found = parse_plain(_read(file), max_bytes=_MAX_BYTES)
    except YamlError as error:
        where = "" if error.line is None else f", line {error.line}"
        raise AccessError(f"{file}{where}: not a kubeconfig") from None
    if not isinstance(found, dict):
        raise AccessError(f"{file}: not a kubeconfig")
    return found


def _entry(
    documents: list[tuple[Path, Mapping[str, Any]]], plural: str, singular: str, name: str
) -> _Entry:
    """The first of that name."""
    for file, document in documents:
        for one in document.get(plural) or ():
            if isinstance(one, dict) and one.get("name") == name:
                values = one.get(singular)
                return _Entry(values if isinstance(values, dict) else {}, file)
    raise AccessError(f"{documents[0][0]}: no {singular} {name!r}")


def _credentials(
    user: _Entry, environ: Mapping[str, str]
) -> tuple[str | None, bytes | None, bytes | None]:
    """Authorization, certificate and key."""
    values = user.values
    certificate, key = user.content("client-certificate"), user.content("client-key")
    if values.get("token"):
        return f"Bearer {values['token']}", certificate, key
    if values.get("tokenFile"):
        token = _read(user.file.parent / str(values["tokenFile"])).decode("ascii", "replace")
        return f"Bearer {token.strip()}", certificate, key
    if values.get("username"):
        pair = f"{values['username']}:{values.get('password', '')}"
        return f"Basic {base64.b64encode(pair.encode()).decode()}", certificate, key
    if isinstance(values.get("exec"), dict):
        return _asked_plugin(values["exec"], user.file, environ)
    if values.get("auth-provider"):
        raise AccessError(f"{user.file}: auth-provider is not supported; use exec")
    return None, certificate, key


def _asked_plugin(
    plugin: Mapping[str, Any], file: Path, environ: Mapping[str, str]
) -> tuple[str | None, bytes | None, bytes | None]:
    """What a credential plugin prints (client.authentication.k8s.io)."""
    command = str(plugin.get("command", ""))
    if "/" in command:
        command = str(file.parent / command)
    version = str(plugin.get("apiVersion", "client.authentication.k8s.io/v1"))
    asked = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
    variables = {x["name"]: x["value"] for x in plugin.get("env") or ()}
    try:
        done = subprocess.run(  # noqa: S603 -- the user's own kubeconfig names it, as for kubectl
            [command, *map(str, plugin.get("args") or ())],
            env={**environ, **variables, "KUBERNETES_EXEC_INFO": json.dumps(asked)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=_PLUGIN_SECONDS,
            check=True,
        )
        status = json.loads(done.stdout)["status"]
    except (OSError, subprocess.SubprocessError) as error:
        raise AccessError(f"{file}: {command}: {type(error).__name__}") from None
    except (ValueError, TypeError, KeyError):
        raise AccessError(f"{file}: {command} printed no ExecCredential") from None
    token = status.get("token")
    certificate, key = status.get("clientCertificateData"), status.get("clientKeyData")
    return (
        f"Bearer {token}" if token else None,
        certificate.encode() if certificate else None,
        key.encode() if key else None,
    )
