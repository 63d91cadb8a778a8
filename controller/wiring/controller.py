"""Makes the parts of a controller from its settings and connects them.

Starts nothing and opens no port. What a part is made of stands in the module of its side:
`cluster`, `stores`, `trust`, `binding`, `pods`, `services`, `listeners`, `telemetry`.
"""

import hashlib
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from controller.audit.log import DurableLog
from controller.audit.opening import audit_log
from controller.audit.past_classes import PastClasses
from controller.audit.sealing import LogIdentity
from controller.binding.use_reconciler import UseNow
from controller.explain.node import RecentRefusals
from controller.export.inventory import InventoryExport
from controller.fleet.directory import NodeDirectory
from controller.fleet.present import PresentFleet
from controller.fleet.quarantine import QuarantineEntries, QuarantineFate
from controller.fleet.registry import Changes, FleetRegistry
from controller.fleet.view import NodeView
from controller.kube.api.client import Exchange
from controller.kube.nodes.inventory_labels import InventoryLabels
from controller.kube.nodes.node_hints import NodeHints
from controller.kube.objects.certificates import ManagedCertificates
from controller.kube.pods.waiting_events import WaitingPodEvents
from controller.operations.quarantine_reconciler import QuarantineReconciler
from controller.operations.readiness import ClockAnchor, Conditions, ProcessState
from controller.placement.snapshot import Scenes
from controller.placement.static_hashes import InsecureStaticHashes
from controller.policies.file import PolicyFile
from controller.policies.in_force import PolicyInForce, PolicySource
from controller.policy import DEFAULT_POLICY, Policy
from controller.record import Record
from controller.recorders.fleet_page import fleet_page
from controller.recorders.gauges import FleetGauges, count_fleet
from controller.recorders.http import ApiRecorder
from controller.recorders.listeners import ListenerRecorder
from controller.recorders.people import PeopleRecorder
from controller.recorders.support_bundle import ControllerState
from controller.recorders.trust import CONTROLLER, SpireRecorder, TrustRecorder
from controller.rpc.attestation import StreamTable
from controller.rpc.audit_log import AuditServicer
from controller.rpc.fleet import FleetServicer, KnownFleet
from controller.rpc.services import OperatorServicer, SupportServicer
from controller.rpc.tenants import no_tenants
from controller.runs.reporter import RunReporter
from controller.settings import ControllerSettings, PolicyOrigin, Protection, StoreKind
from controller.spire.poller import Revocation
from controller.verifier.verifier import Verifier
from controller.web.scorer import HttpScorer
from controller.web.server import OpsServer, RenderMetrics, ops_app
from controller.wiring.binding import (
    OPEN_TO_THE_NETWORK,
    REPORT_ONLY_WARNING,
    BindingParts,
    is_report_only,
)
from controller.wiring.certificates import managed_certificates
from controller.wiring.cluster import Cluster
from controller.wiring.export import inventory_export
from controller.wiring.http_api import Around, http_api
from controller.wiring.listeners import Listeners, RpcServices
from controller.wiring.people import people_access
from controller.wiring.pods import (
    admission_listener,
    binding_webhook,
    extender_server,
    extender_verbs,
    fit_query,
    node_hints,
    pod_webhooks,
    requirement_rules,
    waiting_events,
    wake_by_filter,
)
from controller.wiring.services import (
    audit_service,
    fleet_service,
    installation,
    placement_service,
    pod_query,
)
from controller.wiring.stores import MEMORY_WARNING, ChosenStore, choose_store
from controller.wiring.telemetry import audit_copies, otlp_log_export, send_changes
from controller.wiring.trust import (
    SpireConfirmation,
    attestation_service,
    evidence_intake,
    operator_service,
    quarantine_reconciler,
    revocation,
    spire_confirmation,
    verifier_settings,
)
from gpuwarden import __version__
from gpuwarden.audit.record import RecordKind
from gpuwarden.clock import Clock
from gpuwarden.counted import counted
from gpuwarden.finding import Finding
from gpuwarden.identity.svid_watcher import SvidWatcher
from gpuwarden.policy.document import PolicyInvalidError
from gpuwarden.settings.keys import ENV_PREFIX
from gpuwarden.settings.loader import Loaded
from gpuwarden.settings.report import effective, render
from gpuwarden.telemetry import names
from gpuwarden.telemetry.log_export import LogExport
from gpuwarden.telemetry.logs import EventLogger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

