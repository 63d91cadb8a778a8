"""FleetService: read access to the verified fleet for people and tools.

Every answer is made from one snapshot and one `now`. Callers are authorized before
they come here. Must not change anything, nor wait for anything but its own readers.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, TypeVar

import grpc

from controller.access import CallerKind, present_caller
from controller.audit.past_classes import PastClasses
from controller.explain.classes import (
    change_messages,
    find_class,
    is_hash,
    list_classes,
    past_class,
)
from controller.explain.gpus import Holders, add_states, nobody
from controller.explain.node import findings, pin_document
from controller.explain.status import Installation, status_message
from controller.fleet.directory import DirectorySnapshot, NodeDirectory
from controller.fleet.present import Fleet
from controller.fleet.quarantine import Shown
from controller.fleet.view import EMPTY_FLEET, FleetSnapshot, NodeState, NodeView
from controller.messages import (
    LabelsOf,
    PromiseOf,
    enrollment_message,
    no_promise,
    node_message,
    refusal_messages,
    use_message,
)
from controller.operations.readiness import Readiness
from controller.policy import Policy
from controller.rpc.calls import Context, abort_with, reject_field
from gpuwarden.clock import Clock
from gpuwarden.identity.spiffe_id import is_node_name
from gpuwarden.moment import NS_PER_S
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.v1 import fleet_pb2 as pb
from gpuwarden.wire.v1 import fleet_pb2_grpc as pb_grpc

_MAX_WATCHERS: Final = 64
_COALESCE_SECONDS: Final = 0.05
_READS_AT_ONCE: Final = 2
"""Of the audit log; other callers wait."""
T = TypeVar("T")
_MAX_POD_BYTES: Final = 1024 * 1024
_MOST_CLASS_CHANGES: Final = 8
"""Nodes of one answer of FitPod whose last change of class is told."""


@dataclass(frozen=True, slots=True)
class NodeChange:
    """`node` is None when the controller forgot it."""

    name: str
    node: NodeView | None


@dataclass(slots=True)
class NodeWatch:
    """What one watcher of the fleet has not been sent yet.

    Compares snapshots by node, so that any number of changes to a node between two
    comparisons is one message, and memory is bounded by the number of nodes, however slow
    the watcher is. A lease that runs out changes a node without any event: `next_ns`
    says when.
    """

    _sent: dict[str, tuple[NodeView, NodeState]] = field(default_factory=dict)

    def take_changes(self, fleet: FleetSnapshot, now_ns: int) -> list[NodeChange]:
        """Nodes that differ from what was sent, sorted by name; counts them as sent."""
        changed = []
        for name, node in fleet.nodes.items():
            state = node.state(now_ns)
            sent = self._sent.get(name)
            if sent is None or sent[0] is not node or sent[1] is not state:
                self._sent[name] = (node, state)
                changed.append(NodeChange(name, node))
        gone = [name for name in self._sent if name not in fleet.nodes]
        for name in gone:
            del self._sent[name]
            changed.append(NodeChange(name, None))
        return sorted(changed, key=lambda change: change.name)

    def next_ns(self) -> int | None:
        """When the next lease that was sent as eligible runs out (CLOCK_BOOTTIME), or None."""
        return min(
            (
                node.acceptance.fresh_until_ns
                for node, state in self._sent.values()
                if state is NodeState.ELIGIBLE and node.acceptance is not None
            ),
            default=None,
        )


class FleetServicer(pb_grpc.FleetServiceServicer):
    """The servicer; one for both listeners."""

    def __init__(
        self,
        fleet: Fleet,
        clock: Clock,
        *,
        policy: Callable[[], Policy],
        shown: Callable[[str], Shown],
        readiness: Callable[[], Readiness],
        labels: Callable[[], LabelsOf],
        fit: Callable[[bytes, str], Awaitable[pb.FitPodResponse | Refusal]],
        installation: Callable[[], Installation],
        promises: Callable[[], PromiseOf] = lambda: no_promise,
        holders: Callable[[], Holders | None] = lambda: nobody,
        past: PastClasses | None = None,
    ) -> None:
        """All is asked again for each answer.

        `shown` gives enrollment, quarantine and candidate of a node; `labels` those of the policy
        in force; `fit` the nodes that would pass for a pod (JSON, default namespace), or why the
        present caller may not ask, and never raises; `installation` what this controller is a part
        of; `promises` what nodes promise now; `holders` who has which GPU, None while that is not
        known; `past` the classes of the audit log.
        """
        self._fleet = fleet
        self._clock = clock
        self._policy = policy
        self._shown = shown
        self._readiness = readiness
        self._labels = labels
        self._fit = fit
        self._installation = installation
        self._promises = promises
        self._holders = holders
        self._past = past
        self._few = asyncio.Semaphore(_READS_AT_ONCE)
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
        """All nodes, sorted by name, with why the controller is not ready."""
        del request, context
        now_ns = self._clock.boottime_ns()
        labels_of = self._labels()
        promise_of = self._promises()
        state = self._readiness()
        return pb.ListNodesResponse(
            nodes=[node_message(node, now_ns, labels_of, promise_of) for node in self._nodes()],
            not_ready="; ".join(state.reasons),
            warnings=state.warnings,
        )

    async def GetNode(  # noqa: N802 - same
        self, request: pb.GetNodeRequest, context: Context
    ) -> pb.GetNodeResponse:
        """One node with its GPUs; NOT_FOUND where it is unknown."""
        node = await self._find_node(request.name, context)
        message = self._message(node, self._clock.boottime_ns())
        enrollment = enrollment_message(self._shown(node.name))
        use = use_message(node.acceptance)
        if use is not None:
            add_states(message.gpus, message, use, self._holders())
        return pb.GetNodeResponse(node=message, enrollment=enrollment, use=use)

    async def ListGpus(  # noqa: N802 - same
        self, request: pb.ListGpusRequest, context: Context
    ) -> pb.ListGpusResponse:
        """Every GPU, or those of one node."""
        nodes = (
            [await self._find_node(request.node, context, "node")]
            if request.node
            else self._nodes()
        )
        now_ns, holders = self._clock.boottime_ns(), self._holders()
        answer = pb.ListGpusResponse()
        for node in nodes:
            use = use_message(node.acceptance)
            if use is not None:
                message = self._message(node, now_ns)
                add_states(message.gpus, message, use, holders)
                answer.gpus.extend(message.gpus)
        return answer

    async def ListClasses(  # noqa: N802 - same
        self, request: pb.ListClassesRequest, context: Context
    ) -> pb.ListClassesResponse:
        """Classes of the fleet and of policy."""
        del request, context
        now_ns = self._clock.boottime_ns()
        classes = list_classes(self._fleet.snapshot(), self._policy(), now_ns)
        return pb.ListClassesResponse(classes=classes)

    async def GetClass(  # noqa: N802 - same
        self, request: pb.GetClassRequest, context: Context
    ) -> pb.GetClassResponse:
        """The class behind a hash, a prefix or a name."""
        now_ns = self._clock.boottime_ns()
        fleet, policy = self._fleet.snapshot(), self._policy()
        found = find_class(fleet, policy, request.class_ref, now_ns)
        is_known = isinstance(found, pb.Class) and (found.document or not found.attestation_hash)
        if not is_known and is_hash(request.class_ref):
            past = await self._read_past(lambda log: log.beginning(request.class_ref))
            found = past_class(fleet, policy, found, past, now_ns)
        if isinstance(found, Refusal):
            await abort_with(context, found, field="class_ref")
        return pb.GetClassResponse(attestation_class=found)

    async def ExplainNode(  # noqa: N802 - same
        self, request: pb.ExplainNodeRequest, context: Context
    ) -> pb.ExplainNodeResponse:
        """Why a node is or is not eligible."""
        node = await self._find_node(request.name, context)
        now_ns = self._clock.boottime_ns()
        shown = self._shown(node.name)
        record = shown.record if shown.known else None
        accepted = node.acceptance
        changes = await self._read_past(lambda log: log.changes_of(node.name))
        return pb.ExplainNodeResponse(
            node=self._message(node, now_ns),
            refusals=refusal_messages(node.refusals),
            identity_document=accepted.identity_document.decode() if accepted else "",
            pin_document=pin_document(record),
            findings=findings(node, record, now_ns),
            enrollment=enrollment_message(shown),
            class_changes=change_messages(changes),
        )

    async def _read_past(self, ask: Callable[[PastClasses], tuple[T, ...]]) -> tuple[T, ...]:
        """What the log and its archive say; nothing where they cannot be read."""
        if self._past is None:
            return ()
        async with self._few:
            try:
                return await asyncio.to_thread(ask, self._past)
            except OSError:
                return ()

    async def FitPod(  # noqa: N802 - same
        self, request: pb.FitPodRequest, context: Context
    ) -> pb.FitPodResponse:
        """Which nodes would pass for a pod that does not exist yet."""
        if not 0 < len(request.pod_json) <= _MAX_POD_BYTES:
            detail = f"pod_json has {len(request.pod_json)} bytes, expected 1 to {_MAX_POD_BYTES}"
            await reject_field(context, "pod_json", detail)
        if request.namespace and not is_node_name(request.namespace):
            detail = f"namespace is {request.namespace[:80]!a}, expected an RFC 1123 name"
            await reject_field(context, "namespace", detail)
        answer = await self._fit(request.pod_json, request.namespace)
        if isinstance(answer, Refusal):
            await abort_with(context, answer, field="namespace")
        if present_caller().kind is not CallerKind.TENANT:
            await self._add_class_changes(answer)
        return answer

    async def _add_class_changes(self, answer: pb.FitPodResponse) -> None:
        unwanted = [x for x in answer.fits if x.code == ReasonCode.HASH_MISMATCH]
        nodes = sorted({x.node for x in unwanted})[:_MOST_CLASS_CHANGES]
        if not nodes:
            return
        found = dict(await self._read_past(lambda log: log.last_changes(nodes)))
        messages = dict(zip(found, change_messages(found.values()), strict=True))
        for one in unwanted:
            if one.node in messages:
                one.class_change.CopyFrom(messages[one.node])

    async def GetStatus(  # noqa: N802 - same
        self, request: pb.GetStatusRequest, context: Context
    ) -> pb.GetStatusResponse:
        """This controller and its fleet in numbers."""
        del request, context
        return status_message(
            self._installation(),
            self._fleet.snapshot(),
            self._readiness(),
            self._clock.boottime_ns(),
        )

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
        unsubscribe = self._fleet.subscribe(wake.set)
        try:
            watch = NodeWatch()
            for message in self._take_changes(watch):
                yield message
            yield pb.WatchNodesResponse(synced=True)
            while not self._draining:
                await self._sleep_until(watch.next_ns(), wake)
                wake.clear()
                for message in self._take_changes(watch):
                    yield message
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this controller is stopping")
        finally:
            unsubscribe()
            self._wakes.discard(wake)

    def _take_changes(self, watch: NodeWatch) -> list[pb.WatchNodesResponse]:
        now_ns = self._clock.boottime_ns()
        labels_of, promise_of = self._labels(), self._promises()
        changes = watch.take_changes(self._fleet.snapshot(), now_ns)
        return [_watch_message(change, now_ns, labels_of, promise_of) for change in changes]

    def _message(self, node: NodeView, now_ns: int) -> pb.Node:
        return node_message(node, now_ns, self._labels(), self._promises())

    async def _sleep_until(self, deadline_ns: int | None, wake: asyncio.Event) -> None:
        """Until something changed or a lease runs out; changes that come close are one."""
        seconds = None
        if deadline_ns is not None:
            seconds = max(0, deadline_ns - self._clock.boottime_ns()) / NS_PER_S
        try:
            async with asyncio.timeout(seconds):
                await wake.wait()
                await asyncio.sleep(_COALESCE_SECONDS)
        except TimeoutError:
            return

    def _nodes(self) -> list[NodeView]:
        nodes = self._fleet.snapshot().nodes
        return [nodes[name] for name in sorted(nodes)]

    async def _find_node(self, name: str, context: Context, field: str = "name") -> NodeView:
        if not is_node_name(name):
            detail = f"{field} is {name[:80]!a}, expected an RFC 1123 node name"
            await reject_field(context, field, detail)
        node = self._fleet.snapshot().nodes.get(name)
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


# --- nodes that nothing was heard of yet


class KnownFleet:
    """The verified fleet, and the nodes of the directory that nothing was heard of yet.

    A node that only the directory knows is shown as unknown, never as anything more.
    """

    def __init__(
        self, fleet: Fleet, directory: NodeDirectory, policy: Callable[[], Policy]
    ) -> None:
        self._fleet = fleet
        self._directory = directory
        self._policy = policy
        self._silent: dict[str, NodeView] = {}
        self._made: tuple[FleetSnapshot, DirectorySnapshot, Policy] | None = None
        self._snapshot = EMPTY_FLEET

    def snapshot(self) -> FleetSnapshot:
        """All nodes; made again only when a source has changed."""
        sources = (self._fleet.snapshot(), self._directory.snapshot(), self._policy())
        if self._made is None or any(a is not b for a, b in zip(sources, self._made, strict=True)):
            self._snapshot = self._merge(*sources)
            self._made = sources
        return self._snapshot

    def subscribe(self, notify: Callable[[], None], /) -> Callable[[], None]:
        """As the verified fleet; the directory is read with each change."""
        return self._fleet.subscribe(notify)

    def _merge(
        self, fleet: FleetSnapshot, directory: DirectorySnapshot, policy: Policy
    ) -> FleetSnapshot:
        silent = {}
        for name in directory.nodes:
            if name not in fleet.nodes:
                silent[name] = self._silent_node(name, policy)
        self._silent = silent
        nodes = MappingProxyType({**silent, **fleet.nodes})
        return FleetSnapshot(nodes, fleet.nodes_by_hash, fleet.version)

    def _silent_node(self, name: str, policy: Policy) -> NodeView:
        """The same object as long as it says the same, so that watchers see no change."""
        mode = policy.mode(name)
        known = self._silent.get(name)
        if known is not None and known.mode is mode:
            return known
        return NodeView(name, acceptance=None, blocked=None, refusals=(), mode=mode)
