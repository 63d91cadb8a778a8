"""Which GPUs and MIG devices a pod has, and whether a GPU that has failed is among them. Pure.

One rule for what people are shown (`stages`) and for the Events about a GPU that has failed.
"""

from collections.abc import Iterable
from typing import Final

from controller.fleet.view import Acceptance, GpuView, NodeView
from controller.ledger.record import key_of
from controller.policy import NodeMode
from gpuwarden.evidence.use_rules import device_uuid

DELETE: Final = "delete the pod"
DELETE_IF: Final = "delete the pod if it does not work any more"


def keys_of(gpus: Iterable[str]) -> frozenset[str]:
    """Names of records, so that spelling does not matter."""
    return frozenset(map(key_of, gpus))


def given_devices(accepted: Acceptance | None, namespace: str, pod: str) -> list[str]:
    """Kubelet's ids of what it has given to a pod of that name, by the node's evidence."""
    allocations = () if accepted is None else accepted.allocations or ()
    return [x.device for x in allocations if (x.namespace, x.pod) == (namespace, pod)]


def given_gpus(accepted: Acceptance | None, namespace: str, pod: str) -> tuple[str, ...]:
    """The GPUs and MIG devices that these ids name, each once: a time slice names its GPU."""
    found = map(device_uuid, given_devices(accepted, namespace, pod))
    return tuple(dict.fromkeys(x for x in found if x is not None))


def gpus_of_live_pod(
    node: NodeView | None,
    namespace: str,
    pod: str,
    *,
    reserved: Iterable[str],
    assigned: Iterable[str],
    is_managed: bool,
) -> frozenset[str]:
    """`key_of` all that a pod of the node has which has not ended.

    By the ledger (`reserved`), else by the pod's annotation (`assigned`). On a `plugin` node a
    managed pod has what kubelet gave it, too, whether it is recorded yet or not.
    """
    found = keys_of(reserved) or keys_of(assigned)
    if is_managed and node is not None and node.mode is NodeMode.PLUGIN:
        found |= keys_of(given_gpus(node.acceptance, namespace, pod))
    return found


def devices_among(accepted: Acceptance, gpu: str, keys: frozenset[str]) -> tuple[str, ...]:
    """Which of the GPU and its MIG devices are among `keys`."""
    return tuple(x for x in accepted.with_parts(gpu) if key_of(x) in keys)


def is_of_no_use(gpu: GpuView) -> bool:
    """Whether the driver says nothing of the GPU but its error.

    Otherwise it had an error, or one fact of it was not read: then it may still work.
    """
    return gpu.lost is not None and ":" not in gpu.lost.error
