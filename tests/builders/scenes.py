"""Scenes to decide in."""

from datetime import UTC, datetime

from controller.fleet.view import FleetSnapshot, NodeView
from controller.placement.snapshot import PlacementPolicy, Scene, placement_policy
from controller.placement.static_hashes import NO_STATIC_HASHES, InsecureStaticHashes
from controller.placement.verdict_cache import PlacementMemory
from controller.policy import DEFAULT_POLICY, Policy
from gpuwarden.moment import Moment, wall_ns
from tests.builders.fleet_views import NOW_NS, fleet

WALL = datetime(2026, 6, 1, tzinfo=UTC)


def scene(
    *nodes: NodeView,
    snapshot: FleetSnapshot | None = None,
    policy: Policy | PlacementPolicy = DEFAULT_POLICY,
    now_ns: int = NOW_NS,
    wall: datetime = WALL,
    busy: tuple[str, ...] = (),
    static: InsecureStaticHashes = NO_STATIC_HASHES,
    memory: PlacementMemory | None = None,
) -> Scene:
    """Give the same compiled policy again to have the memory used."""
    return Scene(
        fleet=fleet(*nodes) if snapshot is None else snapshot,
        policy=policy if isinstance(policy, PlacementPolicy) else placement_policy(policy),
        now=Moment(now_ns, wall_ns(wall)),
        busy=frozenset(busy),
        static=static,
        memory=memory or PlacementMemory(),
    )
