"""What people and tools ask: the gRPC services that read, and the HTTP API.

Constructs and connects only. Nothing that it hands out changes a node; `POST /finalize` alone
changes a reservation.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Generic, TypeVar

from controller.access import CallerKind, present_caller
from controller.admission.made_pods import namespace_of
from controller.audit.past_classes import PastClasses
from controller.explain.fit import FitQuery
from controller.explain.gpus import Holders, holders_in, nobody
from controller.explain.protection import ProtectionQuery
from controller.explain.query import PodQuery
from controller.explain.status import Installation
from controller.explain.tenant_view import fits_for_tenant
from controller.fleet.present import Fleet
from controller.fleet.view import GpuView, NodeView
from controller.ledger.store import LedgerSnapshot
from controller.messages import LabelsOf, PromiseOf, fit_message, unreadable_pod
from controller.operations.operator_service import OperatorService
from controller.operations.readiness import Conditions
from controller.placement.node_verdict import Promise, promise_of
from controller.placement.pod import PodDecodeError
from controller.placement.selector import Device, compile_labels, labels_of
from controller.placement.snapshot import Scenes
from controller.policy import Policy
from controller.recorders.trust import WitnessAlarms
from controller.rpc.audit_log import AuditServicer
from controller.rpc.fleet import FleetServicer, KnownFleet
from controller.rpc.services import PlacementServicer
from controller.rpc.tenants import AboutPods
from controller.settings import ControllerSettings
from controller.web.extender.verbs import ExtenderVerbs
from controller.wiring.binding import BindingParts, is_report_only
from controller.wiring.cluster import Cluster
from gpuwarden.audit.reading import records_about
from gpuwarden.clock import Clock
from gpuwarden.evidence.model import WitnessedCheckpoint
from gpuwarden.reasons import Refusal
from gpuwarden.wire.v1 import fleet_pb2 as pb

_T = TypeVar("_T")
_MOST_LOGS: Final = 64
"""Of those that agents name."""


class PerPolicy(Generic[_T]):
    """A value that follows from the policy in force; made once for each policy."""

    def __init__(self, policy: Callable[[], Policy], make: Callable[[Policy], _T]) -> None:
        self._policy = policy
        self._make = make
        self._made: tuple[Policy, _T] | None = None

    def __call__(self) -> _T:
        """The value of now."""
        policy = self._policy()
        if self._made is None or self._made[0] is not policy:
            self._made = (policy, self._make(policy))
        return self._made[1]


# --- gRPC


def fleet_service(
    conditions: Conditions,
    fleet: KnownFleet,
    operators: OperatorService,
    fit: FitQuery,
    scenes: Scenes,
    *,
    installation: Callable[[], Installation],
    ledger: Callable[[], LedgerSnapshot] | None,
    past: PastClasses,
    about_pods: AboutPods,
) -> FleetServicer:
    """The nodes as they stand, and what a pod would find there."""
    return FleetServicer(
        fleet,
        conditions.clock,
        policy=conditions.policy,
        shown=operators.shown,
        readiness=conditions.readiness,
        labels=PerPolicy(conditions.policy, _labels_of),
        fit=partial(_fit, fit, about_pods),
        installation=installation,
        promises=partial(_promises, scenes),
        holders=partial(_holders, ledger, conditions.clock),
        past=past,
    )


def _holders(ledger: Callable[[], LedgerSnapshot] | None, clock: Clock) -> Holders | None:
    if ledger is None:
        return nobody
    now = ledger()
    return holders_in(now) if clock.boottime_ns() < now.fresh_until_ns else None


def installation(
    settings: ControllerSettings,
    cluster: Cluster | None,
    alarms: WitnessAlarms,
    conditions: Conditions,
) -> Installation:
    """What this controller is a part of, now."""
    return Installation(
        cluster=settings.cluster,
        replica=settings.replica,
        enforcement=settings.enforcement.value,
        protection=settings.protection.value,
        replicas=() if cluster is None else cluster.pods.replicas(settings.kubernetes.namespace),
        leads=cluster is not None and cluster.leadership.leads(),
        evaluation=settings.evaluation.enabled,
        alarms=alarms.accusing(),
        listeners=conditions.state.listeners(),
        spire=conditions.spire(conditions.clock.boottime_ns()),
    )


def pod_query(
    settings: ControllerSettings,
    cluster: Cluster,
    binding: BindingParts | None,
    verbs: ExtenderVerbs,
    *,
    fleet: KnownFleet,
    clock: Clock,
) -> PodQuery:
    """Asks about one pod."""
    return PodQuery(
        document=cluster.pods.document,
        explain=verbs.explain,
        judging=verbs.judging,
        fleet=fleet.snapshot,
        ledger=None if binding is None else binding.store.snapshot,
        ids=None if binding is None else binding.ids,
        recent=partial(records_about, settings.audit.dir),
        clock=clock,
        pod_of=cluster.bound_pods.with_uid,
        report_only=is_report_only(settings),
    )


def audit_service(
    settings: ControllerSettings,
    *,
    fleet: Fleet,
    installation: Callable[[], Installation],
    witnesses: Callable[[], Iterable[tuple[str, WitnessedCheckpoint]]],
) -> AuditServicer:
    """This replica's audit log, and which other logs there are."""
    return AuditServicer(
        settings.audit.dir,
        settings.origin,
        logs=partial(_logs, settings, installation, witnesses),
        with_serial_now=partial(_with_serial, fleet),
    )


def _logs(
    settings: ControllerSettings,
    here: Callable[[], Installation],
    witnesses: Callable[[], Iterable[tuple[str, WitnessedCheckpoint]]],
) -> Iterable[str]:
    """This log, those of the replicas that have pods, and those of this cluster agents keep."""
    of_pods = (f"{settings.cluster}/{x}" for x in here().replicas)
    kept = {one.origin for _, one in witnesses() if one.origin.startswith(f"{settings.cluster}/")}
    return {settings.origin, *of_pods, *sorted(kept)[:_MOST_LOGS]}


def _with_serial(fleet: Fleet, serial: str) -> Iterable[str]:
    accepted = (x.acceptance for x in fleet.snapshot().nodes.values() if x.acceptance is not None)
    return {gpu.uuid for x in accepted for gpu in x.gpus if gpu.serial == serial}


def placement_service(
    cluster: Cluster | None,
    binding: BindingParts | None,
    query: PodQuery | None,
    *,
    fleet: KnownFleet,
    clock: Clock,
    about_pods: AboutPods,
) -> PlacementServicer:
    """Reservations, and with a cluster the allocation trace of one pod, and who is evicted."""
    ledger = None if binding is None else binding.store.snapshot
    if cluster is None or query is None:
        return PlacementServicer(ledger, clock)
    evicted = ProtectionQuery(
        pods=cluster.pods.evicted, directory=cluster.nodes.snapshot, fleet=fleet.snapshot
    )
    return PlacementServicer(
        ledger,
        clock,
        about=query.about,
        evicted=evicted.about,
        use=None if binding is None else binding.use_now,
        about_pods=about_pods,
    )


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


async def _fit(
    query: FitQuery, about_pods: AboutPods, pod: bytes, namespace: str
) -> pb.FitPodResponse | Refusal:
    caller = present_caller()
    try:
        where = await asyncio.to_thread(namespace_of, pod, namespace)
        refusal = await about_pods(caller, where, "")
        if refusal is not None:
            return refusal
        found = await query.about(pod, namespace)
        is_tenant = caller.kind is CallerKind.TENANT
        return fit_message(fits_for_tenant(found) if is_tenant else found)
    except PodDecodeError as error:
        return unreadable_pod(str(error))
