"""The page docs/compatibility.md: the versions that the lab's modules pin, and hardware seen."""

from pathlib import Path

from tests.e2e.lab.upstreams import CONTROL_PLANE, NODE, UPSTREAMS, Upstream

_HEAD = """# Compatibility

What gpuwarden is tested against: real programs, built from pinned modules (`tests/e2e/lab/modules`)
and run together by `make e2e`. `make docs` writes this page from those modules.

| project | version | programs | tested |
|---|---|---|---|
"""

_FOOT = """
"Node" is the real node of the lab: its own processes, mounts and network, cgroup version 1 or 2 as
the machine has it. The older Kubernetes runs the control-plane tests:
`KUBERNETES={older} make e2e`, which `make e2e-long` does as well.
CoreDNS is built with the plugins `errors`, `kubernetes` and `ready` alone.

Agents and controllers run on Python 3.11 or newer on Linux.
"""

_HARDWARE = Path(__file__).resolve().parents[2] / "hardware" / "seen.md"


def compatibility_page() -> str:
    """The whole page."""
    rows = "".join(_row(project) for project in UPSTREAMS if project.version)
    older = min(p.version for p in UPSTREAMS if p.module == "k8s.io/kubernetes")
    return _HEAD + rows + _FOOT.format(older=older) + "\n" + _HARDWARE.read_text()


def _row(project: Upstream) -> str:
    name = project.folder.partition("-")[0]
    programs = ", ".join(project.binaries)
    return f"| {name} | {project.version} | {programs} | {_role(project)} |\n"


def _role(project: Upstream) -> str:
    if project.folder in (*CONTROL_PLANE, "spire"):
        return "every run"
    if project.folder in NODE:
        return "node"
    return "control plane"
