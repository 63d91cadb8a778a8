"""Snapshot.

Holds: verdicts, memory, static hashes, scene, scenes.
"""

import hmac
import json
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import compress, repeat
from operator import is_not
from types import MappingProxyType
from typing import Any, Final

from controller.fleet.directory import EMPTY_DIRECTORY, DirectorySnapshot
from controller.fleet.view import Acceptance, FleetSnapshot, NodeView
from controller.ledger.occupancy import Holders
from controller.ledger.record import ShareGroup
from controller.placement.devices import DevicePool
from controller.placement.selector import Selector, compile_labels
from controller.placement.texts import is_attestation_hash, is_opaque_hash
from controller.policy import Level, Policy
from gpuwarden.identity.spiffe_id import is_node_name
from gpuwarden.moment import NS_PER_S, Moment
from gpuwarden.reasons import ReasonCode

# --- verdicts
# The code against every node of a fleet for one question, kept as new as the fleet. Pure.
#
# A fleet of thousands changes by a few nodes between two decisions. Finding them by
# comparing what the snapshots hold, object by object, costs a twentieth of judging
# them all or of looking each up by its name. Codes of many nodes are bytes, one each,
# because counting and comparing enums costs more than all else.

Code = ReasonCode | None
"""None: the node passes."""
CODES: Final[tuple[Code, ...]] = (None, *sorted(ReasonCode))
"""What the byte of a node stands for."""
PASSES: Final = 0
ABSENT: Final = 255
"""The fleet has no such node."""
IF_PASSES: Final = bytes(byte == PASSES for byte in range(256))
"""For `bytes.translate`: 1 where a node passes."""
IF_REJECTED: Final = bytes(byte != PASSES for byte in range(256))
_BYTE: Final = {code: byte for byte, code in enumerate(CODES)}
_LOOK_NS: Final = NS_PER_S
"""Where no lease runs there is nothing to end; any time is soon enough."""


def packed(codes: Sequence[Code]) -> bytes:
    """One byte for each code."""
    return bytes(_BYTE[code] for code in codes)


class Verdicts:
    """Codes by node for one question; holds on to the views that they were made from."""

    __slots__ = ("_codes", "_ended_ns", "_names", "_nodes", "_soonest_ns", "_views")

    def __init__(self) -> None:
        self._nodes: Mapping[str, NodeView] | None = None
        self._names: list[str] = []
        self._views: list[NodeView] = []
        self._codes: dict[str, int] = {}
        self._soonest_ns = 0
        """No lease that a code relies on ends before."""
        self._ended_ns = 0
        """The latest end of a lease that a code says is over."""

    @property
    def is_filled(self) -> bool:
        """Whether there is anything to build on."""
        return self._nodes is not None

    def of(self, names: Sequence[str]) -> bytes:
        """A byte for each of `names`, as of the last `refresh`: see CODES and ABSENT."""
        return bytes(map(self._codes.get, names, repeat(ABSENT)))

    def refresh(
        self, nodes: Mapping[str, NodeView], now_ns: int, judge: Callable[[NodeView], Code]
    ) -> None:
        """Judge what has changed since the last time, and leases that have ended meanwhile.

        `now_ns` may lie before the last one's: decisions are not counted up in the order in
        which they were made.
        """
        if now_ns < self._ended_ns:
            self._nodes, self._names, self._ended_ns = None, [], 0
            self._codes.clear()
        if nodes is not self._nodes:
            self._follow(nodes, judge)
            self._nodes = nodes
        if now_ns >= self._soonest_ns:
            self._end_leases(now_ns, judge)

    def _follow(self, nodes: Mapping[str, NodeView], judge: Callable[[NodeView], Code]) -> None:
        names, views = list(nodes), list(nodes.values())
        if names == self._names:
            changed = list(compress(views, map(is_not, views, self._views)))
        else:
            self._codes.clear()
            changed = views
        self._names, self._views = names, views
        for view in changed:
            self._codes[view.name] = _BYTE[judge(view)]
        ends = (view.acceptance.fresh_until_ns for view in changed if view.acceptance)
        self._soonest_ns = min(self._soonest_ns, min(ends, default=self._soonest_ns))

    def _end_leases(self, now_ns: int, judge: Callable[[NodeView], Code]) -> None:
        soonest = None
        for view in self._views:
            if view.acceptance is None:
                continue
            ends = view.acceptance.fresh_until_ns
            if ends <= now_ns:
                self._codes[view.name] = _BYTE[judge(view)]
                self._ended_ns = max(self._ended_ns, ends)
            elif soonest is None or ends < soonest:
                soonest = ends
        self._soonest_ns = now_ns + _LOOK_NS if soonest is None else soonest


# --- memory
# What was worked out before and still holds, so that a filter call need not do it again.
#
# Never decides anything: an entry counts only for the very view of a node, requirements and
# policy that it was made from. Not thread-safe.

_MAX_QUESTIONS = 16
_KEPT_NS = 60_000_000_000
"""How long a question is remembered that nobody repeats: its verdicts hold on to evidence of
the whole fleet, which is replaced every round and must not pile up."""


