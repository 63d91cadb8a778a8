"""Carries out what a new snapshot takes away, without waiting for the next evidence.

Each node that is trusted now is judged again by steps 7 to 9; a refusal that revokes ends
its trust and its streams. One that is transient is left to the node's next evidence.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from controller.fleet.directory import NodeDirectory
from controller.fleet.view import FleetSnapshot
from controller.policy import Policy
from controller.verifier.result import Refused, refused
from controller.verifier.seams import SpireFacts, SpireQuestion
from gpuwarden.identity.spiffe_id import agent_id
from gpuwarden.reasons import Effect, Refusal

SLICE: Final = 200
"""Nodes judged before others get their turn: about a millisecond."""


class Fleet(Protocol):
    """The nodes that are trusted."""

    def snapshot(self) -> FleetSnapshot:
        """The fleet now."""


class Refuser(Protocol):
    """Carries a refusal out: registry, audit, metrics."""

    async def refuse(self, refusal: Refused, peer: str, /) -> None:
        """Trust is gone when this returns."""


class OpenStreams(Protocol):
    """The open streams."""

    def end_node(self, node: str, refusal: Refusal, /) -> None:
        """End every stream of a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation:
    """One for the process."""

    trust_domain: str
    path_prefix: str
    spire: SpireFacts
    fleet: Fleet
    directory: NodeDirectory
    policy: Callable[[], Policy]
    boottime_ns: Callable[[], int]
    refuser: Refuser
    streams: OpenStreams

    async def carry_out(self) -> None:
        """Judge every node that is trusted now."""
        for number, (name, view) in enumerate(self.fleet.snapshot().nodes.items(), 1):
            if view.acceptance is not None and view.blocked is None:
                await self._judge(name)
            if number % SLICE == 0:
                await asyncio.sleep(0)

    async def _judge(self, name: str) -> None:
        node = self.directory.snapshot().nodes.get(name)
        if node is None:
            return  # step 6 refuses it
        peer = agent_id(self.trust_domain, self.path_prefix, name)
        question = SpireQuestion(peer, name, node, self.policy(), self.boottime_ns())
        refusal = self._refusal(question)
        if refusal is None:
            return
        found = refused(refusal, name)
        if found.effect is Effect.TRANSIENT:
            return
        await self.refuser.refuse(found, str(peer))
        self.streams.end_node(name, refusal)

    def _refusal(self, question: SpireQuestion) -> Refusal | None:
        if refusal := self.spire.entry(question):
            return refusal
        found = self.spire.agent(question)
        return found if isinstance(found, Refusal) else self.spire.image(question)