EVALUATION_WARNING: Final = (
    "EVALUATION (evaluation.enabled): GPUs may be made up and nothing is proven; every node has"
    " level none; never use this in production"
)
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class NodesUnknownError(Exception):
    """There is no node directory: a controller that knows no nodes could accept nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A controller that is not started yet: what is started, asked and closed in its life."""

    clock: Clock
    conditions: Conditions
    audit: DurableLog
    store: ChosenStore
    policy: PolicyInForce
    registry: FleetRegistry
    denials: QuarantineReconciler
    recorder: TrustRecorder
    spire: SpireConfirmation
    revocation: Revocation
    cluster: Cluster | None
    """None where the Kubernetes API is not used."""
    binding: BindingParts | None
    """None without a cluster or webhooks."""
    hints: NodeHints | None
    """None unless pods reach their nodes by affinity."""
    waiting_events: WaitingPodEvents | None
    """Likewise, and where Events are written."""
    certificates: ManagedCertificates | None
    """None where others give the listeners their certificates."""
    export: InventoryExport | None
    """None where nothing is exported."""
    labels: InventoryLabels | None
    """None unless nodes get labels with their inventory."""
    log_records: LogExport | None
    """None unless an OpenTelemetry collector gets audit records and changes of nodes."""
    scorer: HttpScorer | None
    """None unless a scorer is asked for hints."""
    runs: RunReporter | None
    """None unless it is told of runs."""
    streams: StreamTable
    fleet: FleetServicer
    audit_reader: AuditServicer
    listeners: Listeners


