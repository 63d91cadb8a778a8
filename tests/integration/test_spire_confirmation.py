"""Level L1 in a whole controller: what the SPIRE server says decides, also between two rounds."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.wire.v1 import attestation_pb2 as pb
from sandbox.spiffe.spire_server import (
    EVERYTHING,
    READ,
    AgentRecord,
    EntryRecord,
    InsecureSpireServer,
)
from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.builders.spire import CONTROLLER, TD
from tests.fakes.attest_client import AttestClient, Ended
from tests.fakes.cluster import ONE_ROUND
from tests.fakes.eventually import eventually
from tests.fakes.running_controller import RunningController, running_controller

PATH = "/spire/agent/k8s_psat/prod/uid-1"
OWN_PATH = "/spire/agent/k8s_psat/prod/uid-9"
AGENT = "/gpuwarden/agent/node-1"
NAMES = ("k8s_psat:agent_node_name:node-1", "k8s_psat:agent_node_uid:uid-1")
BRISK_ROUNDS = {
    "attestation__interval": "200ms",
    "attestation__challengeTtl": "2s",
    "attestation__lease": "3s",
}


@dataclass
class World:
    spire: InsecureSpireServer
    controller: RunningController

    async def node_is(self, state: str) -> None:
        await self.controller.metric_is(f'gpuwarden_nodes{{state="{state}"}}', 1)

    def refused(self) -> list[str]:
        return [
            record["codes"][0]
            for record in self.controller.records()
            if record["kind"] == "evidence.refused"
        ]


def spire_of(api: InsecureWorkloadApi) -> InsecureSpireServer:
    return InsecureSpireServer(
        api.ca,
        {CONTROLLER: READ},
        agents=[AgentRecord(PATH, selectors=NAMES), AgentRecord(OWN_PATH)],
        entries=[EntryRecord(AGENT, PATH), EntryRecord("/gpuwarden/controller", OWN_PATH)],
    )


@asynccontextmanager
async def world(
    folder: Path, api: InsecureWorkloadApi, spire: InsecureSpireServer, **changes: str
) -> AsyncIterator[World]:
    values: dict[str, Any] = {"spire__poll": "100ms", **ONE_ROUND, **changes}
    async with (
        spire,
        running_controller(folder, api, spire__server=spire.address, **values) as controller,
    ):
        yield World(spire, controller)


async def refusal(client: AttestClient) -> Ended:
    """Of a stream that is not admitted."""
    await client.hello()
    return await client.ended()


async def test_a_confirmed_node_is_l1_and_the_level_is_in_its_hash(
    tmp_path: Path, workload_api: InsecureWorkloadApi
) -> None:
    async with (
        world(tmp_path, workload_api, spire_of(workload_api)) as here,
        here.controller.client() as node,
    ):
        verdict = await node.accepted()
        confirmed = (verdict.level, verdict.attestation_hash)
        assert await here.controller.metric("gpuwarden_spire_available") == 1
    bare = tmp_path / "bare"
    bare.mkdir()
    async with (
        running_controller(bare, workload_api, **ONE_ROUND) as controller,
        controller.client() as node,
    ):
        verdict = await node.accepted()
    assert confirmed[0] == "L1"
    assert verdict.level == "L0"
    assert verdict.attestation_hash != confirmed[1]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda spire: spire.ban(PATH), "SPIRE_AGENT_BANNED"),
        (lambda spire: spire.evict(PATH), "SPIRE_AGENT_NOT_FOUND"),
        (lambda spire: spire.change(PATH, expires=1), "SPIRE_AGENT_EXPIRED"),
        (lambda spire: spire.change(PATH, attestor="join_token"), "SPIRE_ATTESTOR_DENIED"),
        (lambda spire: spire.change(PATH, selectors=NAMES[:1]), "SPIRE_NODE_MISMATCH"),
        (lambda spire: spire.entries.pop(0), "SPIRE_ENTRY_NOT_FOUND"),
        (
            lambda spire: spire.entries.append(EntryRecord(AGENT, OWN_PATH)),
            "SPIRE_ENTRY_AMBIGUOUS",
        ),
        (
            lambda spire: spire.entries.append(EntryRecord(AGENT, PATH, ("unix:uid:0",))),
            "SPIRE_ENTRY_WEAK",
        ),
        (
            lambda spire: spire.entries.append(EntryRecord(AGENT, PATH, admin=True)),
            "SPIRE_ENTRY_PRIVILEGED",
        ),
    ],
)
async def test_the_next_look_ends_trust_and_streams_while_the_svid_is_valid(
    tmp_path: Path, workload_api: InsecureWorkloadApi, change: Any, code: str
) -> None:
    async with (
        world(tmp_path, workload_api, spire_of(workload_api)) as here,
        here.controller.client() as node,
    ):
        await node.accepted()
        change(here.spire)
        ended = await node.ended()
        assert ended.reason == code
        await here.node_is("revoked")
        async with here.controller.client() as again:
            assert (await refusal(again)).reason == code
    assert here.refused()[0] == code


async def test_a_ban_is_in_the_audit_log_and_lifted_by_attesting_again(
    tmp_path: Path, workload_api: InsecureWorkloadApi
) -> None:
    async with (
        world(tmp_path, workload_api, spire_of(workload_api)) as here,
        here.controller.client() as node,
    ):
        await node.accepted()
        here.spire.ban(PATH)
        assert (await node.ended()).reason == "SPIRE_AGENT_BANNED"
        here.spire.evict(PATH)
        here.spire.agents.append(AgentRecord(PATH, selectors=NAMES))

        async def back() -> bool | None:
            async with here.controller.client() as again:
                await again.hello()
                message = await again.read()
                if isinstance(message, Ended) or message.WhichOneof("message") != "challenge":
                    return None
                await again.answer(message.challenge)
                return (await again.verdict()).outcome == pb.OUTCOME_ACCEPTED

        await eventually(back, "the node is accepted again")
    status = [x for x in here.controller.records() if x["kind"] == "spire.status"]
    assert (status[0]["decision"], status[0]["refs"]["agents"]) == (
        "banned",
        [f"spiffe://{TD}{PATH}"],
    )


async def test_a_newly_registered_node_need_not_wait_for_the_next_look(
    tmp_path: Path, workload_api: InsecureWorkloadApi
) -> None:
    spire = spire_of(workload_api)
    agents, entries = list(spire.agents), list(spire.entries)
    spire.agents, spire.entries = agents[1:], entries[1:]
    async with world(tmp_path, workload_api, spire, spire__poll="60s") as here:
        async with here.controller.client() as node:
            assert (await refusal(node)).reason == "SPIRE_ENTRY_NOT_FOUND"
        spire.agents, spire.entries = agents, entries

        async def admitted() -> bool | None:
            async with here.controller.client() as node:
                await node.hello()
                message = await node.read()
                if isinstance(message, Ended) or message.WhichOneof("message") != "challenge":
                    return None
                return True

        await eventually(admitted, "the node is known")
        assert spire.calls.count("ListAgents") == 1


async def test_a_server_that_is_down_is_survived_for_the_grace_and_not_longer(
    tmp_path: Path, workload_api: InsecureWorkloadApi
) -> None:
    spire = spire_of(workload_api)
    async with (
        world(tmp_path, workload_api, spire, spire__grace="2s", **BRISK_ROUNDS) as here,
        here.controller.client() as node,
    ):
        await node.accepted()
        await spire.stop()
        codes: list[str] = []
        while not codes or codes[-1] == "ACCEPTED":
            await node.answer(await node.challenge())
            codes.append((await node.verdict()).code)
        assert codes.count("ACCEPTED") > 1
        assert codes[-1] == "SPIRE_STATUS_STALE"
        await here.controller.reason("spire: the SPIRE server's last answer is")
        await here.node_is("stale")
        await spire.start()

        async def ready() -> bool | None:
            return True if not await here.controller.reasons() else None

        await eventually(ready, "ready again")
        async with here.controller.client() as again:
            assert (await again.accepted()).level == "L1"


async def test_a_server_that_never_answered_decides_nothing(
    tmp_path: Path, workload_api: InsecureWorkloadApi
) -> None:
    spire = spire_of(workload_api)
    async with world(tmp_path, workload_api, replace(spire, allowed={})) as here:
        async with here.controller.client() as node:
            assert (await refusal(node)).reason == "SPIRE_UNAVAILABLE"
        await here.controller.reason("spire: denied: authorization denied")
        assert any("deploy/spire" in x for x in await here.controller.reasons())


async def test_the_controllers_own_agent_is_watched(
    tmp_path: Path, workload_api: InsecureWorkloadApi
) -> None:
    async with world(tmp_path, workload_api, spire_of(workload_api)) as here:
        here.spire.ban(OWN_PATH)
        await here.controller.reason(f"spire: own SPIRE agent: spiffe://{TD}{OWN_PATH} is banned")


async def test_rotation_of_our_own_svid_is_a_new_connection_without_a_gap(
    tmp_path: Path, workload_api: InsecureWorkloadApi
) -> None:
    async with world(tmp_path, workload_api, spire_of(workload_api)) as here:
        before = here.spire.calls.count("CountAgents")
        workload_api.rotate()

        async def renewed() -> bool | None:
            return here.spire.calls.count("CountAgents") > before or None

        await eventually(renewed, "a connection under the new SVID")
        failed = [
            await here.controller.metric(f'gpuwarden_spire_polls_total{{result="{x}"}}')
            for x in ("unreachable", "denied", "slow", "unusable", "no-svid")
        ]
        assert not any(failed)


async def test_admin_rights_are_a_standing_warning(
    tmp_path: Path, workload_api: InsecureWorkloadApi
) -> None:
    spire = replace(spire_of(workload_api), allowed={CONTROLLER: EVERYTHING})
    async with world(tmp_path, workload_api, spire) as here:
        _, text = await here.controller.get("/readyz")
        assert "lets this controller do more than read" in text
