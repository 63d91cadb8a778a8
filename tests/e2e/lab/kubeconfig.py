"""Kubeconfig files: who a program is and where its API server listens."""

import json
from pathlib import Path
from typing import Any

from tests.e2e.lab.pki import Pair


def kubeconfig(server: str, ca: Path, pair: Pair) -> dict[str, Any]:
    """One cluster, one user with a client certificate, one context."""
    user = {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "lab", "cluster": {"server": server, "certificate-authority": str(ca)}}
        ],
        "users": [{"name": "lab", "user": user}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
        "current-context": "lab",
    }


def caller(pair: Pair) -> dict[str, Any]:
    """Who the API server is to every webhook."""
    user = {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
    return {"apiVersion": "v1", "kind": "Config", "users": [{"name": "*", "user": user}]}


def written(path: Path, document: dict[str, Any]) -> Path:
    """A configuration file for a program of Kubernetes: JSON, which is YAML as well."""
    path.write_text(json.dumps(document, indent=1))
    return path
