"""The verdict on one node for one pod: None, or the one code and text against it.

The first check that fails gives the code:

1. the pod itself: REQ_INVALID, CLASS_UNKNOWN
2. the map names another node: MAP_ELSEWHERE
3. the node's state: NODE_NO_EVIDENCE, NODE_STALE, NODE_QUARANTINED, NODE_REFUSED
4. the attestation hash: CLASS_NOT_ALLOWED, HASH_MISMATCH
5. the assurance level: LEVEL_TOO_LOW
6. the node's mode: NODE_MODE, EXACT_UNAVAILABLE
7. the devices: EXACT_UNAVAILABLE, GPU_NO_MATCH, GPU_LOST, GPU_BUSY

`filter_and_score` only avoids asking about nodes whose answer is known.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import compress

from controller.fleet.view import Acceptance, NodeState, NodeView
from controller.placement.devices import (
    DeviceNeeds,
    DevicePool,
    assigned_devices,
    device_requirement,
    free_devices,
    is_mig_resource,
    judge_devices,
    mode_fits,
    taken_without_record,
    used_by_holders_alone,
)
from controller.placement.refusals import (
    NO_MODE_YET,
    REFUSALS,
    STILL_CLAIMED,
    WITHOUT_RECORD,
    refused_node,
    unknown_name,
)
from controller.placement.requirements import Guarantee, Requirements, RequirementsInvalid
from controller.placement.selector import Device
from controller.placement.snapshot import Scene, acceptable_hashes
from controller.placement.verdict_cache import ABSENT, CODES, IF_PASSES, packed
from controller.policy import Level, NodeMode, highest
from gpuwarden.reasons import ReasonCode, Refusal

# --- demands on devices


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

    def would_do_without_unreserved_use(self, name: str, pool: DevicePool) -> bool:
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


# --- the judge

_MANY = 4
"""One name in so many is few: they are judged by themselves."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A node's evidence and its matching devices that nobody has."""

    acceptance: Acceptance
    mode: NodeMode
    free: Sequence[Device]


@dataclass(frozen=True, slots=True)
class Weighing:
    """What a node has shown, and what the pod demands of its devices."""

    acceptance: Acceptance
    mode: NodeMode
    pool: DevicePool
    ask: DeviceNeeds


