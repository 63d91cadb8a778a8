"""What the SPIRE server said at one moment, as an immutable value. Judges nothing.

Times are the controller's CLOCK_BOOTTIME: whoever takes the snapshot converts the
server's dates, so that no step of a wall clock can move what was taken already.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

from controller.fleet.directory import FOREVER_NS

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class SpireAgent:
    """An attested SPIRE agent."""

    agent_id: str
    """Its SPIFFE ID."""
    attestor: str
    """How it attested: `k8s_psat`, `x509pop`, `join_token`, …"""
    serial: str
    """Of its SVID, decimal; another after each renewal. Empty while banned."""
    expires_ns: int
    banned: bool
    selectors: frozenset[str]
    """`type:value`: what the node attestor found out about the node."""


@dataclass(frozen=True, slots=True)
class SpireEntry:
    """A registration entry."""

    entry_id: str
    parent_id: str
    """SPIFFE ID of the SPIRE agent that hands the SVIDs out, or of an alias."""
    selectors: frozenset[str]
    """`type:value`: a workload must have all of them."""
    admin: bool = False
    downstream: bool = False
    expires_ns: int = FOREVER_NS


Entries = Mapping[str, tuple[SpireEntry, ...]]
"""SPIFFE ID -> its registration entries, none empty."""


@dataclass(frozen=True, slots=True)
class SpireSnapshot:
    """Agents and entries; each as old as the moment at which the server was asked for them."""

    agents: Mapping[str, SpireAgent]
    """By SPIFFE ID."""
    agents_ns: int
    entries: Entries
    """Of our own SPIFFE IDs only, those below the path prefix."""
    entries_ns: int

    def with_answer(
        self,
        entries: Mapping[str, tuple[SpireEntry, ...]],
        agents: Mapping[str, SpireAgent | None],
    ) -> "SpireSnapshot":
        """The snapshot corrected by newer answers about single IDs; no fresher as a whole."""
        return replace(
            self,
            entries=_merged(self.entries, {k: v or None for k, v in entries.items()}.items()),
            agents=_merged(self.agents, agents.items()),
        )


def _merged(known: Mapping[str, V], news: Iterable[tuple[str, V | None]]) -> Mapping[str, V]:
    after = dict(known)
    for key, value in news:
        if value is None:
            after.pop(key, None)
        else:
            after[key] = value
    return MappingProxyType(after)
