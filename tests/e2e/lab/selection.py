"""Which parts of the lab run on this machine, with which Kubernetes, and why not the rest."""

import os

from tests.e2e.lab.machine import NODE_NEEDS, missing
from tests.e2e.lab.upstreams import (
    CONTROL_PLANE,
    KUBERNETES,
    NODE,
    SPIRE,
    Upstream,
    kubernetes,
    upstream,
)


def why_no_node() -> list[str]:
    """What keeps a real node from running here, one line each; empty where it can."""
    reasons = missing(NODE_NEEDS)
    reasons += [line for name in NODE for line in missing(upstream(name).needs)]
    if chosen_kubernetes().folder != KUBERNETES:
        reasons.append(f"KUBERNETES={chosen_kubernetes().version} is tested without a node")
    return reasons


def why_no_spire() -> list[str]:
    """What keeps SPIRE's tests from running here, one line each; empty where they can."""
    reasons = missing(upstream(SPIRE).needs)
    if chosen_kubernetes().folder != KUBERNETES:
        reasons.append(
            f"SPIRE is tested once, not again for Kubernetes {chosen_kubernetes().version}"
        )
    return reasons


def chosen_kubernetes() -> Upstream:
    """The variable KUBERNETES, or the current version."""
    return kubernetes(os.environ.get("KUBERNETES") or upstream(KUBERNETES).version)


def needed(*, has_node: bool) -> list[str]:
    """Projects in an order in which an older control plane replaces the current one."""
    older = {chosen_kubernetes().folder} - {KUBERNETES}
    return [*CONTROL_PLANE, *older, *(NODE if has_node else ())]
