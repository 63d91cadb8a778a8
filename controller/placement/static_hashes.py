"""The seeds' static map from node to hash: a named, insecure stand-in for evidence.

Anybody who can edit the controller's environment decides what it says. So it needs
`--insecure-static-hashes`, its nodes are of level `none`, and it can never name a hash that
evidence could have. It is asked only about nodes that have shown no evidence at all.
"""

import hmac
import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from gpuwarden.identity.spiffe_id import is_node_name
from gpuwarden.policy.texts import is_attestation_hash, is_opaque_hash

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
