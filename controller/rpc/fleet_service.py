"""FleetService: read access to the verified fleet for people and tools.

Every answer is made from one snapshot and one `now`. Callers are authorized before
they come here. Must not change anything, nor wait for anything but its own readers.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import grpc
from grpc import aio

from controller.fleet.operator_decisions import Shown
from controller.fleet.view import FleetSnapshot, NodeView
from controller.policy import Policy
from controller.readiness import Readiness
from controller.rpc.enrollment_messages import enrollment_message
from controller.rpc.failure import abort_with
from controller.rpc.fleet_classes import find_class, list_classes
from controller.rpc.fleet_messages import (
    LabelsOf,
    PromiseOf,
    gpu_messages,
    no_promise,
    node_message,
    refusal_messages,
    use_message,
)
from controller.rpc.node_findings import findings, pin_document
from controller.rpc.node_watch import NodeChange, NodeWatch
from gpuwarden.clock import Clock
from gpuwarden.identity.spiffe_id import is_node_name
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.v1 import fleet_pb2 as pb
from gpuwarden.wire.v1 import fleet_pb2_grpc as pb_grpc

_MAX_WATCHERS: Final = 64
_COALESCE_SECONDS: Final = 0.05
_MAX_POD_BYTES: Final = 1024 * 1024
_NS: Final = 1_000_000_000

Context = aio.ServicerContext[Any, Any]


class Fleet(Protocol):
    """The verified fleet, as readers see it."""

    def snapshot(self) -> FleetSnapshot:
        """The fleet now."""

    def subscribe(self, notify: Callable[[], None], /) -> Callable[[], None]:
        """Call `notify` in the event loop after each change; returns the way to stop that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReader:
    """Where answers come from. All of it is asked anew for each answer."""

    fleet: Fleet
    policy: Callable[[], Policy]
    shown: Callable[[str], Shown]
    """Pins, denial and candidate of a node."""
    readiness: Callable[[], Readiness]
    labels: Callable[[], LabelsOf]
    """Policy labels under the policy in force."""
    fit: Callable[[bytes, str], pb.FitPodResponse]
    """Which nodes would pass for a pod (JSON, default namespace); never raises."""
    promises: Callable[[], PromiseOf] = lambda: no_promise
    """What nodes promise at this moment."""


