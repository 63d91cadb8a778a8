"""A list of node names in place of the cluster's Node objects, for a laptop without Kubernetes.

Insecure because nobody confirms that the nodes exist, and that they have the UID that the
list may give them (`NAME=UID`); without one a node that was deleted and made again cannot be
told from the old one. Whoever starts the controller passes it in. Its warning is in
readiness and in every answer.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from controller.fleet.directory import DirectorySnapshot, KnownNode
from gpuwarden.identity.spiffe_id import is_node_name

ANY: Final = "*"


class _AnyNode(Mapping[str, KnownNode]):
    """Knows every node name there can be, and lists none."""

    def __getitem__(self, name: str) -> KnownNode:
        if not is_node_name(name):
            raise KeyError(name)
        return KnownNode()

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class InsecureStaticNodes:
    """Knows the given names, `NAME` or `NAME=UID`, or with `*` any name; raises ValueError."""

    def __init__(self, names: Iterable[str]) -> None:
        listed = dict(_entry(name) for name in names)
        self._shown = ", ".join(listed) or "none"
        nodes: Mapping[str, KnownNode] = _AnyNode() if ANY in listed else listed
        self._snapshot = DirectorySnapshot(nodes)

    def snapshot(self) -> DirectorySnapshot:
        """The same nodes every time."""
        return self._snapshot

    def warning(self) -> str:
        """The warning that readiness and every answer carry."""
        return (
            "InsecureStaticNodes: nodes come from a list and are not checked against a cluster "
            f"({self._shown}); never use this in production"
        )


def _entry(text: str) -> tuple[str, KnownNode]:
    name, _, uid = text.partition("=")
    if name != ANY and not is_node_name(name):
        raise ValueError(f"node name {name!r}: an RFC 1123 subdomain or * is expected")
    return name, KnownNode(uid or None)
