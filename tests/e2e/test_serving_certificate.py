"""The API server's certificate changes under a controller, which believes no CA but its own.

On a cluster of its own: for a while nobody else could use it either. Needs no root.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from controller.kube.api.resources import ENROLLMENTS, NODES, ApiError, Resource
from controller.kube.api.transport import InCluster, Transport
from gpuwarden.clock import SystemClock
from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.builders.kube_access import api_client
from tests.builders.pods import gpu_pod
from tests.e2e.lab.audit_log import AuditLog
from tests.e2e.lab.identities import Identities
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.waiting import until
from tests.e2e.product.installation import account, apply
from tests.e2e.product.service_account import as_in_a_pod, token_of_controller
from tests.fakes.cluster import ONE_ROUND
from tests.fakes.eventually import eventually
from tests.fakes.running_controller import TD, RunningController, running_controller

SECOND = 1_000_000_000
PACE: dict[str, Any] = {
    **ONE_ROUND,
    "attestation__interval": "5s",
    "attestation__challengeTtl": "5s",
    "kubernetes__staleAfter": "45s",
    "kubernetes__namespace": "gpuwarden-system",
}
FIRST_ROUND_S, STALE_S, LEASE_S = 13, 46, 91
"""How far the clock is moved; what is left of a lease is for a restart."""
RECOVERS_S = 60.0
"""The longest pause after a failure is 30 s."""
REQUIREMENT = gpu_pod(**{"gpuwarden.dev/min-level": "L0"})


@dataclass(frozen=True, slots=True)
class Cluster:
    lab: Lab
    audit: AuditLog
    """Of the controller's calls."""
    access: InCluster

    @property
    def authority(self) -> Identities:
        """Whom the controller trusts."""
        return self.lab.control_plane.identities

    async def certify_by(self, authority: Identities) -> None:
        """Restart the API server with a new certificate."""
        await asyncio.to_thread(self.lab.control_plane.api_server.restart_certified_by, authority)

    async def add_node(self, name: str) -> None:
        """As the administrator, who trusts any server."""
        await asyncio.to_thread(self.lab.api.post, NODES.path(), {"metadata": {"name": name}})

    def certificate(self) -> str:
        """What the API server shows; raises ssl.SSLError if it is not of the lab's CA."""
        host, _, port = self.lab.control_plane.url.removeprefix("https://").rpartition(":")
        ca = str(self.authority.pki.ca)
        return ssl.get_server_certificate((host, int(port)), ca_certs=ca)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    audit = AuditLog(tmp_path_factory.mktemp("audit"), [account("gpuwarden-controller")])
    with Lab.control_plane_only(api_server_extra=audit.arguments()) as lab:
        apply(lab, "kustomize/base")
        until("the custom resource is served", lambda: lab.api.answers(ENROLLMENTS.path()))
        lab.api.post(NODES.path(), {"metadata": {"name": "node-1"}})
        token = token_of_controller(lab, {"expirationSeconds": 3600})
        yield Cluster(lab, audit, as_in_a_pod(lab, tmp_path_factory.mktemp("account"), token))


@pytest.fixture
async def replica(cluster: Cluster, tmp_path: Path) -> AsyncIterator[RunningController]:
    with InsecureWorkloadApi(tmp_path, TD) as spiffe:
        exchange = Transport(cluster.access, SystemClock())
        async with running_controller(tmp_path, spiffe, exchange=exchange, **PACE) as running:
            yield running


async def test_a_new_certificate_of_the_same_ca_changes_nothing(
    cluster: Cluster, replica: RunningController
) -> None:
    await placing(cluster, replica)
    before = cluster.certificate()
    await placed_during(replica, cluster.certify_by(cluster.authority))
    assert cluster.certificate() != before
    await cluster.add_node("later-0")
    await knows_all(cluster, replica)
    await replica.reason("too old", wanted=False)
    await replica.passes(REQUIREMENT, ["node-1"], "placement under the new certificate")


async def test_a_certificate_of_another_ca_is_refused_and_stale_facts_grant_nothing(
    cluster: Cluster, replica: RunningController, tmp_path: Path
) -> None:
    attested = await placing(cluster, replica)
    await placed_during(replica, cluster.certify_by(Identities(tmp_path / "others")))
    is_served = datetime.now(UTC)
    await cluster.add_node("unseen-0")
    with pytest.raises(ssl.SSLError):
        cluster.certificate()
    assert "could not be trusted" in await refused(cluster)
    await asyncio.gather(*(tries_in_vain(replica, x) for x in (NODES, ENROLLMENTS)))
    replica.clock.ahead_ns += STALE_S * SECOND
    await replica.reason("the list of nodes are too old")
    await replica.reason("the enrollments are too old")
    for name in ("node-1", "unseen-0"):
        assert await replica.refusal(name) == "ENROLLMENT_STALE"
    await replica.passes(REQUIREMENT, ["node-1"], "placement from what was verified before")
    replica.clock.ahead_ns += (LEASE_S - STALE_S) * SECOND
    await replica.passes(REQUIREMENT, [], "the lease has ended")
    is_over = datetime.now(UTC)
    await cluster.certify_by(cluster.authority)
    await replica.reason("too old", wanted=False, within_s=RECOVERS_S)
    await knows_all(cluster, replica)
    async with replica.client() as again:
        assert (await again.accepted()).attestation_hash == attested
    await replica.passes(REQUIREMENT, ["node-1"], "placement again")
    calls = [x.at for x in cluster.audit.calls()]
    assert not [x for x in calls if is_served <= x <= is_over]
    assert [x for x in calls if x > is_over]


async def placing(cluster: Cluster, replica: RunningController) -> str:
    """Until the requirement is granted; the hash with which the node was accepted."""
    await knows_all(cluster, replica)
    replica.clock.ahead_ns += FIRST_ROUND_S * SECOND
    async with replica.client() as node:
        attested = (await node.accepted()).attestation_hash
    await replica.passes(REQUIREMENT, ["node-1"], "placement")
    return attested


async def placed_during(replica: RunningController, work: Awaitable[None]) -> None:
    """Every answer is the same until the work is done."""
    task = asyncio.ensure_future(work)
    while not task.done():
        assert (await replica.filtered(REQUIREMENT))["NodeNames"] == ["node-1"]
        await asyncio.wait([task], timeout=0.05)
    await task


async def knows_all(cluster: Cluster, replica: RunningController) -> None:
    """The controller's copy has as many nodes as the API server."""
    there = len((await asyncio.to_thread(cluster.lab.api.get, NODES.path()))["items"])

    async def known() -> bool | None:
        count = await replica.metric('gpuwarden_kube_objects{resource="nodes"}')
        return count == there or None

    await eventually(known, f"{there} nodes are known", within_s=RECOVERS_S)
    await replica.reason("list of", wanted=False)


async def tries_in_vain(replica: RunningController, resource: Resource) -> None:
    """Once more from now on."""
    name = f'gpuwarden_kube_watch_ends_total{{cause="broken",resource="{resource.plural}"}}'
    before = await replica.metric(name) or 0

    async def tried() -> bool | None:
        return (await replica.metric(name) or 0) > before or None

    await eventually(tried, f"{resource.plural} are asked for in vain", within_s=RECOVERS_S)


async def refused(cluster: Cluster) -> str:
    """Why the controller's client gets no answer."""
    api, transport = api_client(cluster.access, SystemClock())
    try:
        with pytest.raises(ApiError) as found:
            await api.version_now(NODES)
    finally:
        await transport.close()
    return str(found.value)
