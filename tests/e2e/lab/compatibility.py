"""The page docs/compatibility.md: the versions that the lab's modules pin, and hardware seen."""

from pathlib import Path

from tests.chart.rendering import KUBERNETES as RENDERED
from tests.chart.tools import HELM
from tests.e2e.lab.upstreams import (
    CERT_MANAGER,
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
the plugins `errors`, `kubernetes` and `ready` alone, cert-manager the controllers of certificates
and the CA injector.
"""

_KUBERNETES_AND_HELM = """
## Kubernetes and Helm

| Kubernetes | what is tested |
|---|---|
| {whole} | everything, on a cluster with a node |
| {older} | the control plane with made-up nodes |
| the others of {first} to {last} | the chart's objects, by the API's schemas; none of them ran |

Helm {helm} runs in all tests, and no other version does.
"""

_HARDWARE = Path(__file__).resolve().parents[2] / "hardware" / "seen.md"


def compatibility_page() -> str:
    """The whole page."""
    rows = "".join(_row(project) for project in UPSTREAMS if project.version)
    older, whole = sorted(p.version for p in UPSTREAMS if p.module == "k8s.io/kubernetes")
    versions = _KUBERNETES_AND_HELM.format(
        whole=whole, older=older, first=RENDERED[0], last=RENDERED[-1], helm=HELM
    )
    foot = _FOOT.format(older=older) + versions
    return _HEAD + rows + foot + "\n" + _HARDWARE.read_text()


def _row(project: Upstream) -> str:
    is_kubernetes = project.module == "k8s.io/kubernetes"
    name = "kubernetes" if is_kubernetes else project.folder
    programs = ", ".join(project.binaries)
    return f"| {name} | {project.version} | {programs} | {_role(project)} |\n"


def _role(project: Upstream) -> str:
    if project.folder in (*CONTROL_PLANE, SPIRE):
        return "every run"
    if project.folder in (CERT_MANAGER, SPIRE_CONTROLLER_MANAGER):
        return "long"
    if project.folder in NODE:
        return "node"
    return "control plane"