def assemble(
    loaded: Loaded[ControllerSettings],
    *,
    directory: NodeDirectory | None,
    exchange: Exchange | None = None,
    svids: SvidWatcher,
    instruments: Instruments,
    clock: Clock,
) -> Parts:
    """Make the parts and connect them; the nodes come from `directory`, or from the cluster.

    Raises PolicyInvalidError, StaticHashesError, ListenRefusedError, TlsFilesError, IdKeysError,
    StoreKindError or NodesUnknownError for what cannot be used.
    """
    settings = loaded.settings
    cluster = _cluster(settings, exchange, clock, instruments)
    directory = _directory(directory, cluster)
    log_records = otlp_log_export(settings, instruments)
    audit = audit_log(
        settings.audit,
        _log_identity(settings),
        clock,
        instruments,
        also_copy=audit_copies(log_records),
    )
    store = choose_store(settings.store, clock, None if cluster is None else cluster.enrollments)
    source = _policy_source(settings, cluster)
    registry = FleetRegistry((None if source is None else source.current) or DEFAULT_POLICY)
    policy = PolicyInForce(
        source, audit=audit, instruments=instruments, changed=_new_policy(registry, cluster)
    )
    anchor = ClockAnchor(clock.boottime_ns(), clock.wall_ns(), settings.clock.warn.ns)
    spire = spire_confirmation(settings, svids, clock, anchor, SpireRecorder(instruments, audit))
    conditions = Conditions(
        times=settings.attestation,
        clock=clock,
        svids=svids,
        directory=directory,
        store=store.store,
        audit=audit,
        policy_in_force=policy,
        state=ProcessState(anchor),
        insecure=_insecure_warnings(settings, directory),
        namespaces_fresh_until_ns=None if cluster is None else cluster.namespaces.fresh_until_ns,
        cluster_warnings=tuple if cluster is None else cluster.warnings,
        spire=spire.condition,
    )
    refusals = RecentRefusals(clock.wall_ns)
    export = inventory_export(settings, cluster, registry, conditions, instruments)
    if export is not None:
        conditions.state.export_warnings = export.warnings
    recorder = TrustRecorder(
        instruments,
        audit,
        refusals,
        _report_changes(
            cluster, registry.view, conditions, export, partial(send_changes, log_records, clock)
        ),
    )
    denials = QuarantineEntries(store.store, partial(recorder.denial, fate=QuarantineFate.EXISTS))
    streams = StreamTable()
    present, known_fleet = _fleets(registry, conditions, streams)
    scenes = Scenes(
        present.snapshot,
        conditions.policy,
        conditions.now,
        InsecureStaticHashes(settings.static_hashes),
        nodes=directory.snapshot,
        protected=settings.protection is Protection.CLUSTER,
    )
    binding = binding_webhook(
        settings,
        cluster,
        scenes,
        registry=registry,
        conditions=conditions,
        instruments=instruments,
        streams=streams,
    )
    if binding is not None:
        conditions.state.ledger_uncertainty = binding.uncertainty
    verbs = extender_verbs(settings, conditions, scenes, cluster, binding)
    admission = pod_webhooks(settings, cluster, conditions, instruments, binding, scenes=scenes)
    if cluster is not None and binding is None:
        wake_by_filter(cluster, verbs)
    operators = operator_service(conditions, denials, registry, recorder)
    verifier = Verifier(verifier_settings(settings), spire=spire.facts)
    intake = evidence_intake(verifier, conditions, denials, registry, recorder)
    render_metrics = _metrics_page(
        instruments, svids, present, conditions, spire, cluster=cluster, binding=binding
    )
    state = ControllerState(
        loaded=loaded,
        conditions=conditions,
        fleet=known_fleet.snapshot,
        streams=streams,
        refusals=refusals,
        alarms=recorder.alarms,
        audit=audit,
        store_facts=store.facts,
        metrics=render_metrics,
    )
    people_recorder = PeopleRecorder(instruments)
    people = people_access(settings, cluster, clock=clock, recorder=people_recorder)
    about_pods = no_tenants if people is None else people.roles.about_pods
    here = partial(installation, settings, cluster, recorder.alarms, conditions)
    query = None
    if cluster is not None:
        query = pod_query(
            settings,
            cluster,
            binding,
            verbs,
            fleet=KnownFleet(registry, directory, conditions.policy),  # pods may outlive nodes
            clock=clock,
        )
    services = RpcServices(
        attestation=attestation_service(
            settings,
            conditions,
            verifier,
            intake,
            recorder=recorder,
            table=streams,
            binding=binding,
        ),
        fleet=fleet_service(
            conditions,
            known_fleet,
            operators,
            fit_query(verbs, admission),
            scenes,
            installation=here,
            ledger=None if binding is None else binding.store.snapshot,
            past=PastClasses(settings.audit.dir, settings.trust_domain),
            about_pods=about_pods,
        ),
        operator=OperatorServicer(operators, None if binding is None else binding.releases),
        placement=placement_service(
            cluster,
            binding,
            query,
            fleet=known_fleet,
            clock=clock,
            about_pods=about_pods,
        ),
        support=SupportServicer(state.parts),
        audit=audit_service(
            settings, fleet=registry, installation=here, witnesses=streams.witnesses
        ),
    )
    listeners = Listeners(
        settings,
        ops=OpsServer(
            ops_app(
                conditions.readiness,
                render_metrics,
                _fleet_page(known_fleet, binding, clock) if settings.metrics.fleet else None,
            ),
            settings.listen.ops,
            observer=ListenerRecorder("ops", instruments),
        ),
        services=services,
        extender=extender_server(settings, verbs, audit, instruments, cluster),
        admission=admission_listener(settings, admission, binding),
        api=http_api(
            Around(
                settings=settings,
                cluster=cluster,
                binding=binding,
                fleet=known_fleet,
                conditions=conditions,
                operators=operators,
                query=query,
                streams=streams,
                alarms=recorder.alarms,
                installation=here,
                recorder=ApiRecorder(instruments, audit),
                people=people_recorder,
            )
        ),
        people=people,
        conditions=conditions,
        svids=svids,
        recorder=recorder,
        instruments=instruments,
        notice=EVALUATION_WARNING if settings.evaluation.enabled else "",
    )
    instruments.gauge(names.EVALUATION).set(settings.evaluation.enabled)
    conditions.state.listener_warnings = listeners.warnings
    conditions.state.listeners = listeners.states
    certificates = managed_certificates(settings, cluster, audit)
    if certificates is not None:
        conditions.state.certificates_error = certificates.waiting
        conditions.state.certificate_warnings = certificates.warnings
    return Parts(
        clock=clock,
        conditions=conditions,
        audit=audit,
        store=store,
        policy=policy,
        registry=registry,
        denials=quarantine_reconciler(
            settings, conditions, denials, registry, recorder=recorder, instruments=instruments
        ),
        recorder=recorder,
        spire=spire,
        revocation=revocation(
            settings,
            conditions,
            spire.facts,
            directory,
            registry=registry,
            intake=intake,
            table=streams,
        ),
        cluster=cluster,
        binding=binding,
        hints=node_hints(settings, cluster, verbs, conditions),
        waiting_events=waiting_events(settings, cluster, verbs, conditions),
        certificates=certificates,
        export=export,
        labels=(
            cluster.inventory_labels(registry.snapshot, conditions.not_ready)
            if cluster is not None and settings.kubernetes.inventory_labels
            else None
        ),
        log_records=log_records,
        scorer=None if admission is None else admission.scorer,
        runs=None if admission is None else admission.runs,
        streams=streams,
        fleet=services.fleet,
        audit_reader=services.audit,
        listeners=listeners,
    )


