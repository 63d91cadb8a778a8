"""The real SPIRE server: it keeps the contract, and deploy/spire's policy lets us read only."""

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpuwarden.identity.spiffe_id import SpiffeId, parse_spiffe_id
from gpuwarden.identity.svid import OfferRefusedError, Svid, appraise, exactly
from gpuwarden.identity.tunnel import Tunnel
from gpuwarden.identity.workload_api import SpiffeWorkloadApi, WorkloadApiError
from gpuwarden.settings.values import Address
from tests.contracts.spire_server import Registered, SpireServerContract
from tests.e2e.lab.cache import cache_folder
from tests.e2e.lab.selection import why_no_spire
from tests.e2e.lab.spire_agent import SpireAgent
from tests.e2e.lab.spire_server import TRUST_DOMAIN
from tests.e2e.lab.upstreams import least_go, upstream
from tests.e2e.lab.waiting import until
from tests.e2e.spire_world import CONTROLLER, HOME, SELECTOR, SpireWorld, agent_id
from tests.go_toolchain import find_go
from tests.spire_policy import TABLE, differences

pytestmark = pytest.mark.skipif(
    bool(why_no_spire()), reason=f"no SPIRE: {'; '.join(why_no_spire())}"
)
NODE = "gpu-0"
REFUSED = (
    "/spire.api.server.svid.v1.SVID/MintX509SVID",
    "/spire.api.server.svid.v1.SVID/MintJWTSVID",
    "/spire.api.server.svid.v1.SVID/BatchNewX509SVID",
    "/spire.api.server.svid.v1.SVID/NewDownstreamX509CA",
    "/spire.api.server.entry.v1.Entry/BatchCreateEntry",
    "/spire.api.server.entry.v1.Entry/BatchUpdateEntry",
    "/spire.api.server.entry.v1.Entry/BatchDeleteEntry",
    "/spire.api.server.entry.v1.Entry/GetEntry",
    "/spire.api.server.entry.v1.Entry/CountEntries",
    "/spire.api.server.agent.v1.Agent/BanAgent",
    "/spire.api.server.agent.v1.Agent/DeleteAgent",
    "/spire.api.server.agent.v1.Agent/CountAgents",
    "/spire.api.server.agent.v1.Agent/CreateJoinToken",
    "/spire.api.server.agent.v1.Agent/PostStatus",
    "/spire.api.server.bundle.v1.Bundle/AppendBundle",
    "/spire.api.server.trustdomain.v1.TrustDomain/BatchCreateFederationRelationship",
    "/spire.api.server.localauthority.v1.LocalAuthority/TaintX509Authority",
)
ALLOWED = (
    "/spire.api.server.agent.v1.Agent/ListAgents",
    "/spire.api.server.entry.v1.Entry/ListEntries",
)

NEWER = (
    "/spire.api.server.svid.v1.SVID/BatchNewWITSVID",
    "/spire.api.server.bundle.v1.Bundle/PublishWITAuthority",
    "/spire.api.server.localauthority.v1.LocalAuthority/TaintWITAuthority",
)
"""Of the table, and not of the lab's server: SPIRE 1.14 has added them."""


def svid_of(agent: SpireAgent, spiffe_id: str) -> Svid:
    wanted = exactly(parse_spiffe_id(spiffe_id))
    api = SpiffeWorkloadApi(
        agent.workload_api, wanted, fetch_timeout=10.0, first_update_timeout=10.0
    )

    def ask() -> Svid | None:
        try:
            return appraise(api.fetch(), wanted, datetime.now(UTC), timedelta(days=1), 1)
        except (WorkloadApiError, OfferRefusedError):  # its entry has not come there yet
            return None

    return until(f"an SVID of {spiffe_id}", ask)


