"""Which nodes exist, by what the Verifier asks in step 6: the cluster's Node objects.

A directory can only narrow: a node that it does not list is refused, one that it lists is not
trusted for it. Stand-ins for development live outside the product.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol

FOREVER_NS: Final = 2**63 - 1
"""`fresh_until_ns` of a source that cannot go stale."""
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint that keeps pods away which do not tolerate it: NoSchedule or NoExecute."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class KnownNode:
    """A node of the directory; the UID is None where the directory has none."""

    uid: str | None = None
    managed: bool = False
    """It has the taint `gpuwarden.dev/managed:NoExecute`: kubelet rejects what lacks our
    toleration."""
    map_name: str | None = None
    """How maps may call it besides its name (label `gpu-node-name`)."""
    hints: frozenset[str] = frozenset()
    """Hint labels that it has (`kube.node_hints`)."""
    labels: Mapping[str, str] = field(default_factory=lambda: _NOTHING, hash=False)
    """What a pod's selectors mean; like the taints no matter of trust."""
    taints: tuple[Taint, ...] = ()
    provider_id: str | None = None
    """The machine behind it, as the cloud or an administrator says; exported, never trusted."""


@dataclass(frozen=True, slots=True)
class DirectorySnapshot:
    """The directory at one moment."""

    nodes: Mapping[str, KnownNode]
    fresh_until_ns: int = FOREVER_NS
    """Controller CLOCK_BOOTTIME from which the snapshot is too old to accept anybody by."""
    map_names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Node by `map_name`, where only one has it."""


EMPTY_DIRECTORY: Final = DirectorySnapshot(MappingProxyType({}))


class NodeDirectory(Protocol):
    """Supplies the nodes that exist."""

    def snapshot(self) -> DirectorySnapshot:
        """What is known now; must not wait."""

    def warning(self) -> str | None:
        """A standing warning to be shown with every answer, None for a real directory."""