class PlacementMemory:
    """Device pools per node, and verdicts per question and node."""

    __slots__ = ("_pools", "_verdicts")

    def __init__(self) -> None:
        self._pools: dict[str, DevicePool] = {}
        self._verdicts: dict[Hashable, tuple[int, Verdicts]] = {}
        """With the time of the last question, oldest first."""

    def pool(self, node: str, acceptance: Acceptance) -> DevicePool:
        """The devices of a node's acceptance."""
        pool = self._pools.get(node)
        if pool is None or pool.acceptance is not acceptance:
            pool = self._pools[node] = DevicePool(acceptance, pool)
        return pool

    def verdicts(self, question: Hashable, now_ns: int) -> Verdicts:
        """Verdicts by node for one question; what was not asked for longest is forgotten first.

        `now_ns` is CLOCK_BOOTTIME.
        """
        _, found = self._verdicts.pop(question, (0, Verdicts()))
        for old, (asked_ns, _) in tuple(self._verdicts.items()):
            if len(self._verdicts) < _MAX_QUESTIONS and now_ns - asked_ns < _KEPT_NS:
                break
            del self._verdicts[old]
        self._verdicts[question] = (now_ns, found)
        return found

    def forget_all_but(self, nodes: Mapping[str, object]) -> None:
        """Drop what is about nodes that are gone, once it is much."""
        if len(self._pools) > 2 * len(nodes) + 64:
            self._pools = {name: pool for name, pool in self._pools.items() if name in nodes}
            self._verdicts.clear()


# --- static hashes
# The seeds' static map from node to hash: a named, insecure stand-in for evidence.
#
# Anybody who can edit the controller's environment decides what it says, so it needs
# `--insecure-static-hashes`, its nodes are of level `none`, and it can never say a hash
# that evidence could have. It is asked only about nodes that have shown no evidence
# at all. Pure.

_MAX_NODES = 100_000
VARIABLE: Final = "BGS_NODE_HASH_MAP"


class StaticHashesError(ValueError):
    """The map is malformed; names the variable, the value and what was expected."""


class InsecureStaticHashes:
    """Node names with the opaque hashes that an operator assigned to them."""

    __slots__ = ("_by_hash", "hashes")

    def __init__(self, hashes: Mapping[str, object]) -> None:
        """Take the map; raises StaticHashesError for a name or hash that cannot be one."""
        if len(hashes) > _MAX_NODES:
            raise StaticHashesError(
                f"{VARIABLE}: {len(hashes)} nodes, expected at most {_MAX_NODES}"
            )
        checked = {node: _checked(node, text) for node, text in hashes.items()}
        self.hashes: Mapping[str, str] = MappingProxyType(checked)
        by_hash: dict[str, set[str]] = {}
        for node, text in checked.items():
            by_hash.setdefault(text, set()).add(node)
        self._by_hash = {text: frozenset(nodes) for text, nodes in by_hash.items()}

    def __bool__(self) -> bool:
        return bool(self.hashes)

    @classmethod
    def from_json(cls, text: str) -> "InsecureStaticHashes":
        """Read the JSON object in `BGS_NODE_HASH_MAP`; raises StaticHashesError."""
        try:
            found = json.loads(text, object_pairs_hook=_once)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise StaticHashesError(
                f"{VARIABLE}: {text[:80]!r}, expected a JSON object of node names to hashes"
            )
        return cls(found)

    def matches(self, node: str, hashes: Iterable[str]) -> bool:
        """Whether the node's hash is one of `hashes`: exact, in constant time per comparison."""
        own = self.hashes.get(node)
        return own is not None and _is_one_of(own, hashes)

    def nodes_with(self, hashes: Iterable[str]) -> frozenset[str]:
        """Every node whose hash is one of `hashes`."""
        wanted = tuple(hashes)
        matching = [nodes for own, nodes in self._by_hash.items() if _is_one_of(own, wanted)]
        return frozenset().union(*matching)


def _is_one_of(own: str, hashes: Iterable[str]) -> bool:
    """Compare with every one, so that the time does not tell which it was."""
    found = False
    for wanted in hashes:
        found |= hmac.compare_digest(own.encode(), wanted.encode())
    return found


def _checked(node: str, text: object) -> str:
    if not is_node_name(node):
        raise StaticHashesError(
            f"{VARIABLE}: node {node[:80]!r}, expected a node name (RFC 1123 subdomain)"
        )
    if not isinstance(text, str) or not is_opaque_hash(text):
        raise StaticHashesError(
            f"{VARIABLE}: {str(text)[:80]!r} for node {node}, expected a string of 1 to 253"
            " printable ASCII characters without commas or blanks at its ends"
        )
    if is_attestation_hash(text):
        raise StaticHashesError(
            f"{VARIABLE}: {text[:80]!r} for node {node}, expected an opaque string: only"
            " evidence can have a v1:sha256 hash"
        )
    return text


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a node is repeated")
    return dict(pairs)


NO_STATIC_HASHES: Final = InsecureStaticHashes({})


# --- scene
# What one placement decision is made against: snapshots, policy and the moment. Pure.


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


# --- scenes
# Makes the scene of each decision from what stands in memory at that moment.


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
