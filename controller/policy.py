"""Cluster policy as values: acceptable classes, levels and versions, and names for things.

The model only; `controller/policies/file.py` decodes it. A policy narrows: nothing
in it makes a node trusted. No IO, no clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final


class Level(StrEnum):
    """Evidence level (architecture, section 8); `none` is for static hashes and evaluations."""

    NONE = "none"
    L0 = "L0"
    L1 = "L1"
    L2 = "L2"
    L3 = "L3"

    @property
    def rank(self) -> int:
        """Position from weakest to strongest, for comparisons."""
        return _RANKS[self]

    @property
    def demanded(self) -> "Level":
        """What it demands as the least level of a policy or class, where L0 is the default.

        Evidence has L0 at least, except in an evaluation, where `none` is all that there is.
        """
        return Level.NONE if self is Level.L0 else self


_RANKS: Final = {level: rank for rank, level in enumerate(Level)}


def highest(*levels: Level) -> Level:
    """The strictest of some demanded levels."""
    return max(levels, key=_RANKS.__getitem__)


class NodeMode(StrEnum):
    """Who gives a pod its device (placement, section 6)."""

    ENV = "env"
    PLUGIN = "plugin"
    PER_GPU = "per-gpu"
    DRA = "dra"


@dataclass(frozen=True, slots=True)
class ClassHash:
    """A hash with the time during which a class accepts it (UTC; None = open)."""

    attestation_hash: str
    not_before: datetime | None = None
    not_after: datetime | None = None

    def holds(self, now: datetime) -> bool:
        """Whether the hash counts at `now`; `not_after` itself no longer does."""
        return (self.not_before is None or self.not_before <= now) and (
            self.not_after is None or now < self.not_after
        )


@dataclass(frozen=True, slots=True)
class AttestationClass:
    """A named set of acceptable hashes, so that a driver upgrade can roll through a fleet."""

    name: str
    hashes: tuple[ClassHash, ...]
    min_level: Level = Level.L0


@dataclass(frozen=True, slots=True)
class AttestorRules:
    """What is demanded of nodes whose SPIRE agent attested in one way (level L1)."""

    selectors: tuple[str, ...] | None = None
    """What each registration entry of our agent must have: `type:value`, or the beginning of
    one up to a colon. None = what the attestor demands by default."""
    images: frozenset[str] | None = None
    """Image digests (`sha256:<hex>`) that our agent may have; None = any."""


class MigStrategy(StrEnum):
    """What NVIDIA's device plugin makes of GPUs that are split by MIG (its `migStrategy`)."""

    NONE = "none"
    """It offers them like whole ones: kubelet may give a pod one that cannot be used as such."""
    SINGLE = "single"
    """On a node where all are split alike it offers their parts, under the name of whole ones."""
    MIXED = "mixed"
    """It offers their parts, under names of their own."""


@dataclass(frozen=True, slots=True)
class NodePool:
    """Nodes whose names match a pattern (`fnmatch`), their mode and what enrolment demands."""

    pattern: str
    mode: NodeMode | None = None
    uuids: frozenset[str] = frozenset()
    serials: frozenset[str] = frozenset()
    honours_variable: bool = False
    """Whether the container runtime of these nodes is known to give a container the devices of
    `NVIDIA_VISIBLE_DEVICES` and no others."""
    mig_strategy: MigStrategy | None = None
    """None: by what the node shows, as `mixed` where it has whole GPUs, else as `single`."""


class Consequence(StrEnum):
    """How long an XID takes its GPU away."""

    NONE = "none"
    """Not at all: an application's own fault, or for information."""
    PROCESS = "process"
    """Until the processes that were on the GPU have ended: the error is contained in them."""
    RESET = "reset"
    """Until the GPU was reset or the node was booted again."""


