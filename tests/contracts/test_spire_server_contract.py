"""Our fake SPIRE server keeps the contract that the real one keeps."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from controller.spire.client import CallLimits, SpireFailure, SpireServerError, connected
from gpuwarden.identity.spiffe_id import parse_spiffe_id
from gpuwarden.settings.values import Address
from sandbox.spiffe.ca import InsecureCa
from sandbox.spiffe.spire_server import (
    EVERYTHING,
    READ,
    AgentRecord,
    EntryRecord,
    InsecureSpireServer,
)
from tests.builders.spire import CONTROLLER, PEER, TD, UID
from tests.builders.svids import new_svid
from tests.contracts.spire_server import Registered, SpireServerContract, moment

PATH = f"/spire/agent/k8s_psat/prod/{UID}"
NODE_SELECTORS = ("k8s_psat:agent_node_name:gpu-1", f"k8s_psat:agent_node_uid:{UID}")


def fake(ca: InsecureCa) -> InsecureSpireServer:
    own = f"spiffe://{TD}"
    return InsecureSpireServer(
        ca,
        {CONTROLLER: READ},
        agents=[
            AgentRecord(PATH, selectors=(*NODE_SELECTORS, "k8s_psat:cluster:prod")),
            *(AgentRecord(f"/spire/agent/join_token/{n}", "join_token") for n in range(4)),
        ],
        entries=[EntryRecord(f"/ns/team-{n}/sa/default", PATH, ("k8s:ns:team",)) for n in range(4)]
        + [EntryRecord(PEER.removeprefix(own), PATH)],
    )


class TestInsecureSpireServer(SpireServerContract):
    @pytest.fixture(autouse=True)
    async def _served(self) -> AsyncIterator[None]:
        ca = InsecureCa(TD)
        async with fake(ca) as self.fake:
            self.address = Address("127.0.0.1", self.fake.port)
            self.reader = new_svid(ca, CONTROLLER)
            self.stranger = new_svid(ca, PEER)
            self.registered = Registered(
                f"spiffe://{TD}{PATH}", "k8s_psat", NODE_SELECTORS[0], PEER, "k8s:ns:gpuwarden"
            )
            yield

    async def ban(self) -> None:
        self.fake.ban(PATH)

    async def evict(self) -> None:
        self.fake.evict(PATH)


class TestBeyondTheContract:
    """What a real server is not asked to do wrong."""

    @pytest.fixture(autouse=True)
    async def _served(self) -> AsyncIterator[None]:
        self.ca = InsecureCa(TD)
        self.fake = fake(self.ca)
        async with AsyncExitStack() as self.stack:
            await self.stack.enter_async_context(self.fake)
            yield

    async def failure(self, **limits: float) -> SpireFailure:
        async with connected(
            new_svid(self.ca, CONTROLLER),
            Address("127.0.0.1", self.fake.port),
            CallLimits(**limits),  # type: ignore[arg-type] # numbers of either kind
        ) as client:
            with pytest.raises(SpireServerError) as error:
                await client.entries(f"spiffe://{TD}/gpuwarden/", moment())
            with pytest.raises(SpireServerError) as same:
                await client.agents(moment())
        assert error.value.failure is same.value.failure
        self.text = str(error.value)
        return error.value.failure

    async def test_admin_is_seen(self) -> None:
        self.fake.allowed = {CONTROLLER: EVERYTHING}
        svid = new_svid(self.ca, CONTROLLER)
        async with connected(svid, Address("127.0.0.1", self.fake.port)) as client:
            assert await client.may_do_more()
            await self.fake.stop()
            with pytest.raises(SpireServerError):
                await client.may_do_more()
            with pytest.raises(SpireServerError):
                await client.agent(f"spiffe://{TD}{PATH}", moment())

    async def test_pages_that_do_not_end(self) -> None:
        self.fake.endless = True
        assert await self.failure() is SpireFailure.UNUSABLE

    async def test_more_records_than_we_hold(self) -> None:
        assert await self.failure(agents=4, entries=4) is SpireFailure.UNUSABLE
        assert "more than 4 entries" in self.text

    async def test_more_records_of_ours_than_we_hold(self) -> None:
        assert await self.failure(agents=4, own_entries=0) is SpireFailure.UNUSABLE
        assert "more than 0 entries of ours" in self.text

    async def test_a_slow_server(self) -> None:
        self.fake.delay_s = 5.0
        assert await self.failure(call_s=0.2) is SpireFailure.SLOW

    async def test_a_server_that_is_not_there(self) -> None:
        await self.fake.stop()
        assert await self.failure() is SpireFailure.UNREACHABLE

    async def test_another_workload_of_the_trust_domain(self) -> None:
        """Whoever sits at the address must be the SPIRE server, not just one of the domain."""
        await self.fake.stop()
        self.fake = replace(fake(self.ca), identity="/spire/agent/x")
        await self.stack.enter_async_context(self.fake)
        assert await self.failure() is SpireFailure.UNREACHABLE
        assert "wrong-identity" in self.text

    async def test_a_server_of_another_authority(self) -> None:
        self.ca = InsecureCa(TD)
        assert await self.failure() is SpireFailure.UNREACHABLE
        assert "untrusted" in self.text

    async def test_connections_of_a_bounded_age_are_renewed_without_a_failure(self) -> None:
        await self.fake.stop()
        self.fake = replace(fake(self.ca), connection_age_ms=100)
        await self.stack.enter_async_context(self.fake)
        svid = new_svid(self.ca, CONTROLLER)
        async with connected(svid, Address("127.0.0.1", self.fake.port)) as client:
            for _ in range(600):
                assert len(await client.agents(moment())) == 5

    async def test_too_many_entries_of_one_identity_are_no_answer(self) -> None:
        svid = new_svid(self.ca, CONTROLLER)
        address = Address("127.0.0.1", self.fake.port)
        async with connected(svid, address, CallLimits(page_size=1)) as client:
            with pytest.raises(SpireServerError, match="more than 0 entries of one identity"):
                await client.entries_of(parse_spiffe_id(PEER), moment())
