"""What `make lab` tells a person about the cluster that runs: one block of text. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LABEL = 14
"""Width of what stands before each line's text."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The real node."""

    enter: Sequence[str]
    """Command that runs what follows it in the node."""
    ctr: Path
    containerd: str
    """Its socket, in the node."""
    pod_logs: Path


@dataclass(frozen=True, slots=True)
class SpireFacts:
    """SPIRE of the real node."""

    program: Path
    """`spire-server`."""
    socket: Path
    """Of its own command line, on this machine."""
    agent_id: str
    logs: Path


@dataclass(frozen=True, slots=True)
class LabFacts:
    """The cluster, and what runs in it."""

    number: int
    ready_s: float
    versions: str
    url: str
    kubeconfig: Path
    kubectl: Path
    logs: Path
    pid: int
    node: NodeFacts | None = None
    spire: SpireFacts | None = None
    without_spire: Sequence[str] = ()
    """Why there is none, where it was asked for."""
    product: str | None = None
    """Namespace where gpuwarden is deployed."""


def description(lab: LabFacts) -> str:
    """Where everything is, how it is used, and how it ends."""
    lines = [
        ("versions", lab.versions),
        ("API server", lab.url),
        ("kubectl", f"export KUBECONFIG={lab.kubeconfig}"),
        ("", f"alias kubectl={lab.kubectl}"),
    ]
    if lab.node is not None:
        enter = " ".join(lab.node.enter)
        lines += [
            ("node", enter),
            ("ctr", f"{enter} \\"),
            ("", f"  {lab.node.ctr} \\"),
            ("", f"  -a {lab.node.containerd} -n k8s.io containers list"),
        ]
    lines += _spire(lab)
    lines += _product(lab)
    lines.append(("logs", str(lab.logs)))
    if lab.spire is not None:
        lines.append(("SPIRE's logs", str(lab.spire.logs)))
    if lab.node is not None:
        lines.append(("pods' logs", str(lab.node.pod_logs)))
    lines.append(("stop", f"Ctrl-C, or kill {lab.pid}"))
    told = "".join(f"  {label:{LABEL}}{text}\n" for label, text in lines)
    return f"lab {lab.number} is ready after {lab.ready_s:.1f} s\n{told}"


def _spire(lab: LabFacts) -> list[tuple[str, str]]:
    if lab.spire is None:
        return [("SPIRE", f"none: {reason}") for reason in lab.without_spire]
    return [
        ("SPIRE", f"{lab.spire.program} agent list \\"),
        ("", f"  -socketPath {lab.spire.socket}"),
        ("SPIRE agent", lab.spire.agent_id),
    ]


def _product(lab: LabFacts) -> list[tuple[str, str]]:
    if lab.product is not None:
        command = f"kubectl -n {lab.product} exec gpuwarden-controller-0 -- gpuwarden"
        return [("gpuwarden", f"{command} nodes"), ("", f"{command} gpus")]
    if lab.spire is not None:
        return [("gpuwarden", "not deployed; `make lab PRODUCT=1` deploys it")]
    return []
