"""The agent's own session against a whole controller, with a node of a test's making behind it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

from agent.claims.pods import PodsReading
from agent.gpu.reading import InventoryReading
from agent.session.client import Session, SessionPorts
from agent.session.dialer import TunnelDialer
from agent.session.replicas import UsedStreamIds
from gpuwarden.clock import SystemClock
from gpuwarden.evidence.model import GpuProcess
from gpuwarden.identity.spiffe_id import parse_spiffe_id
from gpuwarden.settings.values import Address
from tests.builders.attesting import AGENT, attester, reading
from tests.builders.challenges import CLUSTER, CONTROLLER
from tests.builders.svids import new_svid
from tests.fakes.agent_ports import FakeWitness, RecordingRecorder
from tests.fakes.cluster import ENV_POLICY, FakeCluster, LiveCluster, Webhooks

INTERVAL_S = 40
SLOW: dict[str, Any] = {
    "cluster": CLUSTER,
    "attestation__interval": f"{INTERVAL_S}s",
    "attestation__challengeTtl": "10s",
    "attestation__lease": "90s",
    "kubernetes__staleAfter": "10m",
}
"""Two ordinary rounds take longer than a test waits for anything."""


class AttestingAgent:
    """The agent's session, with a node of the test's making behind it."""

    def __init__(self, gpus: int) -> None:
        self.gpus = gpus
        self.processes: tuple[GpuProcess, ...] = ()
        self.pods: tuple[str, ...] = ()
        self.readings = 0

    async def read(self) -> InventoryReading:
        self.readings += 1
        return replace(reading(self.gpus), processes=self.processes)

    async def look(self) -> PodsReading:
        return PodsReading(self.pods)

    @contextlib.asynccontextmanager
    async def attesting(self, webhooks: Webhooks) -> AsyncIterator[None]:
        """Until the end of this, to the controller behind the webhooks."""
        controller = webhooks.controller
        assert controller.workload_api is not None
        svid = new_svid(controller.workload_api.ca, AGENT)
        host, _, port = controller.addresses.agents.rpartition(":")
        ports = SessionPorts(
            attester=attester(),
            dialer=TunnelDialer(parse_spiffe_id(CONTROLLER)),
            read=self.read,
            pods=self.look,
            roots=lambda: svid.roots,
            witness=FakeWitness(),
            recorder=RecordingRecorder(),
            stream_ids=UsedStreamIds(),
            clock=SystemClock(),
        )
        session = Session(
            ports,
            svid=svid,
            replica=Address(host, int(port)),
            stream=1,
            accepted=lambda: None,
        )
        running = asyncio.create_task(session.run())
        try:
            yield
        finally:
            session.stop("the test is over")
            await running


@contextlib.asynccontextmanager
async def slow_rounds(cluster: FakeCluster, agent: AttestingAgent) -> AsyncIterator[LiveCluster]:
    """A controller past its first interval, whose next ordinary round is far away."""
    keys, policy = cluster.folder / "id-keys", cluster.folder / "policy.yaml"
    keys.write_text(f"k1 {'ab' * 32}\n")
    policy.write_text(ENV_POLICY)
    settings = {**SLOW, "admission__idKeys": str(keys), "policy__file": str(policy)}
    async with cluster.webhooks(**settings) as webhooks:
        webhooks.controller.clock.ahead_ns = (INTERVAL_S + 20) * 10**9
        async with agent.attesting(webhooks):
            yield LiveCluster(cluster, webhooks, cast("Any", agent))