class Judge:
    """A managed pod's demands against one scene, prepared for many nodes."""

    __slots__ = (
        "_allowed",
        "_demands",
        "_levels",
        "_needs",
        "_place_node",
        "_requirement",
        "_scene",
        "_static_level_suffices",
        "_verdicts",
        "accepted",
        "level",
        "pod_refusal",
    )

    def __init__(self, needs: Requirements | RequirementsInvalid, scene: Scene) -> None:
        self._scene = scene
        policy = scene.policy.policy
        valid = Requirements(managed=True) if isinstance(needs, RequirementsInvalid) else needs
        self._needs = valid
        self._place_node = None if valid.place is None else scene.node_of(valid.place.node)
        both = acceptable_hashes(
            self._needs.hashes, self._needs.attestation_class, policy, scene.now.wall
        )
        self.accepted = both.hashes
        """Hashes that pod and class accept; None = any."""
        self._allowed = policy.allowed_hashes
        asked = highest(self._needs.min_level, both.level)
        self.level = highest(asked, policy.min_level)
        """The lowest evidence level that suffices, but for `none` in an evaluation."""
        least = highest(self._needs.min_level, both.level.demanded, policy.min_level.demanded)
        self._levels = frozenset(each for each in Level if each.rank >= least.rank)
        self._static_level_suffices = (
            asked is Level.NONE and policy.min_level.demanded is Level.NONE
        )
        labels = sorted(self._needs.labels)
        self._requirement = device_requirement(self._needs.selector, labels, scene.policy.labels)
        ask = DeviceNeeds(
            self._needs, self._requirement, scene.busy, policy.processes_count_as_use, scene.shared
        )
        self._demands = DeviceDemands(ask, scene)
        question = (
            valid,
            self.accepted,
            scene.policy,
            scene.busy,
            scene.shared,
            scene.claimed if valid.requests else None,
            scene.own,
            scene.holders.edition,
        )
        self._verdicts = scene.memory.verdicts(question, scene.now.boottime_ns)
        self.pod_refusal: Refusal | None = None
        """Set where no node can pass, whatever its state."""
        self.pod_refusal = self._against_pod(needs)

    def _against_pod(self, needs: Requirements | RequirementsInvalid) -> Refusal | None:
        if isinstance(needs, RequirementsInvalid):
            return Refusal(ReasonCode.REQ_INVALID, needs.detail())
        if needs.mapped and needs.place is None:
            return Refusal(ReasonCode.REQ_INVALID, "the pod has a map and no ordinal yet")
        known = self._scene.policy
        return unknown_name(needs, known.policy.classes, known.labels)

    @property
    def place_node(self) -> str | None:
        """The only node that can pass, where a map names it."""
        return self._place_node

    def refusal(self, name: str) -> Refusal | None:
        """What is against the node, None when it passes."""
        found = self._found(name)
        return self._in_words(name, found) if isinstance(found, ReasonCode) else found

    def passes(self, name: str) -> bool:
        """Whether nothing is against the node."""
        return self._found(name) is None

    def _found(self, name: str) -> Refusal | ReasonCode | None:
        """A code alone where its words are still to be found: few nodes' are ever shown."""
        if self.pod_refusal is not None:
            return self.pod_refusal
        if self._place_node is not None and self._place_node != name:
            return REFUSALS[ReasonCode.MAP_ELSEWHERE]
        node = self._scene.fleet.nodes.get(name)
        return self._without_evidence(name) if node is None else self._verdict(node)

    def codes(self, names: Sequence[str]) -> bytes:
        """A byte for each of `names` (`verdict_cache.CODES`): `refusal` for many at once."""
        if self.pod_refusal is not None:
            return packed([self.pod_refusal.code]) * len(names)
        fleet = self._scene.fleet
        few = len(names) * _MANY < len(fleet.nodes) and not self._verdicts.is_filled
        if few or self.place_node is not None:
            return packed([self._code(name) for name in names])
        self._verdicts.refresh(fleet.nodes, self._scene.now.boottime_ns, self._code_of)
        found = self._verdicts.of(names)
        if ABSENT not in found:
            return found
        return packed(
            [
                self._code(name) if byte == ABSENT else CODES[byte]
                for name, byte in zip(names, found, strict=True)
            ]
        )

    def passing(self, names: Sequence[str]) -> list[str]:
        """Those of `names` that pass, in order."""
        return list(compress(names, self.codes(names).translate(IF_PASSES)))

    def _code(self, name: str) -> ReasonCode | None:
        found = self._found(name)
        return found.code if isinstance(found, Refusal) else found

    def _code_of(self, node: NodeView) -> ReasonCode | None:
        found = self._verdict(node)
        return found.code if isinstance(found, Refusal) else found

    def _verdict(self, node: NodeView) -> Refusal | ReasonCode | None:
        acceptance = node.acceptance
        if acceptance is None or node.blocked is not None:
            return self._not_standing(node)
        if self._scene.now.boottime_ns >= acceptance.fresh_until_ns:
            return REFUSALS[ReasonCode.NODE_STALE]
        return self._against(node, acceptance)

    def _in_words(self, name: str, code: ReasonCode) -> Refusal:
        node = self._scene.fleet.nodes[name]
        if code is ReasonCode.NODE_MODE:
            return self._against_mode(node.mode)
        if code is ReasonCode.GPU_BUSY and node.acceptance is not None:
            pool = self._scene.memory.pool(name, node.acceptance)
            if self._demands.would_do_without_unreserved_use(name, pool):
                return WITHOUT_RECORD
        return REFUSALS[code]

    def _against_mode(self, mode: NodeMode) -> Refusal:
        if mode in NO_MODE_YET:
            return NO_MODE_YET[mode]
        return STILL_CLAIMED if mode_fits(self._needs, mode) else REFUSALS[ReasonCode.NODE_MODE]

    @property
    def needs(self) -> Requirements:
        """What the pod demands; nothing, where that cannot be read."""
        return self._needs

    @property
    def names_gpus(self) -> bool:
        """Whether the pod asks for GPUs by UUID, and for no node by a map."""
        return bool(self._needs.uuids) and self._place_node is None

    @property
    def count(self) -> int:
        """Devices that the pod needs."""
        return self._needs.count

    def weighed(self, name: str) -> Weighing | None:
        """The node's devices beside what is demanded; None where it has shown no evidence."""
        node = self._scene.fleet.nodes.get(name)
        if node is None or node.acceptance is None:
            return None
        pool = self._scene.memory.pool(name, node.acceptance)
        return Weighing(node.acceptance, node.mode, pool, self._demands.on(name, pool))

    def offer(self, name: str) -> Offer | None:
        """What a node offers this pod; None where it has shown no evidence."""
        found = self.weighed(name)
        if found is None:
            return None
        return Offer(found.acceptance, found.mode, free_devices(found.pool, found.ask))

    def assigned(self, name: str, preferred: Collection[str] = ()) -> tuple[Device, ...]:
        """The devices that the pod gets on an `env` node that it passes, in the pod's order.

        `preferred`: UUIDs that it has asked for before; taken where they still serve.
        """
        found = self.weighed(name)
        return () if found is None else assigned_devices(found.pool, found.ask, preferred)

    def _against(self, node: NodeView, acceptance: Acceptance) -> ReasonCode | None:
        own = acceptance.attestation_hash
        if self._allowed is not None and own not in self._allowed:
            return ReasonCode.CLASS_NOT_ALLOWED
        if self.accepted is not None and own not in self.accepted:
            return ReasonCode.HASH_MISMATCH
        if acceptance.level not in self._levels:
            return ReasonCode.LEVEL_TOO_LOW
        if not mode_fits(self._needs, node.mode) or self._could_give_again(node.mode, acceptance):
            return ReasonCode.NODE_MODE
        pool = self._scene.memory.pool(node.name, acceptance)
        if node.mode is NodeMode.PLUGIN and self._could_give_split(node.name, pool):
            return ReasonCode.EXACT_UNAVAILABLE
        return self._demands.against(node.name, pool, node.mode)

    def _could_give_split(self, name: str, pool: DevicePool) -> bool:
        """Whether kubelet could give the pod a GPU that is split, as if it were whole."""
        needs = self._needs
        if needs.accepts is Guarantee.NODE or not pool.has_split:
            return False
        wants_whole = any(not is_mig_resource(resource) for resource, _ in needs.requests)
        return wants_whole and self._scene.policy.policy.offers_split_gpus(name)

    def _could_give_again(self, mode: NodeMode, acceptance: Acceptance) -> bool:
        """Whether kubelet chooses the devices where pods have some that it knows nothing of."""
        claimed = self._scene.claimed
        if mode is NodeMode.ENV or not self._needs.count or not claimed:
            return False
        return any(
            gpu.uuid in claimed or any(mig.uuid in claimed for mig in gpu.mig_devices)
            for gpu in acceptance.gpus
        )

    def _not_standing(self, node: NodeView) -> Refusal | None:
        match node.state(self._scene.now.boottime_ns):
            case NodeState.QUARANTINED:
                return REFUSALS[ReasonCode.NODE_QUARANTINED]
            case NodeState.UNKNOWN:
                return self._without_evidence(node.name)
            case _:
                past = node.blocked or node.refusals[0]
                return refused_node(past.code)

    def _without_evidence(self, name: str) -> Refusal | None:
        """Only here static hashes are asked: they never overrule what evidence said."""
        code = self._against_static(name)
        return None if code is None else REFUSALS[code]

    def _against_static(self, name: str) -> ReasonCode | None:
        static, needs = self._scene.static, self._needs
        own = static.hashes.get(name)
        if own is None or self.accepted is None:
            return ReasonCode.NODE_NO_EVIDENCE
        if self._allowed is not None and not static.matches(name, self._allowed):
            return ReasonCode.CLASS_NOT_ALLOWED
        if not static.matches(name, self.accepted):
            return ReasonCode.HASH_MISMATCH
        if not self._static_level_suffices:
            return ReasonCode.LEVEL_TOO_LOW
        about_devices = needs.place or needs.uuids or self._requirement.key
        if about_devices or (needs.count and not needs.requests):
            return ReasonCode.GPU_NO_MATCH
        return None


# --- promise: what a node guarantees, and why no more


class Limit(StrEnum):
    """Why no more is promised, for people."""

    PROTECTION_OFF = "protection is off"
    NO_TAINT = "the node lacks the taint gpuwarden.dev/managed:NoExecute"
    TAINTS_UNKNOWN = "what is known of the node's taints is too old"
    RUNTIME = "the policy does not say that the node's container runtime honours the variable"
    KUBELET = "kubelet chooses the GPU"
    MODE = "nodes of this mode give no GPUs yet"
    ACCEPTED = "the pod accepts less"


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
