"""Runs the credential plugin of a kubeconfig (client.authentication.k8s.io ExecCredential).

Its output is a secret: no error holds any of it. What the plugin itself writes to standard error
goes to the terminal.
"""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final

from gpuwarden.cli.connection.kubeconfig import Credentials, ExecPlugin, Login
from gpuwarden.cli.exit_codes import CliError, ExitCode
from gpuwarden.cli.text.terminal import shown

SECONDS: Final = 120.0
"""A person may have to log in."""
MAX_BYTES: Final = 1 << 20
_INFO: Final = "KUBERNETES_EXEC_INFO"


def run_plugin(
    plugin: ExecPlugin, login: Login, environ: Mapping[str, str], *, seconds: float
) -> Credentials:
    """What the plugin says; raises CliError."""
    interactive = plugin.is_interactive and sys.stdin.isatty()
    info = json.dumps(_info(plugin, login, interactive=interactive))
    name = shown(os.path.basename(plugin.command))  # noqa: PTH119 - a command, perhaps no path
    try:
        ran = subprocess.run(  # noqa: S603 - the caller's own kubeconfig names it
            [plugin.command, *plugin.arguments],
            env={**environ, **plugin.variables, _INFO: info},
            stdin=None if interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=seconds,
            check=False,
        )
    except FileNotFoundError:
        hint = f"; {shown(plugin.install_hint)}" if plugin.install_hint else ""
        raise _failed(f"{name} is not installed{hint}") from None
    except subprocess.TimeoutExpired:
        raise CliError(ExitCode.TIMEOUT, f"kubeconfig: {name}: no answer in time") from None
    except OSError as error:
        raise _failed(f"{name}: {error.strerror}") from None
    if ran.returncode != 0:
        raise _failed(f"{name} ended with {ran.returncode}")
    if len(ran.stdout) > MAX_BYTES:
        raise _failed(f"{name} wrote more than {MAX_BYTES} bytes")
    return _credentials(ran.stdout, plugin, name)


def _info(plugin: ExecPlugin, login: Login, *, interactive: bool) -> dict[str, Any]:
    spec: dict[str, Any] = {"interactive": interactive}
    if plugin.wants_cluster:
        cluster: dict[str, str] = {"server": login.server}
        if login.ca is not None:
            cluster["certificate-authority-data"] = base64.b64encode(login.ca).decode()
        if login.server_name:
            cluster["tls-server-name"] = login.server_name
        spec["cluster"] = cluster
    return {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}


def _credentials(output: bytes, plugin: ExecPlugin, name: str) -> Credentials:
    try:
        found = json.loads(output)
        status = found["status"]
        token = status.get("token") or ""
        certificate = status.get("clientCertificateData") or ""
        key = status.get("clientKeyData") or ""
        version = found["apiVersion"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _failed(f"{name} wrote no ExecCredential") from None
    if version != plugin.api_version:
        raise _failed(f"{name} answered with another apiVersion than {plugin.api_version}")
    if not all(isinstance(x, str) for x in (token, certificate, key)):
        raise _failed(f"{name} wrote no ExecCredential")
    if bool(certificate) != bool(key) or not (token or certificate):
        raise _failed(f"{name} gave neither a token nor a certificate with its key")
    return Credentials(token, certificate.encode(), key.encode())


def _failed(text: str) -> CliError:
    return CliError(ExitCode.NOT_AUTHORISED, f"kubeconfig: {text}")
