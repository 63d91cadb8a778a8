"""The pods as binding webhook and ledger ask for them: the copy while it is young, and past it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from controller.binding.request import PodsUnavailableError
from controller.kube.api.cache import Change, ListWatch, Observe
from controller.kube.api.client import ApiClient
from controller.kube.api.transport import Transport
from controller.kube.pods.pods import REQUEUED, ClusterPods, KnownPod, pod_kind
from controller.ledger.record import PodGone, PodRef, PodSeen
from controller.placement.keys import ASSIGNED_UUIDS, RESERVATION_ID, RequirementRules
from gpuwarden.clock import SystemClock
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.bindings import env_pod
from tests.builders.kube_access import in_cluster
from tests.fakes.api_server import FakeApiServer
from tests.fakes.eventually import eventually


class AgingClock(SystemClock):
    ahead_ns = 0

    def boottime_ns(self) -> int:
        return super().boottime_ns() + self.ahead_ns


@dataclass
class World:
    api: FakeApiServer
    pods: ClusterPods
    clock: AgingClock

    def create(self, name: str = "train-0") -> PodRef:
        document = env_pod(name=name)
        del document["metadata"]["uid"], document["metadata"]["resourceVersion"]
        return PodRef("team-a", name, self.api.create("pods", document)["metadata"]["uid"])

    def change(self, name: str, **more: Any) -> None:
        document = self.api.objects.get("pods", f"team-a/{name}")
        document["spec"] |= more.pop("spec", {})
        document["metadata"]["annotations"] |= more.pop("annotations", {})
        self.api.change("pods", document | more)

    async def knows(self, name: str = "train-0", **facts: Any) -> None:
        async def there() -> bool | None:
            found = self.pods.known("team-a", name)
            return (
                found is not None and all(getattr(found, k) == x for k, x in facts.items())
            ) or None

        await eventually(there, f"{name} is known as {facts}")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    api, clock = FakeApiServer(tmp_path), AgingClock()
    await api.start()
    transport = Transport(in_cluster(tmp_path / "sa", api), clock)
    instruments = Instruments(Process.CONTROLLER, "test")
    client, kind = ApiClient(transport, instruments), pod_kind(RequirementRules())
    observers: list[Observe[KnownPod]] = []

    def observe(changes: tuple[Change[KnownPod], ...], asked_ns: int | None) -> None:
        for each in observers:
            each(changes, asked_ns)

    watcher: ListWatch[KnownPod] = ListWatch(
        client,
        kind,
        clock=clock,
        instruments=instruments,
        jitter=lambda: 0.0,
        observe=observe,
    )
    pods = ClusterPods(client, kind, watcher.cache, replica="c-0", clock=clock)
    observers.append(pods.observe)
    following = asyncio.create_task(watcher.follow())
    await watcher.synced.wait()
    yield World(api, pods, clock)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await transport.close()
    await api.stop()


async def test_the_copy_answers_while_it_is_young(world: World) -> None:
    pod = world.create()
    await world.knows()
    found = world.pods.known("team-a", "train-0")
    assert found is not None
    assert found.uid == pod.uid
    assert found.pod is not None
    assert world.pods.known("team-a", "nobody") is None
    world.clock.ahead_ns = 15 * 10**9
    assert world.pods.known("team-a", "train-0") is None


async def test_replicas_are_the_pods_of_the_own_set(world: World) -> None:
    for name in ("c-10", "c-0", "c-1", "c-x", "cc-2", "c-3"):
        world.create(name)
    world.change("c-3", status={"phase": "Failed"})
    await world.knows("c-3", has_ended=True)
    assert world.pods.replicas("team-a") == ("c-0", "c-1", "c-10")
    assert world.pods.replicas("team") == ()


async def test_pods_that_the_taint_of_managed_nodes_evicts(world: World) -> None:
    ours = {"key": "gpuwarden.dev/managed", "operator": "Exists", "effect": "NoExecute"}
    on_node: dict[str, dict[str, Any]] = {
        "at-once": {"tolerations": []},
        "later": {"tolerations": [{**ours, "tolerationSeconds": 300}]},
        "stays": {"tolerations": [ours]},
        "ended": {"tolerations": []},
        "elsewhere": {"nodeName": "gpu-2", "tolerations": []},
    }
    for name, spec in on_node.items():
        world.create(name)
        world.change(name, spec={"nodeName": "gpu-1", **spec})
    world.change("ended", status={"phase": "Succeeded"})
    world.create("waits")
    world.change("waits", spec={"tolerations": []})
    await world.knows("waits")
    await world.knows("ended", has_ended=True)
    found = {x.name: x for x in world.pods.evicted({"gpu-1"})}
    assert {name: x.after_s for name, x in found.items()} == {"at-once": 0, "later": 300}
    assert found["at-once"].key == "gpu-1/team-a/at-once"
    assert {x.name for x in world.pods.evicted({"gpu-1", "gpu-2"})} - found.keys() == {"elsewhere"}
    world.clock.ahead_ns = 15 * 10**9
    with pytest.raises(PodsUnavailableError, match="the pods were not read lately"):
        world.pods.evicted({"gpu-1"})


async def test_a_read_goes_past_the_copy(world: World) -> None:
    assert await world.pods.read("team-a", "train-0") is None
    pod = world.create()
    found = await world.pods.read("team-a", "train-0")
    assert found is not None
    assert (found.uid, found.node, found.has_ended) == (pod.uid, "", False)
    world.api.fail_next(500, matching="get")
    with pytest.raises(PodsUnavailableError):
        await world.pods.read("team-a", "train-0")


async def test_a_bound_pod_says_what_it_holds(world: World) -> None:
    pod = world.create()
    told = {"gpuwarden.dev/reservation-id": "v1.k.x", "gpuwarden.dev/gpu-uuids-assigned": "GPU-a"}
    world.change("train-0", spec={"nodeName": "gpu-1"}, annotations=told)
    await world.knows(node="gpu-1")
    assert pod.uid is not None
    seen = PodSeen(pod.uid, "gpu-1", "v1.k.x", has_ended=False)
    assert world.pods.sight(pod) == seen
    assert await world.pods.look(pod) == seen
    assert [x.gpus for x in world.pods.live()] == [("GPU-a",)]
    world.change("train-0", status={"phase": "Failed"})
    await world.knows(has_ended=True)
    assert world.pods.live() == ()
    assert world.pods.sight(pod) == PodSeen(pod.uid, "gpu-1", "v1.k.x", has_ended=True)


async def test_a_pod_leaves_from_its_deletion_on(world: World) -> None:
    pod = world.create()
    await world.knows()
    assert not world.pods.is_leaving(pod)
    assert world.pods.is_leaving(PodRef("team-a", "train-0", "another"))
    assert world.pods.is_leaving(PodRef("team-a", "nobody", pod.uid))
    document = world.api.objects.get("pods", "team-a/train-0")
    document["metadata"]["deletionTimestamp"] = "2026-06-01T00:00:00Z"
    world.api.change("pods", document)

    async def leaves() -> bool | None:
        return world.pods.is_leaving(pod) or None

    await eventually(leaves, "the deletion is seen")
    assert world.pods.known("team-a", "train-0") is not None


async def test_another_pod_of_that_name_is_none(world: World) -> None:
    world.create()
    await world.knows()
    other = PodRef("team-a", "train-0", "another")
    assert world.pods.sight(other) is None
    assert await world.pods.look(other) == PodGone()
    assert await world.pods.requeue(other) == PodGone()
    nobody = PodRef("team-a", "nobody", "u")
    assert world.pods.sight(nobody) is None
    assert await world.pods.requeue(nobody) == PodGone()


async def test_a_requeue_changes_the_pod(world: World) -> None:
    pod = world.create()
    before = await world.pods.read("team-a", "train-0")
    answer = await world.pods.requeue(pod)
    assert answer == PodSeen(str(pod.uid), "", None, has_ended=False)
    after = await world.pods.read("team-a", "train-0")
    assert before is not None
    assert after is not None
    assert after.version != before.version
    kept = world.api.objects.get("pods", "team-a/train-0")
    assert kept["metadata"]["annotations"][REQUEUED].endswith(" c-0")


@pytest.mark.parametrize("status", [409, 422])
async def test_a_refused_touch_shows_nothing_unless_the_pod_is_another(
    world: World, status: int
) -> None:
    pod = world.create()
    world.api.fail_next(status, matching="patch")
    with pytest.raises(PodsUnavailableError):
        await world.pods.requeue(pod)
    world.api.fail_next(status, matching="patch")
    assert await world.pods.requeue(PodRef("team-a", "train-0", "another")) == PodGone()
    world.api.fail_next(503, matching="patch")
    with pytest.raises(PodsUnavailableError):
        await world.pods.requeue(pod)


async def test_the_copy_is_made_again_on_request(world: World) -> None:
    world.create()
    await world.knows()
    lists = [path for verb, path in world.api.requests if verb == "list" and "limit" in path]
    world.pods.reread()
    world.create("train-1")

    async def listed() -> bool | None:
        now = [path for verb, path in world.api.requests if verb == "list" and "limit" in path]
        return len(now) > len(lists) or None

    await eventually(listed, "all pods are listed again")


async def test_who_says_that_it_holds_a_gpu(world: World) -> None:
    both = {RESERVATION_ID: "v1.k.x", ASSIGNED_UUIDS: "GPU-b,GPU-A,GPU-a"}

    async def holding(gpu: str, *names: str) -> None:
        async def there() -> bool | None:
            return sorted(x.pod.name or "" for x in world.pods.holding(gpu)) == [*names] or None

        await eventually(there, f"{names} hold {gpu}")

    world.create()
    world.create("train-1")
    world.change("train-0", annotations=both)
    world.change("train-1", annotations=both, spec={"nodeName": "gpu-1"})
    for gpu in ("GPU-a", "gpu-b"):
        await holding(gpu, "train-1")
    world.change("train-0", spec={"nodeName": "gpu-1"})
    await holding("GPU-a", "train-0", "train-1")
    world.change("train-0", status={"phase": "Succeeded"})
    await holding("GPU-a", "train-1")
    world.change("train-1", annotations={ASSIGNED_UUIDS: "GPU-b"})
    await holding("GPU-a")
    await holding("GPU-b", "train-1")
    world.api.delete("pods", "team-a/train-1")
    await holding("GPU-b")
