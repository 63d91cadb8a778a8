"""What decides about pods: extender, webhooks, binding webhook, hint labels on nodes.

Constructs and connects only. `controller.placement`, `admission` and `binding` decide.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from controller.admission.pod_webhooks import AdmissionDecision, PodWebhooks
from controller.audit.log import DurableLog
from controller.binding.waking import MOST_AT_ONCE, Chosen, Room
from controller.certificates.leaves import EXTENDER
from controller.certificates.material import BUNDLE, CERTIFICATE, KEY
from controller.explain.fit import FitQuery
from controller.fleet.registry import FleetRegistry
from controller.kube.nodes.node_hints import NodeHints
from controller.kube.pods.waiting_events import WaitingPodEvents
from controller.ledger.record import PodRef
from controller.operations.readiness import Conditions
from controller.placement.keys import RequirementRules
from controller.placement.snapshot import Scenes, no_use
from controller.policy import Policy
from controller.recorders.binding import BindingRecorder, UseRecorder
from controller.recorders.http import AdmissionRecorder, ExtenderRecorder, FilterRecorder
from controller.rpc.attestation import StreamTable
from controller.runs.reporter import RunReporter
from controller.settings import ControllerSettings, Scheduling
from controller.web.extender.extender import Extender, ExtenderLimits, ExtenderServer
from controller.web.extender.verbs import ExtenderVerbs, nobody_held_back
from controller.web.listener import HttpServer
from controller.web.scorer import HttpScorer
from controller.web.tls import PreviousFiles, TlsFiles
from controller.wiring.binding import (
    BindingParts,
    BindingSources,
    admission_rules,
    admission_server,
    binding_parts,
    is_report_only,
)
from controller.wiring.certificates import tls_files
from controller.wiring.cluster import Cluster
from controller.wiring.hints import HintParts, hint_parts
from gpuwarden.telemetry.metrics import Instruments


def requirement_rules(settings: ControllerSettings) -> RequirementRules:
    """Which requirements pods may state, and in which keys."""
    return RequirementRules(
        hash_keys=settings.required_hash_keys,
        managed_resources=settings.managed_resources,
        opaque_hashes=settings.insecure_static_hashes,
    )


def enforced_by(cluster: Cluster | None) -> Callable[[str], bool]:
    """Whether a namespace is enforced; without a cluster none is."""
    return _nowhere if cluster is None else cluster.namespaces.is_enforced


def _nowhere(_namespace: str) -> bool:
    return False


def binding_webhook(
    settings: ControllerSettings,
    cluster: Cluster | None,
    scenes: Scenes,
    *,
    registry: FleetRegistry,
    conditions: Conditions,
    instruments: Instruments,
    streams: StreamTable,
) -> BindingParts | None:
    """None without a cluster or webhooks."""
    if cluster is None or settings.admission.tls.cert is None:
        return None
    recorder = BindingRecorder(instruments, conditions.audit, cluster.report_binding)
    return binding_parts(
        BindingSources(
            settings=settings,
            requirements=requirement_rules(settings),
            cluster=cluster,
            scenes=scenes,
            fleet=registry.snapshot,
            not_ready=conditions.not_ready,
            audit=conditions.audit,
            use_recorder=UseRecorder(
                instruments, conditions.audit, cluster.report_use, recorder.logged
            ),
            recorder=recorder,
            streams=streams,
            clock=conditions.clock,
        )
    )


@dataclass(frozen=True, slots=True)
class AdmissionParts:
    """The webhooks for pods, and what is behind all webhooks."""

    pods: PodWebhooks
    recorder: AdmissionRecorder
    hints: HintParts | None
    """None without a scorer."""

    @property
    def scorer(self) -> HttpScorer | None:
        """What is to be closed."""
        return None if self.hints is None else self.hints.scorer

    @property
    def runs(self) -> RunReporter | None:
        """What is to run."""
        return None if self.hints is None else self.hints.runs


def pod_webhooks(
    settings: ControllerSettings,
    cluster: Cluster | None,
    conditions: Conditions,
    instruments: Instruments,
    binding: BindingParts | None,
    *,
    scenes: Scenes,
) -> AdmissionParts | None:
    """None without a certificate for webhooks."""
    if settings.admission.tls.cert is None:
        return None

    def policy() -> Policy | None:
        is_known = conditions.policy_in_force.unknown is None
        return conditions.policy() if is_known and not settings.static_hashes else None

    def report(decision: AdmissionDecision) -> None:
        if cluster is not None:
            cluster.report_admission(decision)

    recorder = AdmissionRecorder(instruments, conditions.audit, report)
    pods = PodWebhooks(
        admission_rules(settings, requirement_rules(settings)),
        is_enforced=enforced_by(cluster),
        note=recorder.note,
        early=None if binding is None else binding.early,
        report=is_report_only(settings),
        policy=policy,
    )
    hints = hint_parts(
        settings,
        cluster,
        scenes,
        conditions,
        instruments,
        requirements=requirement_rules(settings),
    )
    return AdmissionParts(pods, recorder, hints)


def admission_listener(
    settings: ControllerSettings, admission: AdmissionParts | None, binding: BindingParts | None
) -> HttpServer | None:
    """The listener of all webhooks; that for hints fails open."""
    if admission is None:
        return None
    bindings = {} if binding is None else binding.handlers
    hinting = {} if admission.hints is None else admission.hints.webhook.handlers()
    handlers = {**admission.pods.handlers(), **bindings, **hinting}
    return admission_server(
        settings, handlers, recorder=admission.recorder, open_paths=frozenset(hinting)
    )


def fit_query(verbs: ExtenderVerbs, admission: AdmissionParts | None) -> FitQuery:
    """What becomes of a pod before it exists."""
    rehearse = None if admission is None else admission.pods.rehearse
    return FitQuery(verbs.fit, partial(verbs.fit, placed=True), rehearse)


def extender_verbs(
    settings: ControllerSettings,
    conditions: Conditions,
    scenes: Scenes,
    cluster: Cluster | None,
    binding: BindingParts | None,
) -> ExtenderVerbs:
    """The extender's verbs; they avoid nodes where the binding webhook refused the pod lately."""

    def refused(pod_uid: str) -> frozenset[str]:
        if binding is None:
            return frozenset()
        return binding.denials.nodes(pod_uid, conditions.clock.boottime_ns())

    def is_leaving(pod: PodRef) -> bool:
        return cluster is not None and cluster.pods.is_leaving(pod)

    return ExtenderVerbs(
        scenes=scenes,
        not_ready=conditions.not_ready,
        use=no_use if binding is None else binding.use,
        rules=requirement_rules(settings),
        is_enforced=enforced_by(cluster),
        denied=refused,
        is_leaving=is_leaving,
        held_back=nobody_held_back if binding is None else binding.held_back,
        report=is_report_only(settings),
        evaluation=settings.evaluation.enabled,
    )


