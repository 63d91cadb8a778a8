"""A poller of the SPIRE server with everything around it, answered from memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from controller.spire.client import SpireFailure, SpireServerClient
from controller.spire.poller import (
    LISTING_S,
    SpirePoller,
)
from controller.spire.snapshot import Entries, SpireAgent, SpireEntry, SpireSnapshot
from gpuwarden.identity.spiffe_id import SpiffeId
from gpuwarden.identity.svid import Svid
from gpuwarden.moment import Moment
from tests.builders.ca import SpiffeCa
from tests.builders.spire import (
    CONTROLLER,
    PARENT,
    PEER,
    TD,
    spire_agent,
    spire_entry,
)
from tests.builders.svids import FakeSvidSource
from tests.fakes.clock import FakeClock

OURS = f"spiffe://{TD}/gpuwarden/"


@dataclass
class PolledServer(SpireServerClient):
    """Answers from what a test puts into it; every call takes `takes_s` of the fake clock."""

    clock: FakeClock
    known_agents: dict[str, SpireAgent] = field(default_factory=dict)
    known_entries: dict[str, tuple[SpireEntry, ...]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    error: Exception | None = None
    admin: bool = False
    entries_take_s: float = 0.0
    hangs: bool = False

    async def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error

    async def agents(self, moment: Moment) -> dict[str, SpireAgent]:
        del moment
        await self._called("agents")
        return dict(self.known_agents)

    async def entries(self, beginning: str, moment: Moment) -> Entries:
        del moment
        assert beginning == OURS
        await self._called("entries")
        self.clock.advance(self.entries_take_s)
        return dict(self.known_entries)

    async def entries_of(self, spiffe_id: SpiffeId, moment: Moment) -> tuple[SpireEntry, ...]:
        del moment
        await self._called(f"entries of {spiffe_id}")
        return self.known_entries.get(str(spiffe_id), ())

    async def agent(self, agent_id: str, moment: Moment) -> SpireAgent | None:
        del moment
        await self._called(f"agent {agent_id}")
        return self.known_agents.get(agent_id)

    async def may_do_more(self) -> bool:
        await self._called("may do more")
        return self.admin


@dataclass
class PollRecord:
    """What the poller reported."""

    seen: list[Any] = field(default_factory=list)

    def taken(self, before: SpireSnapshot | None, after: SpireSnapshot, seconds: float) -> None:
        assert seconds >= 0
        self.seen.append((before, after))

    def failed(self, failure: SpireFailure, text: str) -> None:
        assert text.startswith(failure)
        self.seen.append(failure)

    def excessive(self) -> None:
        self.seen.append("excessive")


class PollBench:
    """The poller, its server and its record."""

    def __init__(self, poll_s: float = 10.0, listing_s: float = LISTING_S) -> None:
        self.clock = FakeClock()
        self.server = PolledServer(self.clock, {PARENT: spire_agent()}, {PEER: (spire_entry(),)})
        self.ca = SpiffeCa()
        self.svids = FakeSvidSource(self.ca.svid(CONTROLLER))
        self.observer = PollRecord()
        self.dialed: list[int] = []
        self.closed: list[int] = []
        self.jitter = 0.0
        self.poller = SpirePoller(
            self._dial,
            svids=self.svids,
            moment=self.clock.now,
            jitter=lambda: self.jitter,
            observer=self.observer,
            beginning=OURS,
            poll_s=poll_s,
            listing_s=listing_s,
        )

    @asynccontextmanager
    async def _dial(self, svid: Svid) -> AsyncIterator[PolledServer]:
        self.dialed.append(svid.generation)
        try:
            yield self.server
        finally:
            self.closed.append(svid.generation)

    @property
    def snapshot(self) -> SpireSnapshot:
        assert self.poller.snapshot is not None
        return self.poller.snapshot
