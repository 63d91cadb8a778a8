"""Pods that no node will ever serve, going by what the policy declares of all of them. Pure.

Only what kubelet is asked for is judged: where no node has a device plugin it would wait without
anybody saying why. A pod that asks us is told at its nodes.
"""

from collections.abc import Collection

from controller.fleet.view import NodeMode
from controller.scheduling.device_choice import mode_fits
from controller.scheduling.requirements import Requirements
from controller.scheduling.wish_keys import GPU_COUNT
from gpuwarden.reasons import ReasonCode, Refusal


def unservable(needs: Requirements, modes: Collection[NodeMode] | None) -> Refusal | None:
    """Against a pod that requests GPUs where no declared mode gives them to a request.

    `modes`: those that nodes are declared to have; None where others may serve, too.
    """
    if modes is None or not needs.requests or needs.claims:
        return None
    if any(mode_fits(needs, mode) for mode in modes):
        return None
    if NodeMode.ENV not in modes:
        text = (
            f"no node gives GPUs: none is of a mode that gives any yet ({', '.join(sorted(modes))})"
        )
        return Refusal(ReasonCode.NODE_MODE, text)
    asked = ", ".join(resource for resource, _ in needs.requests)
    text = (
        f"no node gives GPUs to a container that requests {asked}: take the request away, and"
        f' annotate the pod with {GPU_COUNT}: "{needs.count}"'
    )
    return Refusal(ReasonCode.NODE_MODE, text)
