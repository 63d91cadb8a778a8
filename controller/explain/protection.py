"""Finds the pods that the taint of managed nodes would evict, for who is about to set it.

Must not decide which nodes are to have the taint.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from controller.admission.eviction import EvictedPod, Evictions
from controller.binding.request import PodsUnavailableError
from controller.fleet.directory import DirectorySnapshot
from controller.fleet.view import FleetSnapshot
from gpuwarden.reasons import ReasonCode, Refusal

NO_AGENTS: Final = "no agent has spoken for a node yet: name a node"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectionQuery:
    """Asks about one node or all of the fleet; used from one event loop."""

    pods: Callable[[Collection[str]], tuple[EvictedPod, ...]]
    """Those on these nodes; may take a while. Raises PodsUnavailableError."""
    directory: Callable[[], DirectorySnapshot]
    fleet: Callable[[], FleetSnapshot]

    async def about(self, node: str) -> Evictions | Refusal:
        """On this node of the cluster, on all that agents have spoken for where it is empty."""
        known = self.directory().nodes
        if node and node not in known:
            return Refusal(ReasonCode.NODE_UNKNOWN, f"the cluster has no node {node}")
        nodes = {node} if node else self.fleet().nodes.keys() & known.keys()
        if not nodes:
            return Refusal(ReasonCode.NODE_UNKNOWN, NO_AGENTS)
        try:
            found = await asyncio.to_thread(self.pods, nodes)
        except PodsUnavailableError as error:
            return Refusal(ReasonCode.CONTROLLER_NOT_READY, str(error))
        return Evictions(len(nodes), found)
