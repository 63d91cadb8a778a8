"""Each vendor library is imported in its named places and nowhere else."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.sources import tree
from tests.architecture.test_names import ROOT, sources

ALLOWED: dict[str, set[str]] = {
    "pynvml": {"agent/gpu/nvml.py"},
    "spiffe": {
        "gpuwarden/identity/svid_watcher.py",
        "gpuwarden/identity/workload_api.py",
        "sandbox/",
    },
    "grpc": {
        "agent/claims/kubelet.py",
        "agent/session/client.py",
        "controller/rpc/",
        "controller/spire/client.py",
        "gpuwarden/cli/connection/audit_client.py",
        "gpuwarden/cli/connection/client.py",
        "gpuwarden/identity/peer.py",
        "gpuwarden/identity/server_credentials.py",
        "gpuwarden/identity/tunnel.py",
        "gpuwarden/identity/workload_api.py",
        "sandbox/",
    },
    "grpc_health": {"controller/rpc/"},
    "grpc_reflection": {"controller/rpc/"},
    "aiohttp": {
        "controller/web/webhook.py",
        "controller/web/api/authentication.py",
        "controller/web/scorer.py",
        "controller/web/api/api.py",
        "controller/web/api/answers.py",
        "controller/web/api/v1.py",
        "controller/web/api/viewers.py",
        "controller/console/",
        "controller/web/listener.py",
        "controller/web/server.py",
        "controller/export/http.py",
        "controller/kube/api/transport.py",
        "controller/web/extender/extender.py",
        "controller/scorer/http.py",
        "gpuwarden/cluster/api.py",
        "sandbox/kube/",
    },
    "jinja2": {"controller/console/pages.py"},
    "markupsafe": {"controller/console/pages.py"},
    "uvloop": {"controller/__main__.py", "sandbox/fleet/process.py"},
    "kubernetes": {"controller/kube/api/transport.py"},
    "opentelemetry": {"gpuwarden/telemetry/otlp.py", "gpuwarden/telemetry/otlp_logs.py"},
    "prometheus_client": {"gpuwarden/telemetry/metrics.py"},
    "structlog": {"gpuwarden/telemetry/logs.py"},
    "yaml": {
        "gpuwarden/cli/text/output.py",
        "gpuwarden/strict_yaml.py",
        "sandbox/",
    },
    "rfc8785": {"gpuwarden/evidence/canonical.py"},
    "sqlite3": {"controller/store/"},
    "tenacity": {
        "agent/session/replicas.py",
        "agent/state.py",
        "controller/export/delivery.py",
        "controller/kube/objects/store.py",
    },
    "obstore": {"controller/export/s3.py"},
    "psycopg": {"controller/export/postgres.py", "controller/store/postgres_scores.py"},
    "cyclopts": {"gpuwarden/cli/"},
}


@cache
def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("vendor", sorted(ALLOWED))
def test_vendor_library_stays_in_its_place(vendor: str) -> None:
    strays = [
        name
        for path in sources()
        if vendor in imports(path)
        and not (name := path.relative_to(ROOT).as_posix()).startswith(tuple(ALLOWED[vendor]))
    ]
    assert strays == []


def loads_yaml(path: Path) -> set[str]:
    """Functions that read YAML past `gpuwarden/strict_yaml.py`."""
    if "yaml" not in path.read_text():
        return set()
    return {
        ast.unparse(node)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and _READS_YAML.fullmatch(ast.unparse(node))
    }


_READS_YAML = re.compile(r"msgspec\.yaml.*|yaml\..*(load|parse|scan|compose|Loader|Constructor).*")


def test_yaml_is_read_in_one_place() -> None:
    readers = {path.relative_to(ROOT).as_posix() for path in sources() if loads_yaml(path)}
    assert readers == {"gpuwarden/strict_yaml.py"}
