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

Agents and controllers run on Linux with Python 3.11 or newer. `make e2e` runs them together with
these programs, built from the modules in `tests/e2e/lab/modules`, from which `make docs` writes
this page.

| project | version | programs | tested |
|---|---|---|---|
"""

_FOOT = """
*Node*: on a real node with its own processes, mounts and network. *Long*: there, by
`make e2e-long`. *Control plane*: without a node; the older Kubernetes by `make e2e-long`, or alone
by `KUBERNETES={older} make e2e`. The node has the machine's version of cgroups, 1 or 2. CoreDNS has
the plugins `errors`, `kubernetes` and `ready` alone.
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