class FleetService(pb_grpc.FleetServiceServicer):
    """The servicer; one for both listeners."""

    def __init__(self, reader: FleetReader, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self._wakes: set[asyncio.Event] = set()
        self._draining = False

    def drain(self) -> None:
        """End all watches with a clear status, because the controller stops."""
        self._draining = True
        for wake in self._wakes:
            wake.set()

    async def ListNodes(  # noqa: N802 - the method's name in the protocol
        self, request: pb.ListNodesRequest, context: Context
    ) -> pb.ListNodesResponse:
        """All nodes, sorted by name, with what stands in the way of deciding."""
        del request, context
        now_ns = self._clock.boottime_ns()
        labels_of = self._reader.labels()
        promise_of = self._reader.promises()
        state = self._reader.readiness()
        return pb.ListNodesResponse(
            nodes=[node_message(node, now_ns, labels_of, promise_of) for node in self._nodes()],
            not_ready="; ".join(state.reasons),
            warnings=state.warnings,
        )

    async def GetNode(  # noqa: N802 - same
        self, request: pb.GetNodeRequest, context: Context
    ) -> pb.GetNodeResponse:
        """One node with its GPUs; NOT_FOUND where it is unknown."""
        node = await self._node(request.name, context)
        message = self._message(node, self._clock.boottime_ns())
        enrollment = enrollment_message(self._reader.shown(node.name))
        use = use_message(node.acceptance)
        return pb.GetNodeResponse(node=message, enrollment=enrollment, use=use)

    async def ListGpus(  # noqa: N802 - same
        self, request: pb.ListGpusRequest, context: Context
    ) -> pb.ListGpusResponse:
        """Every GPU, or those of one node."""
        nodes = [await self._node(request.node, context, "node")] if request.node else self._nodes()
        labels_of = self._reader.labels()
        return pb.ListGpusResponse(
            gpus=[gpu for node in nodes for gpu in gpu_messages(node, labels_of)]
        )

    async def ListClasses(  # noqa: N802 - same
        self, request: pb.ListClassesRequest, context: Context
    ) -> pb.ListClassesResponse:
        """Classes of the fleet and of policy."""
        del request, context
        now_ns = self._clock.boottime_ns()
        classes = list_classes(self._reader.fleet.snapshot(), self._reader.policy(), now_ns)
        return pb.ListClassesResponse(classes=classes)

    async def GetClass(  # noqa: N802 - same
        self, request: pb.GetClassRequest, context: Context
    ) -> pb.GetClassResponse:
        """The class behind a hash, a prefix or a name."""
        now_ns = self._clock.boottime_ns()
        fleet, policy = self._reader.fleet.snapshot(), self._reader.policy()
        found = find_class(fleet, policy, request.class_ref, now_ns)
        if isinstance(found, Refusal):
            await abort_with(context, found, field="class_ref")
        return pb.GetClassResponse(attestation_class=found)

    async def ExplainNode(  # noqa: N802 - same
        self, request: pb.ExplainNodeRequest, context: Context
    ) -> pb.ExplainNodeResponse:
        """Why a node is or is not eligible."""
        node = await self._node(request.name, context)
        now_ns = self._clock.boottime_ns()
        shown = self._reader.shown(node.name)
        record = shown.record if shown.known else None
        accepted = node.acceptance
        return pb.ExplainNodeResponse(
            node=self._message(node, now_ns),
            refusals=refusal_messages(node.refusals),
            identity_document=accepted.identity_document.decode() if accepted else "",
            pin_document=pin_document(record),
            findings=findings(node, record, now_ns),
            enrollment=enrollment_message(shown),
        )

    async def FitPod(  # noqa: N802 - same
        self, request: pb.FitPodRequest, context: Context
    ) -> pb.FitPodResponse:
        """Which nodes would pass for a pod that does not exist yet."""
        if not 0 < len(request.pod_json) <= _MAX_POD_BYTES:
            detail = f"pod_json has {len(request.pod_json)} bytes, expected 1 to {_MAX_POD_BYTES}"
            await abort_with(context, Refusal(ReasonCode.REQ_INVALID, detail), field="pod_json")
        if request.namespace and not is_node_name(request.namespace):
            detail = f"namespace is {request.namespace[:80]!a}, expected an RFC 1123 name"
            await abort_with(context, Refusal(ReasonCode.REQ_INVALID, detail), field="namespace")
        return self._reader.fit(request.pod_json, request.namespace)

    async def WatchNodes(  # noqa: N802 - same
        self, request: pb.WatchNodesRequest, context: Context
    ) -> AsyncIterator[pb.WatchNodesResponse]:
        """The present nodes, a synced mark, then one message per node that changed."""
        del request
        if len(self._wakes) >= _MAX_WATCHERS:
            refusal = Refusal(ReasonCode.LIMIT_STREAMS, f"{_MAX_WATCHERS} watchers are open")
            await abort_with(context, refusal)
        wake = asyncio.Event()
        self._wakes.add(wake)
        unsubscribe = self._reader.fleet.subscribe(wake.set)
        try:
            watch = NodeWatch()
            for message in self._changed(watch):
                yield message
            yield pb.WatchNodesResponse(synced=True)
            while not self._draining:
                await self._sleep_until(watch.next_ns(), wake)
                wake.clear()
                for message in self._changed(watch):
                    yield message
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this controller is stopping")
        finally:
            unsubscribe()
            self._wakes.discard(wake)

    def _changed(self, watch: NodeWatch) -> list[pb.WatchNodesResponse]:
        now_ns = self._clock.boottime_ns()
        labels_of, promise_of = self._reader.labels(), self._reader.promises()
        changes = watch.changes(self._reader.fleet.snapshot(), now_ns)
        return [_watch_message(change, now_ns, labels_of, promise_of) for change in changes]

    def _message(self, node: NodeView, now_ns: int) -> pb.Node:
        return node_message(node, now_ns, self._reader.labels(), self._reader.promises())

    async def _sleep_until(self, deadline_ns: int | None, wake: asyncio.Event) -> None:
        """Until something changed or a lease runs out; changes that come close are one."""
        seconds = None
        if deadline_ns is not None:
            seconds = max(0, deadline_ns - self._clock.boottime_ns()) / _NS
        try:
            async with asyncio.timeout(seconds):
                await wake.wait()
                await asyncio.sleep(_COALESCE_SECONDS)
        except TimeoutError:
            return

    def _nodes(self) -> list[NodeView]:
        nodes = self._reader.fleet.snapshot().nodes
        return [nodes[name] for name in sorted(nodes)]

    async def _node(self, name: str, context: Context, field: str = "name") -> NodeView:
        if not is_node_name(name):
            detail = f"{field} is {name[:80]!a}, expected an RFC 1123 node name"
            await abort_with(context, Refusal(ReasonCode.REQ_INVALID, detail), field=field)
        node = self._reader.fleet.snapshot().nodes.get(name)
        if node is None:
            unknown = Refusal(ReasonCode.NODE_UNKNOWN, f"no node {name!a}")
            await abort_with(context, unknown, field=field)
        return node


def _watch_message(
    change: NodeChange, now_ns: int, labels_of: LabelsOf, promise_of: PromiseOf
) -> pb.WatchNodesResponse:
    if change.node is None:
        return pb.WatchNodesResponse(node=pb.Node(name=change.name), removed=True)
    return pb.WatchNodesResponse(node=node_message(change.node, now_ns, labels_of, promise_of))
