"""A node's kubelet as far as gpuwarden's agent sees it: its PodResources socket, and processes.

What runs is made up: a folder like `/proc` says which pod a process is of, and whoever made this
puts its process ids into the node's NVML. Its socket keeps tests/contracts/pod_resources.py.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import grpc

from gpuwarden.wire.kubelet import pod_resources_pb2 as pb
from gpuwarden.wire.kubelet.pod_resources_pb2_grpc import (
    PodResourcesListerServicer,
    add_PodResourcesListerServicer_to_server,
)

_FIRST_PID: Final = 40_000
_INIT: Final = "0::/init.scope\n"


class PodResources(PodResourcesListerServicer):
    """Answers which devices pods hold. Used from one event loop."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.pods: list[pb.PodResources] = []
        self._server: grpc.aio.Server | None = None

    async def List(  # noqa: N802 - the method's name in the protocol
        self,
        request: pb.ListPodResourcesRequest,
        context: "grpc.aio.ServicerContext[object, object]",
    ) -> pb.ListPodResourcesResponse:
        """All pods."""
        del request, context
        return pb.ListPodResourcesResponse(pod_resources=self.pods)

    async def start(self) -> None:
        """Listen on the socket."""
        self._server = grpc.aio.server()
        add_PodResourcesListerServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()

    async def stop(self) -> None:
        """Listen no more."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None


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


class Kubelet(PodResources):
    """The kubelet of one node."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "kubelet.sock")
        self.proc = folder / "proc"
        self.pids: dict[str, tuple[int, ...]] = {}
        """What runs on GPUs, by UUID."""
        self._next_pid = _FIRST_PID
        self._write_cgroup(1, _INIT)

    def give(self, namespace: str, pod: str, container: str, gpus: Iterable[str]) -> None:
        """Allocate GPUs to a pod's container, as the device plugin's."""
        self.pods.append(pod_resources(namespace, pod, devices=gpus, container=container))

    def given(self) -> frozenset[str]:
        """All GPUs that pods hold."""
        containers = (x for pod in self.pods for x in pod.containers)
        return frozenset(x for one in containers for y in one.devices for x in y.device_ids)

    def run_on(self, gpu: str, pod_uid: str | None) -> None:
        """Let a process of a pod, or of none, run on a GPU."""
        pid, self._next_pid = self._next_pid, self._next_pid + 1
        slice_ = f"kubepods.slice/kubepods-pod{pod_uid.replace('-', '_')}.slice" if pod_uid else ""
        self._write_cgroup(pid, f"0::/{slice_ or 'user.slice/session-1.scope'}\n")
        self.pids[gpu] = (*self.pids.get(gpu, ()), pid)

    def _write_cgroup(self, pid: int, text: str) -> None:
        folder = self.proc / str(pid)
        folder.mkdir(parents=True)
        (folder / "cgroup").write_text(text)
