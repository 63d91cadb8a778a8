"""The page docs/compatibility.md: the versions that the lab's modules pin, and hardware seen."""

from pathlib import Path

from tests.e2e.lab.upstreams import (
    CONTROL_PLANE,
    NODE,
    SPIRE,
    SPIRE_CONTROLLER_MANAGER,
    UPSTREAMS,
    Upstream,
)

_HEAD = """# Compatibility

gpuwarden is tested against these programs. They are built from pinned modules
(`tests/e2e/lab/modules`) and run together by `make e2e`. `make docs` writes this page from those
modules. Agents and controllers run on Linux with Python 3.11 or newer.

| project | version | programs | tested |
|---|---|---|---|
"""

_FOOT = """
| tested | meaning |
|---|---|
| every run | by `make e2e` |
| node | on the lab's real node: its own processes, mounts and network |
| long | on that node, by `make e2e-long` |
| control plane | without a node; the older Kubernetes by `make e2e-long` |

The older Kubernetes alone: `KUBERNETES={older} make e2e`. The node has the machine's version of
cgroups, 1 or 2. CoreDNS is built with the plugins `errors`, `kubernetes` and `ready` alone.
"""

_HARDWARE = Path(__file__).resolve().parents[2] / "hardware" / "seen.md"


def compatibility_page() -> str:
    """The whole page."""
    rows = "".join(_row(project) for project in UPSTREAMS if project.version)
    older = min(p.version for p in UPSTREAMS if p.module == "k8s.io/kubernetes")
    return _HEAD + rows + _FOOT.format(older=older) + "\n" + _HARDWARE.read_text()


def _row(project: Upstream) -> str:
    is_kubernetes = project.module == "k8s.io/kubernetes"
    name = "kubernetes" if is_kubernetes else project.folder
    programs = ", ".join(project.binaries)
    return f"| {name} | {project.version} | {programs} | {_role(project)} |\n"


def _role(project: Upstream) -> str:
    if project.folder in (*CONTROL_PLANE, SPIRE):
        return "every run"
    if project.folder == SPIRE_CONTROLLER_MANAGER:
        return "long"
    if project.folder in NODE:
        return "node"
    return "control plane"