_OF_THE_APPLICATION: Final = (11, 13, 25, 31, 32, 43, 45, 68, 69, 80)
_FOR_INFORMATION: Final = (14, 37, 38, 44, 63, 66, 67, 92, 93, 106, 107, 121, 137, 141)
_FOR_INFORMATION_TOO: Final = (152, 153, 154, 157, 161)
_CONTAINED: Final = (8, *range(39, 42), 60, *range(70, 73), *range(75, 78), *range(82, 87), 88, 89)
_CONTAINED_TOO: Final = (94, *range(96, 106), *range(126, 136), 139)

XID_CONSEQUENCES: Final[Mapping[int, Consequence]] = MappingProxyType(
    {
        **dict.fromkeys(_OF_THE_APPLICATION, Consequence.NONE),
        **dict.fromkeys((*_FOR_INFORMATION, *_FOR_INFORMATION_TOO), Consequence.NONE),
        **dict.fromkeys((*_CONTAINED, *_CONTAINED_TOO), Consequence.PROCESS),
    }
)
"""By the actions in NVIDIA's Xid catalog, as NVSentinel ships it (`xiderrorsmapping.csv`).

To ignore it, or to look at the application, is `none`; to restart the application for another
cause is `process`. 154 only says what another XID has led to. Every other XID, known or not, is
`reset`, those that NVIDIA only wants reported too."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Everything an operator may demand of evidence and of pods. The default demands nothing."""

    classes: Mapping[str, AttestationClass] = field(default_factory=lambda: MappingProxyType({}))
    allowed_hashes: frozenset[str] | None = None
    """Class hashes that the cluster accepts at all; None = any."""
    min_level: Level = Level.L0
    allowed_drivers: frozenset[str] | None = None
    denied_drivers: frozenset[str] = frozenset()
    allowed_vbios: frozenset[str] | None = None
    denied_vbios: frozenset[str] = frozenset()
    attestors: Mapping[str, AttestorRules] | None = None
    """Node attestors of SPIRE that count; None = every one that names its node."""
    denied_keys: frozenset[str] = frozenset()
    """GPU UUIDs, serials or identity keys that may not be used (GPU_DENIED)."""
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Label -> selector text, for label requirements."""
    pools: tuple[NodePool, ...] = ()
    """First match wins."""
    default_mode: NodeMode = NodeMode.PLUGIN
    """A stock device plugin unless declared otherwise: `env` is never assumed."""
    processes_count_as_use: bool = True
    """Whether a GPU on which the last evidence saw a process is in use, reserved or not."""
    evicts_mismatched: bool = False
    """Whether pods are evicted that have a GPU which is not what they were promised."""
    xids: Mapping[int, Consequence] = field(default_factory=lambda: MappingProxyType({}))
    """XIDs that have another consequence here than by default."""
    hint_weight: int = 0
    """How much of a node's score is the GPU type that a hint chose, in percent."""
    digest: str = ""
    """SHA-256 of the file's bytes, for audit; empty for the default policy."""

    def pool(self, node: str) -> NodePool | None:
        """The pool of a node: the first whose pattern matches its name."""
        return next((x for x in self.pools if fnmatchcase(node, x.pattern)), None)

    def mode(self, node: str) -> NodeMode:
        """The declared mode of a node."""
        pool = self.pool(node)
        return self.default_mode if pool is None or pool.mode is None else pool.mode

    def consequence(self, xid: int) -> Consequence:
        """How long this XID takes its GPU away."""
        return self.xids.get(xid) or XID_CONSEQUENCES.get(xid, Consequence.RESET)

    @property
    def modes(self) -> frozenset[NodeMode]:
        """The modes that nodes can have by declaration, at most."""
        declared = {x.mode or self.default_mode for x in self.pools}
        is_all_named = any(x.pattern == "*" for x in self.pools)
        return frozenset(declared if is_all_named else {*declared, self.default_mode})

    def honours_variable(self, node: str) -> bool:
        """Whether that is declared of the node."""
        pool = self.pool(node)
        return pool is not None and pool.honours_variable

    def offers_split_gpus(self, node: str) -> bool:
        """Whether the node's device plugin is declared to give split GPUs away as whole ones."""
        pool = self.pool(node)
        return pool is not None and pool.mig_strategy is MigStrategy.NONE


DEFAULT_POLICY = Policy()
