"""A pod's end and the agent's own session: the GPU is free long before the attestation interval."""

from gpuwarden.evidence.model import GpuProcess
from tests.fakes.attesting_agent import AttestingAgent, slow_rounds
from tests.fakes.cluster import FakeCluster
from tests.fakes.eventually import eventually

GPUS = 3


async def test_a_gpu_is_free_again_without_an_ordinary_round(cluster: FakeCluster) -> None:
    agent = AttestingAgent(GPUS)
    async with slow_rounds(cluster, agent) as here:
        uid = here.create("train-0")["metadata"]["uid"]
        given = await here.bound("train-0")
        agent.processes, agent.pods = (GpuProcess(given, 7, uid),), (uid,)
        await here.state_of(given, "Confirmed")
        ended = cluster.api.objects.get("pods", "team-a/train-0")
        cluster.api.change("pods", ended | {"status": {"phase": "Succeeded"}})
        await here.state_of(given, "Releasing")

        async def asked() -> bool | None:
            return agent.readings >= 4 or None

        await eventually(asked, "the node is asked again while the pod runs on")
        await here.state_of(given, "Releasing")
        agent.processes = ()
        before = agent.readings

        async def asked_further() -> bool | None:
            return agent.readings >= before + 3 or None

        await eventually(asked_further, "and while a process of it is in no driver's list")
        await here.state_of(given, "Releasing")
        agent.pods = ()
        await here.state_of(given, None)
        controller = here.controller
        await controller.metric_is("gpuwarden_reservation_release_seconds_count", 1)
        asked_for = await controller.metric('gpuwarden_challenges_total{cause="release"}')
        assert asked_for is not None
        assert asked_for >= 3 + 3 + 2 - 1  # of these one may be an ordinary one


async def test_pods_one_after_the_other_get_the_same_gpus(cluster: FakeCluster) -> None:
    """Each waits for the one before it, and none for an ordinary round."""
    agent = AttestingAgent(GPUS)
    async with slow_rounds(cluster, agent) as here:
        for number in range(2 * GPUS):
            name = f"train-{number}"
            here.create(name)
            given = await here.bound(name)
            await here.state_of(given, "Confirmed")
            if number >= GPUS - 1:
                ended = cluster.api.objects.get("pods", f"team-a/train-{number - 2}")
                cluster.api.change("pods", ended | {"status": {"phase": "Succeeded"}})
