"""What we rely on of a SPIRE server's read API; run against our fake and against a real one."""

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import pytest

from controller.spire.client import (
    CallLimits,
    SpireFailure,
    SpireServerClient,
    SpireServerError,
    connected,
)
from gpuwarden.clock import SystemClock, moment_of
from gpuwarden.identity.spiffe_id import parse_spiffe_id
from gpuwarden.identity.svid import Svid
from gpuwarden.moment import Moment
from gpuwarden.settings.values import Address


def moment() -> Moment:
    clock = SystemClock()
    return moment_of(clock)


@dataclass(frozen=True)
class Registered:
    """What stands on the server before a test: one node's agent, and our agent's entry under it."""

    agent_id: str
    attestor: str
    selector: str
    """One of the agent's, of those that name its node."""
    peer: str
    """SPIFFE ID of our agent."""
    entry_selector: str


class SpireServerContract(ABC):
    """Subclasses supply a server. `reader` may read, `stranger` is another SVID of the domain."""

    address: Address
    reader: Svid
    stranger: Svid
    registered: Registered

    @abstractmethod
    async def ban(self) -> None:
        """Ban the registered agent."""

    @abstractmethod
    async def evict(self) -> None:
        """Evict it; it stays away."""

    def client(
        self, svid: Svid | None = None, **limits: int
    ) -> AbstractAsyncContextManager[SpireServerClient]:
        return connected(svid or self.reader, self.address, CallLimits(**limits))

    async def test_the_agent_is_listed_and_found_by_its_id(self) -> None:
        now = moment()
        async with self.client() as client:
            listed = await client.agents(now)
            found = await client.agent(self.registered.agent_id, now)
        agent = listed[self.registered.agent_id]
        assert found == agent
        assert agent.attestor == self.registered.attestor
        assert self.registered.selector in agent.selectors
        assert agent.serial
        assert not agent.banned
        assert agent.expires_ns > now.boottime_ns

    async def test_an_agent_that_is_not_there_is_none(self) -> None:
        async with self.client() as client:
            missing = f"{self.registered.agent_id}-not-there"
            assert await client.agent(missing, moment()) is None
            assert await client.agent("no SPIFFE ID", moment()) is None

    async def test_entries_are_listed_by_beginning_and_found_by_identity(self) -> None:
        peer = parse_spiffe_id(self.registered.peer)
        beginning = self.registered.peer.rpartition("/")[0] + "/"
        async with self.client() as client:
            listed = await client.entries(beginning, moment())
            found = await client.entries_of(peer, moment())
            assert await client.entries("spiffe://elsewhere/", moment()) == {}
        assert all(x.startswith(beginning) for x in listed)
        assert listed[self.registered.peer] == found
        (entry,) = found
        assert entry.entry_id
        assert entry.parent_id == self.registered.agent_id
        assert self.registered.entry_selector in entry.selectors
        assert (entry.admin, entry.downstream) == (False, False)

    async def test_small_pages_are_the_whole(self) -> None:
        async with self.client() as client, self.client(page_size=1) as paged:
            now = moment()
            assert await paged.agents(now) == await client.agents(now)
            assert await paged.entries("spiffe://", now) == await client.entries("spiffe://", now)

    async def test_a_reader_may_do_no_more(self) -> None:
        async with self.client() as client:
            assert not await client.may_do_more()

    async def test_another_workload_of_the_trust_domain_may_not_read(self) -> None:
        async with self.client(self.stranger) as client:
            for call in (
                client.agents(moment()),
                client.entries("spiffe://", moment()),
                client.agent(self.registered.agent_id, moment()),
            ):
                with pytest.raises(SpireServerError) as error:
                    await call
                assert error.value.failure is SpireFailure.DENIED
                assert "deploy/spire" in str(error.value)

    async def test_a_ban_shows_at_once_and_an_evicted_agent_is_gone(self) -> None:
        agent_id = self.registered.agent_id
        async with self.client() as client:
            await self.ban()
            assert (await client.agents(moment()))[agent_id].banned
            found = await client.agent(agent_id, moment())
            assert found is not None
            assert found.banned
            await self.evict()
            assert agent_id not in await client.agents(moment())
            assert await client.agent(agent_id, moment()) is None
