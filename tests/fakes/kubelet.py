"""A kubelet of which only the PodResources socket is there; what it answers is a test's to say.

Its contract is tests/contracts/pod_resources.py, which the real kubelet keeps as well.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from gpuwarden.wire.kubelet import pod_resources_pb2 as pb
from gpuwarden.wire.kubelet.pod_resources_pb2_grpc import (
    PodResourcesListerServicer,
    add_PodResourcesListerServicer_to_server,
)


def pod_resources(
    namespace: str,
    pod: str,
    resource: str = "nvidia.com/gpu",
    devices: Iterable[str] = (),
    container: str = "main",
) -> pb.PodResources:
    """A pod with one container that holds devices of one resource."""
    held = pb.ContainerDevices(resource_name=resource, device_ids=devices)
    return pb.PodResources(
        namespace=namespace,
        name=pod,
        containers=[pb.ContainerResources(name=container, devices=[held])],
    )


@dataclass
class FakeKubelet(PodResourcesListerServicer):
    """Answers `pods`; refuses with `refusal`; does not answer while `silent`."""

    socket: Path
    pods: list[pb.PodResources] = field(default_factory=list)
    refusal: grpc.StatusCode | None = None
    silent: bool = False
    asked: int = 0
    _server: grpc.aio.Server | None = None

    async def List(  # noqa: N802 - the method's name in the protocol
        self,
        request: pb.ListPodResourcesRequest,
        context: "grpc.aio.ServicerContext[object, object]",
    ) -> pb.ListPodResourcesResponse:
        del request
        self.asked += 1
        if self.silent:
            await asyncio.Event().wait()
        if self.refusal is not None:
            await context.abort(self.refusal, "kubelet says no")
        return pb.ListPodResourcesResponse(pod_resources=self.pods)

    async def start(self) -> None:
        self._server = grpc.aio.server()
        add_PodResourcesListerServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None


@asynccontextmanager
async def fake_kubelet(folder: Path) -> AsyncIterator[FakeKubelet]:
    """A kubelet that listens in `folder`."""
    kubelet = FakeKubelet(folder / "kubelet.sock")
    await kubelet.start()
    try:
        yield kubelet
    finally:
        await kubelet.stop()
