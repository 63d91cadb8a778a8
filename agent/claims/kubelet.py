"""Asks kubelet through its PodResources socket, which is root's and speaks gRPC in the clear.

One question at a time, each with its own deadline, answers up to a size. Whatever goes wrong
is a reading with a failed read. The channel connects again by itself when kubelet has restarted.
"""

from pathlib import Path
from typing import Final

import grpc

from agent.claims.allocations import AllocationReading, allocations_in, unread
from gpuwarden.evidence.strict_json import quote
from gpuwarden.wire.kubelet import pod_resources_pb2 as pb
from gpuwarden.wire.kubelet.pod_resources_pb2_grpc import PodResourcesListerStub

READ_S: Final = 3.0
"""One question; well below the time to live of a challenge, for which NVML is read beside it."""
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""Hundreds of pods that each hold many devices and all processors of a large machine."""
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    ("grpc.default_authority", "localhost"),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 10_000),
)


class KubeletAllocations:
    """The allocations of one kubelet. One event loop only."""

    def __init__(
        self, socket: Path, resources: tuple[str, ...], *, deadline_s: float = READ_S
    ) -> None:
        """`resources`: names of extended resources and DRA drivers; `*` ends a beginning."""
        self._socket = socket
        self._resources = resources
        self._deadline_s = deadline_s
        self._channel: grpc.aio.Channel | None = None

    async def read(self) -> AllocationReading:
        """Ask kubelet now; never raises for what kubelet does, and ends within the deadline."""
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=_OPTIONS)
        stub = PodResourcesListerStub(self._channel)
        try:
            answer = await stub.List(pb.ListPodResourcesRequest(), timeout=self._deadline_s)
        except grpc.aio.AioRpcError as error:
            return unread(error.code().name, f"{error.code().name}: {quote(error.details() or '')}")
        return allocations_in(answer, self._resources)

    async def aclose(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = None
