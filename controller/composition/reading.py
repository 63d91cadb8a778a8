"""What people and tools read of a controller: fleet, labels, fit, promises, placements.

Connects alone, and hands out nothing that changes a node, a denial or a reservation.
"""

from collections.abc import Callable
from functools import partial

from controller.audit.recent import records_about
from controller.binding.assembly import BindingParts
from controller.conditions import Conditions
from controller.custody.inquiry import InquiryPorts, PodInquiry
from controller.fleet.view import GpuView, NodeView
from controller.kube.cluster import Cluster
from controller.operator_desk import OperatorDesk
from controller.policy import Policy
from controller.rpc.fit_message import fit_message, unreadable_pod
from controller.rpc.fleet_messages import LabelsOf, PromiseOf
from controller.rpc.fleet_service import FleetReader, FleetService
from controller.rpc.known_fleet import KnownFleet
from controller.rpc.placement_service import PlacementReader, PlacementService
from controller.scheduling.device_facts import Device
from controller.scheduling.device_labels import compile_labels, labels_of
from controller.scheduling.pod import PodDecodeError
from controller.scheduling.promise import Promise, promise_of
from controller.scheduling.scenes import Scenes
from controller.scheduling.verbs import ExtenderVerbs
from controller.settings import ControllerSettings
from gpuwarden.clock import Clock
from gpuwarden.wire.v1 import fleet_pb2 as pb


def fleet_service(
    conditions: Conditions,
    fleet: KnownFleet,
    desk: OperatorDesk,
    verbs: ExtenderVerbs,
    scenes: Scenes,
) -> FleetService:
    """The nodes as they stand, and what a pod would find there."""
    return FleetService(
        FleetReader(
            fleet=fleet,
            policy=conditions.policy,
            shown=desk.shown,
            readiness=conditions.readiness,
            labels=Labels(conditions.policy),
            fit=partial(_fit, verbs),
            promises=partial(_promises, scenes),
        ),
        conditions.clock,
    )


def placement_service(
    settings: ControllerSettings,
    cluster: Cluster | None,
    binding: BindingParts | None,
    verbs: ExtenderVerbs,
    *,
    fleet: KnownFleet,
    clock: Clock,
) -> PlacementService:
    """Reservations, and with a cluster the way of one pod to its GPUs."""
    ledger = None if binding is None else binding.ledger.store.snapshot
    if cluster is None:
        return PlacementService(PlacementReader(ledger=ledger), clock)
    inquiry = PodInquiry(
        InquiryPorts(
            pods=cluster.pods,
            explain=verbs.explain,
            fleet=fleet.snapshot,
            ledger=ledger,
            ids=None if binding is None else binding.ids,
            recent=partial(records_about, settings.audit.dir),
            clock=clock,
        )
    )
    return PlacementService(PlacementReader(ledger=ledger, about=inquiry.about), clock)


class Labels:
    """Policy labels of GPUs; selectors are compiled once per policy."""

    def __init__(self, policy: Callable[[], Policy]) -> None:
        self._policy = policy
        self._made: tuple[Policy, LabelsOf] | None = None

    def __call__(self) -> LabelsOf:
        """How labels are found under the policy in force."""
        policy = self._policy()
        if self._made is None or self._made[0] is not policy:
            self._made = (policy, _labels_of(policy))
        return self._made[1]


def _labels_of(policy: Policy) -> LabelsOf:
    selectors = compile_labels(policy.labels)

    def find(node: NodeView, gpu: GpuView) -> tuple[str, ...]:
        if node.acceptance is None:
            return ()
        device = Device(gpu.uuid, node.acceptance.host, gpu, None, in_use=False)
        return labels_of(device, selectors)

    return find


def _promises(scenes: Scenes) -> PromiseOf:
    scene = scenes.now()

    def promised(node: NodeView) -> Promise:
        return promise_of(node.name, node.mode, scene)

    return promised


def _fit(verbs: ExtenderVerbs, pod: bytes, namespace: str) -> pb.FitPodResponse:
    try:
        return fit_message(*verbs.fit(pod, namespace))
    except PodDecodeError as error:
        return unreadable_pod(str(error))
