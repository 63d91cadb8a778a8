"""`python -m tests.e2e.lab [--control-plane-only]`: a cluster that stays up for a person.

Prints how to use and how to stop it as one block; ends with Ctrl-C or SIGTERM.
"""

import argparse
import os
import signal
import sys
from types import FrameType

from tests.e2e.lab.lab import Lab
from tests.e2e.lab.selection import chosen_kubernetes, needed, why_no_node
from tests.e2e.lab.upstreams import upstream

_OWN_LINE = ("", "k8s.io/kubernetes")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.lab", description=__doc__)
    parser.add_argument("--control-plane-only", action="store_true", help="no node; needs no root")
    alone: bool = parser.parse_args().control_plane_only
    reasons = why_no_node()
    if reasons and not alone:
        sys.stderr.write("lab: without a node:\n" + "".join(f"  {line}\n" for line in reasons))
    alone = alone or bool(reasons)
    for asked in (signal.SIGTERM, signal.SIGINT):  # a shell's background job ignores the latter
        signal.signal(asked, _end)
    try:
        with Lab.control_plane_only() if alone else Lab.whole() as lab:
            sys.stdout.write(description(lab, has_node=not alone))
            sys.stdout.flush()
            signal.pause()
    except KeyboardInterrupt:
        sys.stdout.write("lab: everything is gone\n")
    return 0


def description(lab: Lab, *, has_node: bool) -> str:
    """What a person needs to know."""
    projects = map(upstream, needed(has_node=has_node))
    others = [f"{one.folder} {one.version}" for one in projects if one.module not in _OWN_LINE]
    versions = ", ".join((f"Kubernetes {chosen_kubernetes().version}", *others))
    inside = f"  node        nsenter --target={lab.node.capsule.init} --all\n" if has_node else ""
    return (
        f"lab {lab.plan.number} is ready after {lab.ready_s:.1f} s\n"
        f"  versions    {versions}\n"
        f"  API server  {lab.control_plane.url}\n"
        f"  kubectl     export KUBECONFIG={lab.kubeconfig}\n"
        f"              alias kubectl={lab.site.programs['kubectl']}\n"
        f"{inside}"
        f"  logs        {lab.site.logs}\n"
        f"  stop        Ctrl-C, or kill {os.getpid()}\n"
    )


def _end(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
