"""What a pod demands of a node's devices, by what the ledger and the node itself say of them. Pure.

Two accounts count: who holds devices (the scene's `busy`), and who has them by the node's last
evidence (`device_use`). The second is asked about no more nodes than it can matter to.
"""

from dataclasses import replace

from controller.fleet.view import NodeMode
from controller.scheduling.device_choice import DeviceNeeds, judge_devices
from controller.scheduling.device_pool import DevicePool
from controller.scheduling.device_use import taken_without_record, used_by_holders_alone
from controller.scheduling.scene import Scene
from gpuwarden.reasons import ReasonCode


class DeviceDemands:
    """Those of one pod against one scene, for many nodes."""

    __slots__ = ("_ask", "_scene")

    def __init__(self, ask: DeviceNeeds, scene: Scene) -> None:
        self._ask = ask
        self._scene = scene

    def against(self, name: str, pool: DevicePool, mode: NodeMode) -> ReasonCode | None:
        """The code against a node's devices, or None. The mode must fit."""
        if mode is NodeMode.PLUGIN:
            return judge_devices(pool, mode, self._ask)
        code = judge_devices(pool, mode, self._by_records(name, pool))
        may_change = code is None or (code is ReasonCode.GPU_BUSY and self._scene.own)
        if not may_change or not pool.pod_uses:
            return code
        return judge_devices(pool, mode, self.on(name, pool))

    def on(self, name: str, pool: DevicePool) -> DeviceNeeds:
        """The demands on the devices of one node."""
        ask, holders = self._by_records(name, pool), self._scene.holders
        if not pool.pod_uses:
            return ask
        taken = taken_without_record(pool, holders, ask.busy)
        own = used_by_holders_alone(pool, holders, self._scene.own)
        if not taken and not own:
            return ask
        return replace(ask, taken=ask.taken | taken, shared=ask.shared | own)

    def would_do_without_strangers(self, name: str, pool: DevicePool) -> bool:
        """Whether a node that is too busy would serve, had no pod a device without a record."""
        ask = self._by_records(name, pool)
        taken = taken_without_record(pool, self._scene.holders, ask.busy)
        if not taken:
            return False
        free = replace(ask, shared=ask.shared | taken)
        return judge_devices(pool, NodeMode.ENV, free) is None

    def _by_records(self, name: str, pool: DevicePool) -> DeviceNeeds:
        """By what the ledger says.

        While somebody has a MIG device that the node does not show any more, none of its GPUs is
        free as a whole: it was a part of one of them, and nobody can tell of which.
        """
        held, ask = self._scene.parts(name), self._ask
        if not held:
            return ask
        shown = {mig.uuid for gpu in pool.acceptance.gpus for mig in gpu.mig_devices}
        if not any(x not in shown and (x in ask.busy or x in ask.shared) for x in held):
            return ask
        return replace(ask, taken=frozenset(x.uuid for x in pool.devices if x.mig is None))
