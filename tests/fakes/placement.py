"""Stand-ins for what the extender asks and tells: a fleet, a clock, sinks that remember."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controller.fleet.view import EMPTY_FLEET, FleetSnapshot
from controller.ledger.record import ShareGroup
from controller.placement.filter_and_score import FilterDecision
from controller.placement.keys import RequirementRules
from controller.placement.snapshot import DeviceUse, Scenes
from controller.placement.static_hashes import NO_STATIC_HASHES, InsecureStaticHashes
from controller.policy import DEFAULT_POLICY, Policy
from controller.web.verbs import ExtenderVerbs
from gpuwarden.clock import moment_of
from tests.builders.fleet_views import NOW_NS
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
    denied: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Nodes that the binding webhook has just denied, by pod UID."""

    def use(self, pod_uid: str | None, share: ShareGroup | None) -> DeviceUse:
        del share
        return DeviceUse(frozenset(x for x, uid in self.held.items() if uid != pod_uid))

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


def args(pod: dict[str, Any], *names: str) -> dict[str, Any]:
    """ExtenderArgs as kube-scheduler writes them with nodeCacheCapable."""
    return {"Pod": pod, "Nodes": None, "NodeNames": list(names)}
