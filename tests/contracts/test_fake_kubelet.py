"""The fake kubelet keeps the contract of PodResources."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.claims.kubelet import KubeletAllocations
from tests.contracts.pod_resources import (
    DEVICES,
    RESOURCE,
    NodeWithDevices,
    PodResourcesContract,
)
from tests.fakes.kubelet import FakeKubelet, fake_kubelet, pod_resources


class FakeNode(NodeWithDevices):
    def __init__(self, kubelet: FakeKubelet) -> None:
        self.kubelet = kubelet
        self.source = KubeletAllocations(kubelet.socket, (RESOURCE,))

    async def run(self, pod: str, devices: int) -> None:
        held = {
            device
            for one in self.kubelet.pods
            for container in one.containers
            for given in container.devices
            for device in given.device_ids
        }
        free = [x for x in DEVICES if x not in held]
        self.kubelet.pods.append(pod_resources("default", pod, RESOURCE, free[:devices]))

    async def end(self, pod: str) -> None:
        self.kubelet.pods = [x for x in self.kubelet.pods if x.name != pod]

    async def restart(self) -> None:
        await self.kubelet.stop()
        await self.kubelet.start()


@pytest.fixture
async def node() -> AsyncIterator[NodeWithDevices]:
    with tempfile.TemporaryDirectory() as folder:
        async with fake_kubelet(Path(folder)) as kubelet:
            node = FakeNode(kubelet)
            yield node
            await node.source.aclose()


class TestFakeKubelet(PodResourcesContract):
    """All of it."""
