"""Makes the scene of each decision from what stands in memory at that moment."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from controller.fleet.directory import EMPTY_DIRECTORY, DirectorySnapshot
from controller.fleet.view import FleetSnapshot
from controller.ledger.pod_use import Holders
from controller.policy import Policy
from controller.scheduling.memory import PlacementMemory
from controller.scheduling.scene import (
    NO_HOLDERS,
    Moment,
    PartsOn,
    PlacementPolicy,
    Scene,
    no_parts,
    placement_policy,
)
from controller.static_hashes import NO_STATIC_HASHES, InsecureStaticHashes
from gpuwarden.clock import Clock


class FleetSource(Protocol):
    """Where the verified fleet comes from."""

    def snapshot(self) -> FleetSnapshot:
        """The current snapshot."""


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Who has which device, beyond what evidence shows, as one pod sees it."""

    busy: frozenset[str] = frozenset()
    """UUIDs that cannot be given to it now."""
    shared: frozenset[str] = frozenset()
    """UUIDs that its share group holds."""
    claimed: frozenset[str] = frozenset()
    """As in `Scene`."""
    parts: PartsOn = field(default=no_parts, compare=False)
    """As in `Scene`."""
    own: frozenset[str] = frozenset()
    """As in `Scene`."""
    holders: Holders = NO_HOLDERS
    """As in `Scene`."""


NO_USE = DeviceUse()


def _no_nodes() -> DirectorySnapshot:
    """For an installation of which nobody says what its nodes are called."""
    return EMPTY_DIRECTORY


class Scenes:
    """One for /filter and the gate, so that they judge by the same; remembers what still holds."""

    def __init__(
        self,
        fleet: FleetSource,
        policy: Callable[[], Policy],
        clock: Clock,
        static: InsecureStaticHashes = NO_STATIC_HASHES,
        *,
        nodes: Callable[[], DirectorySnapshot] = _no_nodes,
        protected: bool = False,
    ) -> None:
        self._fleet = fleet
        self._policy = policy
        self._clock = clock
        self._static = static
        self._nodes = nodes
        self._protected = protected
        self._memory = PlacementMemory()
        self._compiled: PlacementPolicy | None = None

    def now(self, use: DeviceUse = NO_USE) -> Scene:
        """The scene of this moment."""
        policy = self._policy()
        if self._compiled is None or self._compiled.policy is not policy:
            self._compiled = placement_policy(policy)
        wall = datetime.fromtimestamp(self._clock.wall_ns() / 1e9, UTC)
        return Scene(
            fleet=self._fleet.snapshot(),
            policy=self._compiled,
            now=Moment(self._clock.boottime_ns(), wall),
            busy=use.busy,
            shared=use.shared,
            claimed=use.claimed,
            parts=use.parts,
            own=use.own,
            holders=use.holders,
            static=self._static,
            memory=self._memory,
            nodes=self._nodes(),
            protected=self._protected,
        )