# --- what the settings choose


def _cluster(
    settings: ControllerSettings, exchange: Exchange | None, clock: Clock, instruments: Instruments
) -> Cluster | None:
    if exchange is None:
        return None
    return Cluster(
        settings.kubernetes,
        exchange,
        replica=settings.replica,
        rules=requirement_rules(settings),
        clock=clock,
        instruments=instruments,
        has_policy=settings.policy.source is PolicyOrigin.CLUSTER,
        hints=settings.hints.scheduler_url is not None,
    )


def _directory(directory: NodeDirectory | None, cluster: Cluster | None) -> NodeDirectory:
    if directory is not None:
        return directory
    if cluster is None:
        raise NodesUnknownError(
            "no node directory: expected the Kubernetes API, or a list of nodes in the sandbox"
        )
    return cluster.nodes


def _fleets(
    registry: FleetRegistry, conditions: Conditions, streams: StreamTable
) -> tuple[PresentFleet, KnownFleet]:
    """By what pods are judged, and what people see."""
    directory, boottime_ns = conditions.directory, conditions.clock.boottime_ns
    present = PresentFleet(registry, directory, streams.is_connected, boottime_ns)
    return present, KnownFleet(present, directory, conditions.policy)


def _policy_source(settings: ControllerSettings, cluster: Cluster | None) -> PolicySource | None:
    if settings.policy.source is PolicyOrigin.FILE:
        path, opaque_hashes = settings.policy.file, settings.insecure_static_hashes
        return None if path is None else PolicyFile(path, opaque_hashes=opaque_hashes)
    if cluster is None or cluster.policy is None:
        expected = "file, where the Kubernetes API is not used"
        raise PolicyInvalidError((Finding("policy.source", "cluster", expected),))
    return cluster.policy


def _report_changes(
    cluster: Cluster | None,
    view: Callable[[str], NodeView | None],
    conditions: Conditions,
    export: InventoryExport | None,
    send: Callable[[Changes], None],
) -> Callable[[Changes, str], None]:
    """Reports changes of trust in the cluster, to exporters and collectors, and requeues pods.

    Until every agent had its turn nothing is decided, so no pod waits for one of these changes.
    """

    def report(changes: Changes, actor: str) -> None:
        send(changes)
        if export is not None:
            export.changed(changes)
        if cluster is None:
            return
        cluster.report_trust(changes, actor, view)
        if conditions.not_ready() is None:
            cluster.wake(changes)

    return report


def _new_policy(registry: FleetRegistry, cluster: Cluster | None) -> Callable[[Policy], None]:
    """A pod that was rejected may pass anywhere then."""

    def changed(policy: Policy) -> None:
        registry.set_policy(policy)
        if cluster is not None:
            cluster.wake_everything()

    return changed


def _insecure_warnings(settings: ControllerSettings, directory: NodeDirectory) -> tuple[str, ...]:
    """One text for each stand-in that would be wrong in production."""
    warnings = [directory.warning()]
    if settings.evaluation.enabled:
        warnings.append(EVALUATION_WARNING)
    if is_report_only(settings):
        warnings.append(REPORT_ONLY_WARNING)
    if settings.store.kind is StoreKind.MEMORY:
        warnings.append(MEMORY_WARNING)
    if settings.insecure_static_hashes:
        warnings.append(
            f"InsecureStaticHashes: {counted(len(settings.static_hashes), 'node')} with hashes that"
            " nobody attested; never use this in production"
        )
    if settings.admission.tls.cert is not None and settings.admission.tls.client_ca is None:
        warnings.append(OPEN_TO_THE_NETWORK)
    return tuple(text for text in warnings if text)


