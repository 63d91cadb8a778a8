"""`python -m tests.e2e.lab [--spire] [--product]`: a cluster that stays up for a person.

Prints how to use and how to stop it as one block; ends with Ctrl-C or SIGTERM.
"""

import argparse
import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from tests.e2e.lab.cluster_spire import ClusterSpire
from tests.e2e.lab.containerd import SOCKET
from tests.e2e.lab.description import LabFacts, NodeFacts, SpireFacts, description
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.machine import missing
from tests.e2e.lab.product_images import NEEDS
from tests.e2e.lab.selection import chosen_kubernetes, needed, why_no_node, why_no_spire
from tests.e2e.lab.upstreams import upstream
from tests.e2e.product.installation import NAMESPACE
from tests.e2e.product.with_spire import installed

_OWN_LINE = ("", "k8s.io/kubernetes")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.lab", description=__doc__)
    parser.add_argument("--control-plane-only", action="store_true", help="no node; needs no root")
    parser.add_argument("--spire", action="store_true", help="SPIRE server and agent as well")
    parser.add_argument("--product", action="store_true", help="SPIRE and gpuwarden as well")
    asked = parser.parse_args()
    alone: bool = asked.control_plane_only
    no_node, no_spire = why_no_node(), why_no_spire()
    if asked.product and (reasons := why_no_product(no_node, no_spire, alone=alone)):
        _say(f"gpuwarden cannot be deployed here: {'; '.join(reasons)}")
        return 1
    if no_node and not alone:
        _say("without a node:\n" + "\n".join(f"  {line}" for line in no_node))
    alone = alone or bool(no_node)
    without_spire = (["it runs on a real node"] if alone else no_spire) if asked.spire else []
    has_spire = (asked.spire or asked.product) and not without_spire
    for number in (signal.SIGTERM, signal.SIGINT):  # a shell's background job ignores the latter
        signal.signal(number, _end)
    try:
        with ExitStack() as stack:
            lab = stack.enter_context(Lab.control_plane_only() if alone else Lab.whole())
            spire = _spire(lab) if has_spire else None
            if spire is not None and asked.product:
                _deploy(lab, spire, stack)
            product = NAMESPACE if asked.product else None
            told = description(_facts(lab, spire, without_spire, product, has_node=not alone))
            sys.stdout.write(told)
            sys.stdout.flush()
            signal.pause()
    except KeyboardInterrupt:
        sys.stdout.write("lab: everything is gone\n")
    return 0


def why_no_product(no_node: list[str], no_spire: list[str], *, alone: bool) -> list[str]:
    """What keeps gpuwarden from being deployed here, one line each; empty where it can."""
    chosen = ["--control-plane-only leaves it no node"] if alone else []
    return list(dict.fromkeys([*chosen, *no_node, *no_spire, *missing(NEEDS)]))


def _spire(lab: Lab) -> ClusterSpire:
    _say("starts SPIRE")
    spire = ClusterSpire(lab)
    spire.start()
    return spire


def _deploy(lab: Lab, spire: ClusterSpire, stack: ExitStack) -> None:
    _say("builds gpuwarden's images, where they are not built yet (minutes), and deploys them")
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=lab.folder)))
    world = stack.enter_context(installed(lab, spire, folder))
    _say("waits until both controllers have verified the node")
    world.verified()


def _facts(
    lab: Lab,
    spire: ClusterSpire | None,
    without_spire: list[str],
    product: str | None,
    *,
    has_node: bool,
) -> LabFacts:
    projects = map(upstream, needed(has_node=has_node))
    others = [f"{one.folder} {one.version}" for one in projects if one.module not in _OWN_LINE]
    return LabFacts(
        number=lab.plan.number,
        ready_s=lab.ready_s,
        versions=", ".join((f"Kubernetes {chosen_kubernetes().version}", *others)),
        url=lab.control_plane.url,
        kubeconfig=lab.kubeconfig,
        kubectl=lab.site.programs["kubectl"],
        logs=lab.site.logs,
        pid=os.getpid(),
        node=_node_facts(lab) if has_node else None,
        spire=None if spire is None else _spire_facts(spire),
        without_spire=without_spire,
        product=product,
    )


def _node_facts(lab: Lab) -> NodeFacts:
    return NodeFacts(
        enter=("nsenter", f"--target={lab.node.capsule.init}", "--all"),
        ctr=lab.site.programs["ctr"],
        containerd=SOCKET,
        pod_logs=lab.folder / "node" / "var-log-pods",
    )


def _spire_facts(spire: ClusterSpire) -> SpireFacts:
    server = spire.server
    return SpireFacts(
        program=server.site.programs["spire-server"],
        socket=server.socket,
        agent_id=spire.agent_id,
        logs=server.site.logs,
    )


def _say(text: str) -> None:
    sys.stderr.write(f"lab: {text}\n")
    sys.stderr.flush()


def _end(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
