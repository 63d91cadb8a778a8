# ruff: noqa: N802 - methods have the names of the protocol
"""A FleetService with canned answers, on a unix socket or over mTLS, in its own threads.

What it answers and which refusals it gives is set by the test; statuses and
metadata are made as the controller makes them.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self, TypeVar

import grpc

from controller.rpc.calls import status_of
from gpuwarden.reasons import Refusal
from gpuwarden.wire.error_metadata import NOTICE_KEY, REASON_KEY
from gpuwarden.wire.v1 import audit_pb2 as audit
from gpuwarden.wire.v1 import fleet_pb2 as pb
from gpuwarden.wire.v1 import operator_pb2 as ops
from gpuwarden.wire.v1 import placement_pb2 as place
from gpuwarden.wire.v1 import support_pb2 as sup
from gpuwarden.wire.v1.audit_pb2_grpc import (
    AuditServiceServicer,
    add_AuditServiceServicer_to_server,
)
from gpuwarden.wire.v1.fleet_pb2_grpc import (
    FleetServiceServicer,
    add_FleetServiceServicer_to_server,
)
from gpuwarden.wire.v1.operator_pb2_grpc import (
    OperatorServiceServicer,
    add_OperatorServiceServicer_to_server,
)
from gpuwarden.wire.v1.placement_pb2_grpc import (
    PlacementServiceServicer,
    add_PlacementServiceServicer_to_server,
)
from gpuwarden.wire.v1.support_pb2_grpc import (
    SupportServiceServicer,
    add_SupportServiceServicer_to_server,
)

T = TypeVar("T")


class FakeFleetServer(
    FleetServiceServicer,
    OperatorServiceServicer,
    PlacementServiceServicer,
    SupportServiceServicer,
    AuditServiceServicer,
):
    """Set the public attributes, enter it, ask it at `target`."""

    def __init__(self) -> None:
        self.nodes: list[pb.Node] = []
        self.gpus: list[pb.Gpu] = []
        self.classes: list[pb.Class] = []
        self.explanations: dict[str, pb.ExplainNodeResponse] = {}
        self.fit = pb.FitPodResponse()
        self.status = pb.GetStatusResponse()
        self.enrollments: dict[str, pb.Enrollment] = {}
        self.uses: dict[str, pb.GpuUse] = {}
        self.reservations: list[place.Reservation] = []
        """One a page."""
        self.use = place.ListUseResponse()
        self.accounts: dict[str, place.ExplainPodResponse] = {}
        """By `namespace/name`."""
        self.evicted: list[place.EvictedPod] = []
        """One a page."""
        self.warnings_of_acts: list[str] = []
        self.support: list[sup.CollectResponse] = []
        self.log: list[audit.ReadRecordsResponse] = []
        self.log_refusal: Refusal | None = None
        """Given to whoever reads records."""
        self.gpu_log: list[audit.ReadGpuRecordsResponse] = []
        self.found_gpus = audit.FindGpusResponse()
        self.breaks_support = False
        """End the answer as a controller does that goes away."""
        self.changes: list[pb.WatchNodesResponse] = []
        self.not_ready = ""
        self.warnings: list[str] = []
        self.notice = ""
        """Sent with every answer, as a controller does in an evaluation."""
        self.refusal: Refusal | None = None
        """Given to every call."""
        self.hangs = False
        """Answer nothing until the call ends."""
        self.keeps_watches = False
        """Leave a watch open after `changes`, as a controller does."""
        self.asked: list[object] = []
        """Every request, in order."""
        self.target = ""
        self._server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
        add_FleetServiceServicer_to_server(self, self._server)
        add_OperatorServiceServicer_to_server(self, self._server)
        add_PlacementServiceServicer_to_server(self, self._server)
        add_SupportServiceServicer_to_server(self, self._server)
        add_AuditServiceServicer_to_server(self, self._server)

    def on_socket(self, path: Path) -> Self:
        self._server.add_insecure_port(f"unix:{path}")
        self.target = f"unix:{path}"
        return self

    def over_tls(self, key: bytes, chain: bytes, roots: bytes) -> Self:
        credentials = grpc.ssl_server_credentials(
            [(key, chain)], root_certificates=roots, require_client_auth=True
        )
        port = self._server.add_secure_port("127.0.0.1:0", credentials)
        self.target = f"127.0.0.1:{port}"
        return self

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()

    def ListUse(
        self, request: place.ListUseRequest, context: grpc.ServicerContext
    ) -> place.ListUseResponse:
        self._admit(request, context)
        return self.use

    def ListNodes(
        self, request: pb.ListNodesRequest, context: grpc.ServicerContext
    ) -> pb.ListNodesResponse:
        self._admit(request, context)
        return pb.ListNodesResponse(
            nodes=self.nodes, not_ready=self.not_ready, warnings=self.warnings
        )

    def GetStatus(
        self, request: pb.GetStatusRequest, context: grpc.ServicerContext
    ) -> pb.GetStatusResponse:
        self._admit(request, context)
        return self.status

    def GetNode(
        self, request: pb.GetNodeRequest, context: grpc.ServicerContext
    ) -> pb.GetNodeResponse:
        self._admit(request, context)
        nodes = {node.name: node for node in self.nodes}
        return pb.GetNodeResponse(
            node=_known(nodes, request.name, "node", context),
            use=self.uses.get(request.name),
            enrollment=self.enrollments.get(request.name),
        )

    def ListGpus(
        self, request: pb.ListGpusRequest, context: grpc.ServicerContext
    ) -> pb.ListGpusResponse:
        self._admit(request, context)
        return pb.ListGpusResponse(
            gpus=[gpu for gpu in self.gpus if request.node in {"", gpu.node}]
        )

    def ListClasses(
        self, request: pb.ListClassesRequest, context: grpc.ServicerContext
    ) -> pb.ListClassesResponse:
        self._admit(request, context)
        return pb.ListClassesResponse(classes=self.classes)

    def GetClass(
        self, request: pb.GetClassRequest, context: grpc.ServicerContext
    ) -> pb.GetClassResponse:
        self._admit(request, context)
        classes = {key: one for one in self.classes for key in (one.attestation_hash, *one.names)}
        found = _known(classes, request.class_ref, "class", context)
        return pb.GetClassResponse(attestation_class=found)

    def ExplainNode(
        self, request: pb.ExplainNodeRequest, context: grpc.ServicerContext
    ) -> pb.ExplainNodeResponse:
        self._admit(request, context)
        return _known(self.explanations, request.name, "node", context)

    def AcceptNode(
        self, request: ops.AcceptNodeRequest, context: grpc.ServicerContext
    ) -> ops.AcceptNodeResponse:
        self._admit(request, context)
        return ops.AcceptNodeResponse(enrollment=self.enrollments.get(request.name))

    def QuarantineNode(
        self, request: ops.QuarantineNodeRequest, context: grpc.ServicerContext
    ) -> ops.QuarantineNodeResponse:
        self._admit(request, context)
        return ops.QuarantineNodeResponse(
            enrollment=self.enrollments.get(request.name), warnings=self.warnings_of_acts
        )

    def ReleaseNode(
        self, request: ops.ReleaseNodeRequest, context: grpc.ServicerContext
    ) -> ops.ReleaseNodeResponse:
        self._admit(request, context)
        return ops.ReleaseNodeResponse(enrollment=self.enrollments.get(request.name))

    def ReleaseGpu(
        self, request: ops.ReleaseGpuRequest, context: grpc.ServicerContext
    ) -> ops.ReleaseGpuResponse:
        self._admit(request, context)
        one = next((x for x in self.reservations if x.id == request.reservation), None)
        if one is None:
            return ops.ReleaseGpuResponse(already=True)
        return ops.ReleaseGpuResponse(node=one.node, namespace=one.namespace, pod=one.pod)

    def ListReservations(
        self, request: place.ListReservationsRequest, context: grpc.ServicerContext
    ) -> place.ListReservationsResponse:
        self._admit(request, context)
        left = [x for x in self.reservations if x.id > request.after]
        return place.ListReservationsResponse(
            reservations=left[:1], next_after=left[0].id if left[1:] else ""
        )

    def ExplainPod(
        self, request: place.ExplainPodRequest, context: grpc.ServicerContext
    ) -> place.ExplainPodResponse:
        self._admit(request, context)
        return _known(self.accounts, f"{request.namespace}/{request.name}", "pod", context)

    def CheckProtection(
        self, request: place.CheckProtectionRequest, context: grpc.ServicerContext
    ) -> place.CheckProtectionResponse:
        self._admit(request, context)
        left = [x for x in self.evicted if x.name > request.after]
        return place.CheckProtectionResponse(
            pods=left[:1], next_after=left[0].name if left[1:] else "", nodes=2
        )

    def Collect(
        self, request: sup.CollectRequest, context: grpc.ServicerContext
    ) -> Iterator[sup.CollectResponse]:
        self._admit(request, context)
        yield from self.support
        if self.breaks_support:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the controller is going away")

    def ReadRecords(
        self, request: audit.ReadRecordsRequest, context: grpc.ServicerContext
    ) -> Iterator[audit.ReadRecordsResponse]:
        self._admit(request, context)
        self._refuse(self.log_refusal, context)
        yield from self.log
        if request.follow:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the controller is going away")

    def FindGpus(
        self, request: audit.FindGpusRequest, context: grpc.ServicerContext
    ) -> audit.FindGpusResponse:
        self._admit(request, context)
        return self.found_gpus

    def ReadGpuRecords(
        self, request: audit.ReadGpuRecordsRequest, context: grpc.ServicerContext
    ) -> Iterator[audit.ReadGpuRecordsResponse]:
        self._admit(request, context)
        yield from self.gpu_log

    def FitPod(self, request: pb.FitPodRequest, context: grpc.ServicerContext) -> pb.FitPodResponse:
        self._admit(request, context)
        return self.fit

    def WatchNodes(
        self, request: pb.WatchNodesRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.WatchNodesResponse]:
        self._admit(request, context)
        yield from self.changes
        if self.keeps_watches:
            _wait_for_the_end(context)
        context.abort(grpc.StatusCode.UNAVAILABLE, "the controller is going away")

    def _admit(self, request: object, context: grpc.ServicerContext) -> None:
        self.asked.append(request)
        if self.hangs:
            _wait_for_the_end(context)
        if self.notice:
            context.send_initial_metadata(((NOTICE_KEY, self.notice),))
        self._refuse(self.refusal, context)

    def _refuse(self, refusal: Refusal | None, context: grpc.ServicerContext) -> None:
        if refusal is not None:
            context.set_trailing_metadata(((REASON_KEY, refusal.code.value),))
            context.abort(status_of(refusal.code), f"{refusal.code}: {refusal.detail}")


def _wait_for_the_end(context: grpc.ServicerContext) -> None:
    ended = threading.Event()
    if context.add_callback(ended.set):
        ended.wait()


def _known(known: Mapping[str, T], key: str, what: str, context: grpc.ServicerContext) -> T:
    if key not in known:
        context.abort(grpc.StatusCode.NOT_FOUND, f"no {what} {key!a}")
    return known[key]


def changes(nodes: Iterable[pb.Node], *later: pb.WatchNodesResponse) -> list[pb.WatchNodesResponse]:
    """What a watch says: the present nodes, the synced mark, then `later`."""
    first = [pb.WatchNodesResponse(node=node) for node in nodes]
    return [*first, pb.WatchNodesResponse(synced=True), *later]