class World(SpireWorld):
    """Without our programs: the server, an agent for us and one for a node."""

    def start(self) -> None:
        self.attest(HOME)
        self.server.register(CONTROLLER, self.parents[HOME], SELECTOR)
        self.attest(NODE)
        self.server.register(agent_id(NODE), self.parents[NODE], SELECTOR)

    def svid(self, node: str, spiffe_id: str) -> Svid:
        return svid_of(self.spire_agents[node], spiffe_id)

    @property
    def address(self) -> Address:
        return Address.parse(self.server.address)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World("spire-api") as world:
        yield world


async def status(world: World, svid: Svid, method: str) -> grpc.StatusCode:
    """What the server says to an empty request."""
    address = world.address
    expected = SpiffeId(TRUST_DOMAIN, "/spire/server")
    async with (
        Tunnel(svid, address.host, address.port, expected) as tunnel,
        tunnel.channel() as channel,
    ):
        empty: Any = channel.unary_unary(method)
        code: grpc.StatusCode = await empty(b"", timeout=10.0).code()
    return code


@pytest.mark.parametrize("method", REFUSED)
async def test_a_reader_may_do_nothing_else(world: World, method: str) -> None:
    svid = await asyncio.to_thread(world.svid, HOME, CONTROLLER)
    assert await status(world, svid, method) is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("method", ALLOWED)
async def test_a_reader_may_read(world: World, method: str) -> None:
    svid = await asyncio.to_thread(world.svid, HOME, CONTROLLER)
    assert await status(world, svid, method) is grpc.StatusCode.OK


@pytest.mark.parametrize("method", [*ALLOWED, *REFUSED])
async def test_our_agents_may_nothing(world: World, method: str) -> None:
    svid = await asyncio.to_thread(world.svid, NODE, agent_id(NODE))
    assert await status(world, svid, method) is grpc.StatusCode.PERMISSION_DENIED


class TestRealSpireServer(SpireServerContract):
    @pytest.fixture(autouse=True)
    def _registered(self, world: World) -> None:
        self.world = world
        self.address = world.address
        self.reader = world.svid(HOME, CONTROLLER)
        self.stranger = _stranger(world)
        self.registered = Registered(
            agent_id=world.parents[NODE],
            attestor="x509pop",
            selector=f"x509pop:san:node-name:{NODE}",
            peer=agent_id(NODE),
            entry_selector=SELECTOR,
        )

    async def ban(self) -> None:
        await asyncio.to_thread(self.world.server.ban, self.registered.agent_id)

    async def evict(self) -> None:
        await asyncio.to_thread(self.world.spire_agents[NODE].stop)
        await asyncio.to_thread(self.world.server.evict, self.registered.agent_id)


def _stranger(world: World) -> Svid:
    """The node's SVID; taken once, because the last test of the contract bans its SPIRE agent."""
    if not hasattr(world, "stranger"):
        world.stranger = world.svid(NODE, agent_id(NODE))  # type: ignore[attr-defined] # kept for the module
    kept: Svid = world.stranger  # type: ignore[attr-defined] # as above
    return kept


def test_the_table_gives_the_rights_that_the_server_has_built_in() -> None:
    """Compared with the policy of the version that the lab builds."""
    table = json.loads(TABLE.read_text())
    assert differences(table, _upstream("pkg/server/authpolicy/policy_data.json")) == []


@pytest.mark.parametrize("method", NEWER)
async def test_a_method_of_newer_servers_gives_nothing_here(world: World, method: str) -> None:
    """Neither to those whom the table opens it to nor to others: the server lacks it."""
    svid = await asyncio.to_thread(world.svid, HOME, CONTROLLER)
    assert await status(world, svid, method) is grpc.StatusCode.UNIMPLEMENTED


def _upstream(name: str) -> str:
    """A file of the SPIRE module that the lab's programs are built from."""
    project = upstream("spire")
    done = subprocess.run(
        [
            find_go(cache_folder(), at_least=least_go(project.go_mod)),
            "list",
            "-m",
            "-f",
            "{{.Dir}}",
            project.module,
        ],
        cwd=project.path,
        env={**os.environ, "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local", "GOWORK": "off"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return (Path(done.stdout.strip()) / name).read_text()