def wake_by_filter(cluster: Cluster, verbs: ExtenderVerbs) -> None:
    """Where nothing is reserved: a pod is woken where /filter lets it through."""

    def choose(room: Room, without: frozenset[str]) -> Chosen:
        names = None if room.everywhere else sorted(room.nodes)
        waiting = sorted(cluster.waiting_pods(without), key=lambda x: x.turn)
        found = ((x.ref, node) for x in waiting for node in verbs.passing(x.pod, names)[:1])
        return Chosen(tuple(islice(found, MOST_AT_ONCE)))

    cluster.wake_by(choose, tuple)


def extender_server(
    settings: ControllerSettings,
    verbs: ExtenderVerbs,
    audit: DurableLog,
    instruments: Instruments,
    cluster: Cluster | None,
) -> ExtenderServer:
    """The listener for the scheduler; each decision is recorded."""
    recorder = ExtenderRecorder(instruments, audit)
    report = None if cluster is None else cluster.report_placement
    limits = ExtenderLimits(body_bytes=settings.limits.filter_bytes)
    return ExtenderServer(
        Extender(
            verbs,
            note=FilterRecorder(audit, recorder.count_nodes, report).note,
            metrics=recorder,
            limits=limits,
        ),
        address=settings.listen.extender,
        tls=_extender_files(settings),
        observer=recorder,
        limits=limits,
    )


def _extender_files(settings: ControllerSettings) -> TlsFiles | None:
    tls = settings.extender.tls
    if tls.cert is None or tls.key is None:
        return None
    files = tls_files(settings, tls.cert, tls.key, tls.client_ca)
    if tls.previous is None:
        return files
    crt, key, ca = (tls.previous / x for x in (CERTIFICATE, KEY, BUNDLE))
    return replace(files, previous=PreviousFiles(EXTENDER, TlsFiles(crt, key, ca)))


def node_hints(
    settings: ControllerSettings,
    cluster: Cluster | None,
    verbs: ExtenderVerbs,
    conditions: Conditions,
) -> NodeHints | None:
    """None unless pods reach their nodes by affinity."""
    if cluster is None or settings.scheduling.mode is not Scheduling.AFFINITY:
        return None
    return cluster.hints(verbs.passing, verbs.is_held_back, conditions.not_ready)


def waiting_events(
    settings: ControllerSettings,
    cluster: Cluster | None,
    verbs: ExtenderVerbs,
    conditions: Conditions,
) -> WaitingPodEvents | None:
    """None where a scheduler asks the extender: its own events name gpuwarden then."""
    by_affinity = settings.scheduling.mode is Scheduling.AFFINITY
    if cluster is None or not by_affinity or is_report_only(settings):
        return None
    return cluster.waiting_events(verbs.why_waiting, conditions.not_ready)
