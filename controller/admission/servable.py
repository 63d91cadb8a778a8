"""Pods that no node will ever serve, by what the policy declares, and how they can ask instead.

They are refused at their creation: they would wait for ever. A pod that waits for evidence or for
a free GPU is admitted. Must not read the fleet: what nodes show now says nothing of later.
"""

from collections.abc import Collection
from typing import Final

from controller.placement.devices import mode_fits
from controller.placement.keys import GPU_COUNT, GUARANTEE
from controller.placement.refusals import unknown_name
from controller.placement.requirements import Requirements
from controller.policy import NodeMode, Policy
from gpuwarden.reasons import ReasonCode, Refusal

_GIVING: Final = (NodeMode.ENV, NodeMode.PLUGIN)
"""Modes on which managed pods can run."""


def unservable(
    needs: Requirements, policy: Policy | None, resources: Collection[str]
) -> Refusal | None:
    """Why no node that the policy declares will ever serve the pod.

    `policy`: None where it is not known, or where nodes that it says nothing of may serve, too.
    `resources`: the managed ones.
    """
    if policy is None:
        return None
    found = unknown_name(needs, policy.classes, policy.labels)
    if found is not None or needs.claims:
        return found
    modes = policy.modes
    if any(_serves(needs, mode) for mode in modes):
        return None
    if modes.isdisjoint(_GIVING):
        text = (
            f"no node gives GPUs: none is of a mode that gives any yet ({', '.join(sorted(modes))})"
        )
        return Refusal(ReasonCode.NODE_MODE, text)
    return _other_way(needs, modes, resources)


def _serves(needs: Requirements, mode: NodeMode) -> bool:
    if not mode_fits(needs, mode):
        return False
    return mode is not NodeMode.PLUGIN or not _names_devices(needs) or needs.accepts is not None


def _names_devices(needs: Requirements) -> bool:
    return bool(needs.uuids) or needs.mapped


def _other_way(
    needs: Requirements, modes: Collection[NodeMode], resources: Collection[str]
) -> Refusal:
    asked = ", ".join(resource for resource, _ in needs.requests)
    if NodeMode.PLUGIN not in modes:
        text = (
            f"no node gives GPUs to a container that requests {asked}: take the request away, and"
            f' annotate the pod with {GPU_COUNT}: "{needs.count}"'
        )
        return Refusal(ReasonCode.NODE_MODE, text)
    if NodeMode.ENV in modes:
        text = (
            "kubelet chooses the GPU that a container requests: take the request away, name no GPU,"
            f" or annotate the pod with {GUARANTEE}: node"
        )
        return Refusal(ReasonCode.EXACT_UNAVAILABLE, text)
    request = f"request {' or '.join(resources)} in a container"
    if _names_devices(needs):
        text = f"kubelet chooses the GPU on every node: name none, and {request}"
        return Refusal(ReasonCode.EXACT_UNAVAILABLE, f"{text} (or accept {GUARANTEE}: node)")
    return Refusal(ReasonCode.NODE_MODE, f"every node gives GPUs by a device plugin: {request}")


def no_gpu_warning(
    needs: Requirements, policy: Policy | None, resources: Collection[str]
) -> str | None:
    """For whoever creates a managed pod that asks for no GPU: its containers see none."""
    if not needs.managed or needs.count or needs.claims:
        return None
    request = f"request {' or '.join(resources)} in a container"
    annotation = f'annotate the pod with {GPU_COUNT}: "1"'
    modes = frozenset(_GIVING) if policy is None else policy.modes
    ways = {NodeMode.PLUGIN: f"{request} (plugin nodes)", NodeMode.ENV: f"{annotation} (env nodes)"}
    how = " or ".join(text for mode, text in ways.items() if mode in modes)
    return f"gpuwarden: the pod asks for no GPU and gets none{how and '; to get one, '}{how}"
