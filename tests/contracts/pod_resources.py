"""What kubelet's PodResources owe whoever asks: kept by the fake kubelet and by the real one."""

from abc import ABC, abstractmethod

from agent.claims.kubelet import KubeletAllocations
from gpuwarden.evidence.model import Allocation
from tests.fakes.eventually import eventually

RESOURCE = "nvidia.com/gpu"
DEVICES = tuple(f"GPU-{n:08x}-0000-4000-8000-{n:012x}" for n in (1, 2))


class NodeWithDevices(ABC):
    """A node that offers `DEVICES` as `RESOURCE`; pods come and go, kubelet restarts."""

    source: KubeletAllocations
    """Asks for that resource only."""

    @abstractmethod
    async def run(self, pod: str, devices: int) -> None:
        """A pod of namespace `default` whose container `main` holds so many devices runs now."""

    @abstractmethod
    async def end(self, pod: str) -> None:
        """It is gone."""

    @abstractmethod
    async def restart(self) -> None:
        """A new kubelet process; pods and devices are as before."""


class PodResourcesContract:
    """Tests for either kind of node; `node` is a fixture."""

    async def test_a_pod_without_devices_holds_nothing(self, node: NodeWithDevices) -> None:
        await node.run("plain", 0)
        assert await allocations(node) == ()
        await node.end("plain")

    async def test_pods_hold_devices_while_they_are_there(self, node: NodeWithDevices) -> None:
        await node.run("one", 1)
        (held,) = await allocations(node)
        assert held == Allocation("default", "one", "main", RESOURCE, held.device)
        assert held.device in DEVICES
        await node.run("two", 1)
        found = await allocations(node)
        assert [x.pod for x in found] == ["one", "two"]
        assert {x.device for x in found} == set(DEVICES)
        await node.end("one")
        await until_held(node, 1)
        assert [x.pod for x in await allocations(node)] == ["two"]
        await node.end("two")
        await until_held(node, 0)

    async def test_one_container_may_hold_several(self, node: NodeWithDevices) -> None:
        await node.run("both", 2)
        found = await allocations(node)
        assert [(x.pod, x.device) for x in found] == [("both", x) for x in DEVICES]
        await node.end("both")
        await until_held(node, 0)

    async def test_a_restart_forgets_nothing(self, node: NodeWithDevices) -> None:
        await node.run("steady", 1)
        before = await allocations(node)
        await node.restart()
        assert await until_held(node, 1) == before
        await node.end("steady")
        await until_held(node, 0)


async def allocations(node: NodeWithDevices) -> tuple[Allocation, ...]:
    read = await node.source.read()
    assert read.allocations is not None, read.detail
    assert read.failed_reads == ()
    return read.allocations


async def until_held(node: NodeWithDevices, count: int) -> tuple[Allocation, ...]:
    async def ask() -> tuple[Allocation, ...] | None:
        found = (await node.source.read()).allocations
        return found if found is not None and len(found) == count else None

    return await eventually(ask, f"{count} devices are held")
