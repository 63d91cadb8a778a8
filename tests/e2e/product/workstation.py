"""People with kubeconfigs of the lab's cluster, who run `gpuwarden` as on a workstation."""

import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpuwarden.cli.connection.cluster_connection import ACCESS
from tests.e2e.lab.api import Document
from tests.e2e.lab.kubeconfig import kubeconfig, written
from tests.e2e.lab.lab import Lab
from tests.e2e.product.controller import ROOT
from tests.e2e.product.deployed import Deployed
from tests.e2e.product.installation import NAMESPACE

SECRET: Final = f"{ACCESS}-server"
_RBAC: Final = "rbac.authorization.k8s.io"
_ASK_S: Final = 60
_WAIT_S: Final = 120
_KNOWN_S: Final = 40
_NOT_AUTHORISED: Final = 4


def write_program(folder: Path) -> Path:
    """`gpuwarden` of this checkout as a program for a shell; `folder` is made."""
    folder.mkdir()
    path = folder / "gpuwarden"
    path.write_text(
        f"#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))}"
        f' exec {shlex.quote(sys.executable)} -P -m gpuwarden.cli "$@"\n'
    )
    path.chmod(0o755)
    return path


def furnish_access(cluster: Deployed) -> None:
    """The secret of the component `workstation`, by the cluster's own CA."""
    pki = cluster.lab.control_plane.identities.pki
    pair = pki.issue("access", ACCESS, names=[f"{ACCESS}.{NAMESPACE}.svc"])
    if not cluster.lab.api.found(f"/api/v1/namespaces/{NAMESPACE}"):
        cluster.kubectl("create", "namespace", NAMESPACE, "--save-config")
    files = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": pki.ca}
    data = {name: path.read_text() for name, path in files.items()}
    secret = {"metadata": {"name": SECRET}, "type": "kubernetes.io/tls", "stringData": data}
    cluster.lab.api.post(f"/api/v1/namespaces/{NAMESPACE}/secrets", secret)


@dataclass(frozen=True, slots=True)
class Workstation:
    """Somebody's machine, with one kubeconfig."""

    kubeconfig: Path

    def run(self, *arguments: str, text: str = "") -> "subprocess.CompletedProcess[str]":
        """The command line, with nothing of the test's own environment."""
        return subprocess.run(
            (sys.executable, "-m", "gpuwarden.cli", *arguments, "--timeout", str(_ASK_S)),
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(ROOT),
                "KUBECONFIG": str(self.kubeconfig),
            },
            input=text,
            capture_output=True,
            text=True,
            timeout=_WAIT_S,
            check=False,
        )

    def run_until_allowed(self, *arguments: str) -> str:
        """Its output, once the role that was just bound is known; else what it says instead."""
        ran = self.run(*arguments)
        until_s = time.monotonic() + _KNOWN_S
        while ran.returncode == _NOT_AUTHORISED and time.monotonic() < until_s:
            time.sleep(1)
            ran = self.run(*arguments)
        assert ran.returncode == 0, (ran.returncode, ran.stderr)
        return ran.stdout


def with_certificate(lab: Lab, user: str, *groups: str) -> Workstation:
    """By a client certificate of the cluster's CA."""
    return Workstation(lab.control_plane.identities.user(user, *groups))


def with_token(lab: Lab, account: str, folder: Path) -> Workstation:
    """By the token of a service account of the namespace `default`, for the API server."""
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    lab.api.post(accounts, {"metadata": {"name": account}})
    token = lab.api.post(f"{accounts}/{account}/token", {"spec": {"expirationSeconds": 600}})
    identities = lab.control_plane.identities
    document = kubeconfig(lab.control_plane.url, identities.pki.ca, identities.admin)
    document["users"][0]["user"] = {"token": token["status"]["token"]}
    return Workstation(written(folder / f"{account}.kubeconfig", document))


def subject(user: str) -> Document:
    """Of a binding: a user."""
    return {"kind": "User", "apiGroup": _RBAC, "name": user}


def account_subject(account: str) -> Document:
    """Of a binding: a service account of `default`."""
    return {"kind": "ServiceAccount", "namespace": "default", "name": account}


def bind(lab: Lab, name: str, role: str, *subjects: Document, kind: str = "ClusterRole") -> None:
    """A role of the component for these, everywhere; a Role in our namespace."""
    where = f"/namespaces/{NAMESPACE}/rolebindings" if kind == "Role" else "/clusterrolebindings"
    body: dict[str, Any] = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": role},
        "subjects": list(subjects),
    }
    lab.api.post(f"/apis/{_RBAC}/v1{where}", body)
