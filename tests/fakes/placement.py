"""Stand-ins for what the extender asks and tells: a fleet, a clock, sinks that remember."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.fleet.sharded_map import ShardedMap
from controller.fleet.view import EMPTY_FLEET, FleetSnapshot
from controller.ledger.occupancy import Holders
from controller.ledger.record import HolderState, PodRef, ShareGroup, key_of
from controller.ledger.store import Entry
from controller.placement.filter_and_score import FilterDecision
from controller.placement.keys import RequirementRules
from controller.placement.snapshot import DeviceUse, Scenes
from controller.placement.static_hashes import NO_STATIC_HASHES, InsecureStaticHashes
from controller.policy import DEFAULT_POLICY, Policy
from controller.web.extender.verbs import ExtenderVerbs
from gpuwarden.clock import moment_of
from tests.builders.fleet_views import NOW_NS
from tests.builders.ledger import holder, record
from tests.builders.scenes import WALL
from tests.fakes.listener import SeenConnections


@dataclass
class World:
    """Everything that a test may change between two requests."""

    fleet: FleetSnapshot = EMPTY_FLEET
    policy: Policy = DEFAULT_POLICY
    now_ns: int = NOW_NS
    not_ready: str | None = None
    enforced: frozenset[str] = frozenset()
    held: Mapping[str, str] = field(default_factory=dict)
    """Devices that somebody holds, with the UIDs of their pods."""
    leaving: frozenset[str] = frozenset()
    """UIDs of pods that are being deleted."""
    denied: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Nodes that the binding webhook has just denied, by pod UID."""

    def use(self, pod_uid: str | None, share: ShareGroup | None) -> DeviceUse:
        del share
        found = {key_of(x): self._entry(x, uid) for x, uid in self.held.items()}
        return DeviceUse(
            frozenset(x for x, uid in self.held.items() if uid != pod_uid),
            holders=Holders(ShardedMap(found)),
        )

    @staticmethod
    def _entry(gpu: str, pod_uid: str) -> Entry:
        pod = PodRef("team-a", pod_uid, pod_uid)
        return Entry(record(holder(gpu, pod=pod, state=HolderState.CONFIRMED), gpu=gpu), "1")

    def snapshot(self) -> FleetSnapshot:
        return self.fleet

    def boottime_ns(self) -> int:
        return self.now_ns

    def wall_ns(self) -> int:
        return int(WALL.timestamp() * 1e9)

    def verbs(
        self,
        *,
        rules: RequirementRules | None = None,
        static: InsecureStaticHashes = NO_STATIC_HASHES,
        report: bool = False,
    ) -> ExtenderVerbs:
        return ExtenderVerbs(
            scenes=Scenes(lambda: self.fleet, lambda: self.policy, lambda: moment_of(self), static),
            not_ready=lambda: self.not_ready,
            use=self.use,
            rules=rules or RequirementRules(opaque_hashes=bool(static)),
            is_enforced=lambda namespace: namespace in self.enforced,
            denied=lambda uid: self.denied.get(uid, frozenset()),
            is_leaving=lambda pod: pod.uid in self.leaving,
            report=report,
        )


@dataclass
class Sink:
    """Remembers decisions."""

    decisions: list[FilterDecision] = field(default_factory=list)

    def note(self, decision: FilterDecision) -> None:
        self.decisions.append(decision)


class Measurements(SeenConnections):
    """Remembers what the extender and its listener report."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[tuple[str, str]] = []

    def answered(self, verb: str, result: str, seconds: float) -> None:
        assert seconds >= 0
        self.answers.append((verb, result))


def victims(pod: dict[str, Any], **uids: Sequence[str]) -> dict[str, Any]:
    """ExtenderPreemptionArgs as kube-scheduler writes them with nodeCacheCapable."""
    by_node = {
        node: {"Pods": [{"UID": uid} for uid in each], "NumPDBViolations": 0}
        for node, each in uids.items()
    }
    return {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": by_node}


def args(pod: dict[str, Any], *names: str) -> dict[str, Any]:
    """ExtenderArgs as kube-scheduler writes them with nodeCacheCapable."""
    return {"Pod": pod, "Nodes": None, "NodeNames": list(names)}