def _log_identity(settings: ControllerSettings) -> LogIdentity:
    """Whose log it is: the origin, this boot, this process."""
    boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else "unknown"
    return LogIdentity(settings.origin, boot, secrets.token_hex(16))


def _metrics_page(
    instruments: Instruments,
    svids: SvidWatcher,
    fleet: PresentFleet,
    conditions: Conditions,
    spire: SpireConfirmation,
    *,
    cluster: Cluster | None,
    binding: BindingParts | None,
) -> RenderMetrics:
    """What Prometheus reads: gauges are set as it asks, then everything is rendered."""
    gauges, audit = FleetGauges(instruments), conditions.audit
    if binding is None:
        instruments.gauge(names.LEDGER_AVAILABLE).set(math.nan)

    def render_page(*, exemplars: bool = False) -> bytes:
        now_ns = conditions.clock.boottime_ns()
        gauges.set_fleet(count_fleet(fleet.snapshot(), now_ns))
        gauges.set_svid(svids.facts())
        if cluster is not None:
            cluster.set_gauges()
        if binding is not None:
            binding.set_gauges(now_ns)
        instruments.gauge(names.READY).set(conditions.readiness().ready)
        instruments.gauge(names.SPIRE_AGE).set(
            0.0 if spire.poller is None else spire.poller.age_s(now_ns)
        )
        instruments.gauge(names.AUDIT_QUEUE).set(audit.waiting)
        published = audit.published
        instruments.gauge(names.AUDIT_CHECKPOINT).set(published.head.size if published else 0)
        return instruments.render(exemplars=exemplars)

    return render_page


def _fleet_page(
    fleet: KnownFleet, binding: BindingParts | None, clock: Clock
) -> Callable[[], Callable[[], bytes]]:
    """Takes snapshots; what it returns makes series of all nodes and GPUs of them."""

    def take() -> Callable[[], bytes]:
        now, now_ns = fleet.snapshot(), clock.boottime_ns()
        if binding is None or not binding.reserves:
            return partial(fleet_page, now, None, UseNow(), now_ns)
        ledger, to_record = binding.store.snapshot(), binding.to_record()
        return partial(fleet_page, now, ledger, binding.use_now(), now_ns, to_record=to_record)

    return take


# --- the settings in force, in the log and in the audit log


def announce_settings(loaded: Loaded[ControllerSettings], parts: Parts, log: EventLogger) -> None:
    """Log the values, which of them came under an alias, and which stand-ins are insecure."""
    log.info(
        Event.CONFIG_EFFECTIVE,
        digest=_digest(loaded),
        settings={key: entry["value"] for key, entry in effective(loaded).items()},
    )
    for key, source in loaded.sources.items():
        if _is_alias(source):
            log.info(Event.CONFIG_ALIAS, key=key, source=source)
    for finding in loaded.warnings:
        log.warning(Event.CONFIG_IGNORED, warning=str(finding))
    for warning in parts.conditions.insecure:
        log.warning(Event.CONFIG_INSECURE, warning=warning)


def record_settings(loaded: Loaded[ControllerSettings], parts: Parts) -> None:
    """Record in the audit log: settings and policy by digest, store, version."""
    parts.audit.note(
        Record(
            RecordKind.CONFIG_CHANGE,
            actor=CONTROLLER,
            subject="settings",
            decision="in-force",
            refs={
                "config": _digest(loaded),
                "policy": parts.policy.current.digest,
                "store": parts.store.facts(),
                "version": __version__,
                "insecure": list(parts.conditions.insecure),
            },
        )
    )


def _is_alias(source: str) -> bool:
    """Whether a value came from a variable without the prefix of gpuwarden."""
    kind, _, variable = source.partition(" ")
    return kind == "environment" and not variable.startswith(ENV_PREFIX)


def _digest(loaded: Loaded[ControllerSettings]) -> str:
    """SHA-256 of the effective configuration as `config print` shows it."""
    return hashlib.sha256(render(loaded).encode()).hexdigest()
