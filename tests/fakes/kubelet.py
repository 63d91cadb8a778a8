"""The sandbox's kubelet, of which only the PodResources socket is there, with faults.

Its contract is tests/contracts/pod_resources.py, which the real kubelet keeps as well.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from gpuwarden.wire.kubelet import pod_resources_pb2 as pb
from sandbox.kube.kubelet import PodResources, pod_resources

__all__ = ["FakeKubelet", "fake_kubelet", "pod_resources"]


class FakeKubelet(PodResources):
    """Answers `pods`; refuses with `refusal`; does not answer while `silent`."""

    def __init__(self, socket: Path) -> None:
        super().__init__(socket)
        self.refusal: grpc.StatusCode | None = None
        self.silent = False
        self.asked = 0

    async def List(  # noqa: N802 - the method's name in the protocol
        self,
        request: pb.ListPodResourcesRequest,
        context: "grpc.aio.ServicerContext[object, object]",
    ) -> pb.ListPodResourcesResponse:
        self.asked += 1
        if self.silent:
            await asyncio.Event().wait()
        if self.refusal is not None:
            await context.abort(self.refusal, "kubelet says no")
        return await super().List(request, context)


@asynccontextmanager
async def fake_kubelet(folder: Path) -> AsyncIterator[FakeKubelet]:
    """A kubelet that listens in `folder`."""
    kubelet = FakeKubelet(folder / "kubelet.sock")
    await kubelet.start()
    try:
        yield kubelet
    finally:
        await kubelet.stop()
