"""What one placement decision is made against: snapshots, policy and the moment. Pure."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from controller.fleet.directory import EMPTY_DIRECTORY, DirectorySnapshot
from controller.fleet.view import FleetSnapshot, Level
from controller.ledger.pod_use import Holders
from controller.policy import Policy
from controller.scheduling.device_labels import compile_labels
from controller.scheduling.memory import PlacementMemory
from controller.scheduling.selector import Selector
from controller.static_hashes import NO_STATIC_HASHES, InsecureStaticHashes


@dataclass(frozen=True, slots=True)
class Moment:
    """The time of a decision: what leases are measured by, and the calendar for classes."""

    boottime_ns: int
    wall: datetime
    """UTC, aware."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacementPolicy:
    """A policy with its device labels compiled; made once per policy, equal to itself only."""

    policy: Policy
    labels: Mapping[str, Selector]


def placement_policy(policy: Policy) -> PlacementPolicy:
    """Compile a policy; raises WishTextError for a malformed label (policy_file refuses those)."""
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
    """Whether the installation keeps what we do not admit off tainted nodes (`protection`)."""

    def node_of(self, name: str) -> str:
        """The node that a map means: the one of this name, else the only one labelled so."""
        if name in self.nodes.nodes:
            return name
        return self.nodes.map_names.get(name, name)


@dataclass(frozen=True, slots=True)
class AcceptableHashes:
    """Which attestation hashes satisfy pod and class; `hashes` None = any."""

    hashes: frozenset[str] | None
    class_known: bool
    level: Level
    """The class's minimum level."""


def acceptable_hashes(
    hashes: frozenset[str] | None, class_name: str | None, policy: Policy, now: datetime
) -> AcceptableHashes:
    """Join a pod's hash list with the hashes that its class accepts at `now`."""
    if class_name is None:
        return AcceptableHashes(hashes, class_known=True, level=Level.NONE)
    named = policy.classes.get(class_name)
    if named is None:
        return AcceptableHashes(frozenset(), class_known=False, level=Level.NONE)
    valid = frozenset(entry.attestation_hash for entry in named.hashes if entry.holds(now))
    both = valid if hashes is None else valid & hashes
    return AcceptableHashes(both, class_known=True, level=named.min_level)
