"""A device plugin for the real node: offers ids as an extended resource, and nothing behind them.

Speaks kubelet's device plugin API v1beta1. A container that gets devices finds their ids in
NVIDIA_VISIBLE_DEVICES, as from NVIDIA's plugin.
"""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import grpc

from tests.e2e.lab.waiting import until

RESOURCE: Final = "nvidia.com/gpu"
VARIABLE: Final = "NVIDIA_VISIBLE_DEVICES"
_PROTO: Final = "tests/e2e/lab/device_plugin.proto"
_VERSION: Final = "v1beta1"
_THREADS: Final = 8
_REGISTER_S: Final = 10.0


class DevicePlugin:
    """One resource; a context manager. `register` again after a restart of kubelet."""

    def __init__(self, folder: Path, devices: Sequence[str], resource: str = RESOURCE) -> None:
        """`folder`: kubelet's device-plugins, seen from here."""
        self._messages: Any
        self._services: Any
        self._messages, self._services = grpc.protos_and_services(_PROTO)
        self._folder = folder
        self._devices = devices
        self._resource = resource
        self._over = threading.Event()
        self._server: grpc.Server | None = None
        self._kubelet = (0, 0)

    def __enter__(self) -> Self:
        self.register()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def register(self) -> None:
        """Listen and tell kubelet; a new one takes away all sockets that it finds, then listens."""
        self._stop()
        kubelet = self._folder / "kubelet.sock"
        self._kubelet = until("kubelet is a new one", lambda: other_file(kubelet, self._kubelet))
        self._over = threading.Event()
        endpoint = f"{self._resource.replace('/', '-')}.sock"
        (self._folder / endpoint).unlink(missing_ok=True)
        self._server = grpc.server(ThreadPoolExecutor(_THREADS))
        self._services.add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self._folder / endpoint}")
        self._server.start()
        request = self._messages.RegisterRequest(
            version=_VERSION, endpoint=endpoint, resource_name=self._resource
        )
        options = (("grpc.default_authority", "localhost"),)
        with grpc.insecure_channel(f"unix:{kubelet}", options) as channel:
            stub = self._services.RegistrationStub(channel)
            stub.Register(request, timeout=_REGISTER_S, wait_for_ready=True)

    def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's
        del request, context
        return self._messages.DevicePluginOptions()

    def ListAndWatch(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802 - same
        del request
        context.add_callback(self._over.set)
        devices = [self._messages.Device(ID=one, health="Healthy") for one in self._devices]
        yield self._messages.ListAndWatchResponse(devices=devices)
        self._over.wait()

    def Allocate(self, request: Any, context: Any) -> Any:  # noqa: N802 - same
        del context
        asked = [",".join(one.devices_ids) for one in request.container_requests]
        given = [self._messages.ContainerAllocateResponse(envs={VARIABLE: ids}) for ids in asked]
        return self._messages.AllocateResponse(container_responses=given)

    def _stop(self) -> None:
        self._over.set()
        if self._server is not None:
            self._server.stop(None).wait()
            self._server = None


def other_file(path: Path, than: tuple[int, int]) -> tuple[int, int] | None:
    """What tells the file at `path` from others, once it is not that one."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    found = (status.st_ino, status.st_ctime_ns)
    return None if found == than else found
