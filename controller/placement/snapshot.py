"""What one placement decision is made against: snapshots, policy and the moment.

`Scenes` makes it from memory at each decision; /filter and the binding webhook share one.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from controller.fleet.directory import EMPTY_DIRECTORY, DirectorySnapshot
from controller.fleet.view import FleetSnapshot
from controller.ledger.occupancy import Holders
from controller.ledger.record import ShareGroup
from controller.placement.selector import compile_labels
from controller.placement.static_hashes import NO_STATIC_HASHES, InsecureStaticHashes
from controller.placement.verdict_cache import PlacementMemory
from controller.policy import Level, Policy
from gpuwarden.moment import Moment
from gpuwarden.policy.selector import Selector


@dataclass(frozen=True, slots=True, eq=False)
class PlacementPolicy:
    """A policy with its device labels compiled; made once per policy, equal to itself only."""

    policy: Policy
    labels: Mapping[str, Selector]


def placement_policy(policy: Policy) -> PlacementPolicy:
    """Compile a policy; raises RequirementTextError for a malformed label."""
    return PlacementPolicy(policy, compile_labels(policy.labels))


PartsOn = Callable[[str], Collection[str]]
"""UUIDs of the MIG devices that are held on a node, whether it still shows them or not."""


NO_HOLDERS: Final = Holders()


def no_parts(_node: str) -> Collection[str]:
    """Where nothing is reserved."""
    return ()


@dataclass(frozen=True, slots=True)
class Scene:
    """Held for a whole decision, so that it is made against one state of the world."""

    fleet: FleetSnapshot
    policy: PlacementPolicy
    now: Moment
    busy: frozenset[str] = frozenset()
    """UUIDs of devices that are reserved or used by others than the evidence shows."""
    shared: frozenset[str] = frozenset()
    """UUIDs of devices that the pod's share group holds: processes on them are no obstacle."""
    claimed: frozenset[str] = frozenset()
    """UUIDs of devices that pods have by claims: where kubelet gives devices it could give them
    once more."""
    parts: PartsOn = no_parts
    """MIG devices that are held on a node; those whose UUID is neither busy nor shared are the
    pod's own."""
    own: frozenset[str] = frozenset()
    """UUIDs of devices that the pod's own open attempts hold."""
    holders: Holders = NO_HOLDERS
    """Whom the ledger holds GPUs for: it explains what pods use."""
    static: InsecureStaticHashes = NO_STATIC_HASHES
    memory: PlacementMemory = field(default_factory=PlacementMemory)
    nodes: DirectorySnapshot = EMPTY_DIRECTORY
    """What the cluster says of its nodes: their other names in maps, and their taint."""
    protected: bool = False
    """Whether pods that are not admitted are kept off tainted nodes (`protection`)."""

    def node_of(self, name: str) -> str:
        """The node that a map means: the one of this name, else the only one labelled so."""
        if name in self.nodes.nodes:
            return name
        return self.nodes.map_names.get(name, name)


@dataclass(frozen=True, slots=True)
class AcceptableHashes:
    """Which attestation hashes satisfy pod and class; `hashes` None = any."""

    hashes: frozenset[str] | None
    level: Level
    """The class's minimum level."""


def acceptable_hashes(
    hashes: frozenset[str] | None, class_name: str | None, policy: Policy, now: datetime
) -> AcceptableHashes:
    """Join a pod's hash list with the hashes that its class accepts at `now`."""
    if class_name is None:
        return AcceptableHashes(hashes, Level.NONE)
    named = policy.classes.get(class_name)
    if named is None:
        return AcceptableHashes(frozenset(), Level.NONE)
    valid = frozenset(entry.attestation_hash for entry in named.hashes if entry.holds(now))
    both = valid if hashes is None else valid & hashes
    return AcceptableHashes(both, named.min_level)


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
    """One for /filter and the binding webhook, so that both judge alike; keeps what is valid."""

    def __init__(
        self,
        fleet: Callable[[], FleetSnapshot],
        policy: Callable[[], Policy],
        moment: Callable[[], Moment],
        static: InsecureStaticHashes = NO_STATIC_HASHES,
        *,
        nodes: Callable[[], DirectorySnapshot] = _no_nodes,
        protected: bool = False,
    ) -> None:
        self._fleet = fleet
        self._policy = policy
        self._moment = moment
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
        return Scene(
            fleet=self._fleet(),
            policy=self._compiled,
            now=self._moment(),
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


GpuUse = Callable[[str | None, ShareGroup | None], DeviceUse]
"""Who has which device beyond what evidence shows, as the pod of a UID and share group sees it.

The same object while nothing has changed.
"""


def no_use(_pod_uid: str | None, _share: ShareGroup | None) -> DeviceUse:
    """For an installation without reservations."""
    return NO_USE
