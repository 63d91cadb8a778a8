"""What a node promises of the GPUs that a pod gets on it, and why no more. Pure.

Who gives the device decides what could be promised; without protection something else than
us may run on the node and use any device, so that nothing but the node is certain. A promise
never decides whether a pod passes.
"""

from dataclasses import dataclass

from controller.fleet.view import NodeMode
from controller.scheduling.guarantee import Guarantee, Limit
from controller.scheduling.requirements import Requirements
from controller.scheduling.scene import Scene


@dataclass(frozen=True, slots=True)
class Promise:
    """`limit` is None where no more can be promised by anybody, or was asked for."""

    guarantee: Guarantee
    limit: Limit | None = None


def promise_of(name: str, mode: NodeMode, scene: Scene) -> Promise:
    """The most that the node promises any pod."""
    limit = _unprotected(name, scene)
    if limit is not None:
        return Promise(Guarantee.NODE, limit)
    if mode is NodeMode.PLUGIN:
        return Promise(Guarantee.SET, Limit.KUBELET)
    if mode is not NodeMode.ENV:
        return Promise(Guarantee.NODE, Limit.MODE)
    if scene.policy.policy.honours_variable(name):
        return Promise(Guarantee.EXACT)
    return Promise(Guarantee.NODE, Limit.RUNTIME)


def promise_to(needs: Requirements, name: str, mode: NodeMode, scene: Scene) -> Promise:
    """What a pod that passes is promised.

    On a `plugin` node a pod that accepts any node with enough good devices may get another
    device; to a pod that asks for no GPU the node is all there is to promise.
    """
    if not needs.count:
        return Promise(Guarantee.NODE)
    if mode is NodeMode.PLUGIN and needs.accepts is Guarantee.NODE:
        return Promise(Guarantee.NODE, Limit.ACCEPTED)
    return promise_of(name, mode, scene)


def _unprotected(name: str, scene: Scene) -> Limit | None:
    if not scene.protected:
        return Limit.PROTECTION_OFF
    if scene.now.boottime_ns >= scene.nodes.fresh_until_ns:
        return Limit.TAINTS_UNKNOWN
    node = scene.nodes.nodes.get(name)
    return None if node is not None and node.managed else Limit.NO_TAINT
