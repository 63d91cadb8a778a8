"""Puts the parts of a controller together from its settings. Starts nothing, opens no port."""

import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from controller.admission.assembly import (
    OPEN_TO_THE_NETWORK,
    admission_rules,
    admission_server,
    is_report_only,
)
from controller.admission.decision import AdmissionDecision
from controller.admission.pods import PodPorts
from controller.admission_journal import AdmissionJournal
from controller.api_journal import ApiJournal
from controller.audit.durable_log import DurableLog
from controller.audit.opening import audit_log
from controller.audit.recent import records_about
from controller.audit.sealing import LogIdentity
from controller.binding.assembly import BindingParts, BindingSources, binding_parts
from controller.binding.ledger_choice import choose_ledger
from controller.binding_journal import BindingJournal
from controller.clock_guard import ClockAnchor
from controller.conditions import Conditions, ProcessState
from controller.custody.inquiry import InquiryPorts, PodInquiry
from controller.denial_follower import DenialFollower
from controller.extender_journal import ExtenderJournal
from controller.fleet.denials import DenialFate, Denials
from controller.fleet.directory import NodeDirectory
from controller.fleet.registry import Changes, FleetRegistry
from controller.fleet.view import GpuView, NodeMode, NodeView
from controller.http_api.assembly import ApiSources, api_server
from controller.http_api.finalizing import FinalizePorts
from controller.http_server import HttpServer
from controller.kube.api import Exchange
from controller.kube.cluster import Cluster
from controller.kube.node_hints import NodeHints
from controller.operator_desk import DeskPorts, OperatorDesk
from controller.policy import DEFAULT_POLICY, Policy
from controller.policy_file import PolicyInvalidError
from controller.policy_findings import PolicyFinding
from controller.policy_in_force import PolicyInForce, PolicySource, policy_file
from controller.recovery.recall import LogRecall
from controller.rpc.attest_session import SessionPorts
from controller.rpc.attestation_service import AttestationService
from controller.rpc.audit_heads import AuditHeads
from controller.rpc.challenger import Challenger
from controller.rpc.evidence_intake import EvidenceIntake, IntakePorts
from controller.rpc.fit_message import fit_message, unreadable_pod
from controller.rpc.fleet_messages import LabelsOf, PromiseOf
from controller.rpc.fleet_service import FleetReader, FleetService
from controller.rpc.known_fleet import KnownFleet
from controller.rpc.operator_service import OperatorService
from controller.rpc.peer_usage import PeerUsage, Rate
from controller.rpc.placement_service import PlacementReader, PlacementService
from controller.rpc.stream_table import StreamTable
from controller.scheduling.decision import NotedDecisions
from controller.scheduling.device_facts import Device
from controller.scheduling.device_labels import compile_labels, labels_of
from controller.scheduling.extender import Extender, ExtenderLimits, ExtenderServer
from controller.scheduling.pod import PodDecodeError
from controller.scheduling.promise import Promise, promise_of
from controller.scheduling.scenes import Scenes
from controller.scheduling.serving_tls import TlsFiles
from controller.scheduling.verbs import ExtenderVerbs, NoGpuUse, Surroundings
from controller.scheduling.wish_keys import WishRules
from controller.settings import (
    ControllerSettings,
    Enrollment,
    ExtenderTlsSettings,
    PolicyOrigin,
    Protection,
    Scheduling,
    StoreKind,
)
from controller.spire.assembly import SpireParts, spire_parts
from controller.spire.journal import SpireJournal
from controller.spire.revocation import Revocation
from controller.static_hashes import InsecureStaticHashes
from controller.store.opening import MEMORY_WARNING, ChosenStore, choose_store
from controller.support.recent_refusals import RecentRefusals
from controller.trust_journal import TrustJournal
from controller.use_journal import UseJournal
from controller.verifier.context import Limits, VerifierSettings
from controller.verifier.verifier import Verifier
from gpuwarden.clock import Clock
from gpuwarden.identity.svid import SvidSource
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.wire.v1 import fleet_pb2 as pb

_MINUTE: Final = 60.0
_MS: Final = 1_000_000
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_SPARE_MESSAGES: Final = 4.0
"""Messages a second that a peer may send beyond what its challenges ask for."""


class NodesUnknownError(Exception):
    """There is no node directory: a controller that knows no nodes could accept nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A controller, not yet started."""

    settings: ControllerSettings
    clock: Clock
    cluster: Cluster | None
    """The Kubernetes side; None without one."""
    conditions: Conditions
    audit: DurableLog
    store: ChosenStore
    denials: DenialFollower
    registry: FleetRegistry
    policy: PolicyInForce
    svids: SvidSource
    journal: TrustJournal
    refusals: RecentRefusals
    table: StreamTable
    known_fleet: KnownFleet
    attestation: AttestationService
    fleet: FleetService
    operator: OperatorService
    placement: PlacementService
    extender: ExtenderServer
    admission: HttpServer | None
    """The webhooks' listener; None where there are none."""
    api: HttpServer | None
    """The HTTP API's listener; None without `api.tls`."""
    hints: NodeHints | None
    """What labels nodes for schedulers without the extender; None where there is one."""
    binding: BindingParts | None
    """The binding gate; None without a cluster or webhooks."""
    spire: SpireParts
    revocation: Revocation


def assemble(
    settings: ControllerSettings,
    *,
    directory: NodeDirectory | None,
    exchange: Exchange | None = None,
    svids: SvidSource,
    instruments: Instruments,
    clock: Clock,
) -> Parts:
    """Make the parts and connect them; the nodes come from `directory`, or from the cluster.

    Raises PolicyInvalidError, StaticHashesError, ListenRefusedError, TlsFilesError,
    StoreMissingError or NodesUnknownError for what cannot be used.
    """
    cluster = None if exchange is None else _cluster(settings, exchange, clock, instruments)
    directory = _directory(directory, cluster)
    audit = audit_log(settings.audit, _log_identity(settings), clock, instruments)
    refusals = RecentRefusals(clock.wall_ns)
    store = choose_store(settings.store, clock, None if cluster is None else cluster.enrollments)
    source = _policy_source(settings, cluster)
    registry = FleetRegistry((None if source is None else source.current) or DEFAULT_POLICY)
    policy = PolicyInForce(
        source, audit=audit, instruments=instruments, changed=registry.set_policy
    )
    anchor = ClockAnchor(clock.boottime_ns(), clock.wall_ns(), settings.clock.warn.ns)
    spire = spire_parts(settings, svids, clock, anchor, SpireJournal(instruments, audit))
    conditions = Conditions(
        times=settings.attestation,
        clock=clock,
        svids=svids,
        directory=directory,
        store=store.store,
        audit=audit,
        policy_in_force=policy,
        state=ProcessState(anchor),
        insecure=_insecure(settings, directory),
        namespaces=None if cluster is None else cluster.namespaces,
        spire=spire.conditions,
    )
    journal = TrustJournal(instruments, audit, refusals, _tell(cluster, conditions))
    denials = Denials(store.store, partial(journal.denial, fate=DenialFate.STANDS))
    table = StreamTable()
    known_fleet = KnownFleet(registry, directory, conditions.policy)
    scenes = Scenes(
        registry,
        conditions.policy,
        clock,
        InsecureStaticHashes(settings.static_hashes),
        nodes=directory.snapshot,
        protected=settings.protection is Protection.CLUSTER,
    )
    binding = _binding(
        settings,
        cluster,
        scenes,
        registry=registry,
        conditions=conditions,
        instruments=instruments,
    )
    if binding is not None:
        conditions.state.ledger_uncertainty = binding.uncertainty
    verbs = _verbs(settings, conditions, scenes, cluster, binding)
    desk = OperatorDesk(
        DeskPorts(
            store=store.store,
            denials=denials,
            fleet=registry,
            knows=conditions.knows,
            audit=audit,
            clock=clock,
            observer=journal,
        )
    )
    verifier = Verifier(verifier_settings(settings), spire=spire.facts)
    intake = _intake(verifier, conditions, denials, registry, journal)
    return Parts(
        settings=settings,
        clock=clock,
        cluster=cluster,
        conditions=conditions,
        audit=audit,
        store=store,
        denials=DenialFollower(
            store.store,
            denials,
            registry,
            clock=clock,
            observer=journal,
            instruments=instruments,
            recall=LogRecall(settings.audit.dir).denials,
        ),
        registry=registry,
        policy=policy,
        svids=svids,
        journal=journal,
        refusals=refusals,
        table=table,
        known_fleet=known_fleet,
        attestation=_attestation(
            settings,
            conditions,
            verifier,
            intake,
            journal=journal,
            table=table,
            wants_pods=_no_pods if binding is None else binding.follower.releases_on,
        ),
        fleet=_fleet(conditions, known_fleet, desk, verbs, scenes),
        operator=OperatorService(desk),
        placement=_placement(settings, cluster, binding, verbs, fleet=known_fleet, clock=clock),
        extender=_extender(settings, verbs, audit, instruments, cluster),
        admission=_admission(settings, cluster, conditions, instruments, binding),
        api=_api(
            settings,
            cluster,
            binding,
            known_fleet,
            conditions,
            journal=ApiJournal(instruments, audit),
        ),
        hints=_hints(settings, cluster, verbs, conditions),
        binding=binding,
        spire=spire,
        revocation=Revocation(
            trust_domain=settings.trust_domain,
            path_prefix=settings.path_prefix,
            spire=spire.facts,
            fleet=registry,
            directory=directory,
            policy=conditions.policy,
            boottime_ns=clock.boottime_ns,
            refuser=intake,
            streams=table,
        ),
    )


def _intake(
    verifier: Verifier,
    conditions: Conditions,
    denials: Denials,
    registry: FleetRegistry,
    journal: TrustJournal,
) -> EvidenceIntake:
    return EvidenceIntake(
        IntakePorts(
            verifier=verifier,
            store=conditions.store,
            denials=denials,
            registry=registry,
            audit=conditions.audit,
            known=conditions.known,
            now=conditions.now,
            observer=journal,
        )
    )


def _attestation(
    settings: ControllerSettings,
    conditions: Conditions,
    verifier: Verifier,
    intake: EvidenceIntake,
    *,
    journal: TrustJournal,
    table: StreamTable,
    wants_pods: Callable[[str], bool],
) -> AttestationService:
    return AttestationService(
        SessionPorts(
            verifier=verifier,
            intake=intake,
            challenger=Challenger(
                verifier.settings,
                conditions.svids,
                AuditHeads(conditions.audit, settings.origin),
                wants_pods=wants_pods,
            ),
            usage=_usage(settings),
            table=table,
            known=conditions.known,
            now=conditions.now,
            jitter=random.SystemRandom().random,
            observer=journal,
        )
    )


def _fleet(
    conditions: Conditions,
    fleet: KnownFleet,
    desk: OperatorDesk,
    verbs: ExtenderVerbs,
    scenes: Scenes,
) -> FleetService:
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


def _placement(
    settings: ControllerSettings,
    cluster: Cluster | None,
    binding: BindingParts | None,
    verbs: ExtenderVerbs,
    *,
    fleet: KnownFleet,
    clock: Clock,
) -> PlacementService:
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


def _cluster(
    settings: ControllerSettings, exchange: Exchange, clock: Clock, instruments: Instruments
) -> Cluster:
    return Cluster(
        settings.kubernetes,
        exchange,
        replica=settings.replica,
        rules=_rules(settings),
        clock=clock,
        instruments=instruments,
        has_policy=settings.policy.source is PolicyOrigin.CLUSTER,
    )


def _policy_source(settings: ControllerSettings, cluster: Cluster | None) -> PolicySource | None:
    if settings.policy.source is PolicyOrigin.FILE:
        return policy_file(settings.policy.file, opaque_hashes=settings.insecure_static_hashes)
    if cluster is None or cluster.policy is None:
        expected = "file, where the Kubernetes API is not used"
        raise PolicyInvalidError((PolicyFinding("policy.source", "cluster", expected),))
    return cluster.policy


def _rules(settings: ControllerSettings) -> WishRules:
    return WishRules(
        hash_keys=settings.required_hash_keys,
        managed_resources=settings.managed_resources,
        opaque_hashes=settings.insecure_static_hashes,
    )


def _directory(directory: NodeDirectory | None, cluster: Cluster | None) -> NodeDirectory:
    if directory is not None:
        return directory
    if cluster is None:
        raise NodesUnknownError("nobody says which nodes exist")
    return cluster.nodes


def _tell(cluster: Cluster | None, conditions: Conditions) -> Callable[[Changes], None]:
    """Whom changes of trust concern in the cluster.

    Until the first round is over nothing is decided, so pods are tried anew without us.
    """

    def tell(changes: Changes) -> None:
        if cluster is None:
            return
        cluster.tell(changes)
        if conditions.not_ready() is None:
            cluster.wake(changes)

    return tell


def _no_pods(_node: str) -> bool:
    """Without a ledger nothing is released."""
    return False


def _nowhere(_namespace: str) -> bool:
    """Without a cluster no namespace is enforced."""
    return False


def _verbs(
    settings: ControllerSettings,
    conditions: Conditions,
    scenes: Scenes,
    cluster: Cluster | None,
    binding: BindingParts | None,
) -> ExtenderVerbs:
    around = Surroundings(
        scenes=scenes,
        not_ready=conditions.not_ready,
        use=NoGpuUse() if binding is None else binding.use,
        rules=_rules(settings),
        is_enforced=_nowhere if cluster is None else cluster.namespaces.is_enforced,
        report=is_report_only(settings),
    )
    if binding is not None:
        denials, boottime_ns = binding.denials, conditions.clock.boottime_ns
        around = replace(around, denied=lambda uid: denials.nodes(uid, boottime_ns()))
    return ExtenderVerbs(around)


def _binding(
    settings: ControllerSettings,
    cluster: Cluster | None,
    scenes: Scenes,
    *,
    registry: FleetRegistry,
    conditions: Conditions,
    instruments: Instruments,
) -> BindingParts | None:
    if cluster is None or settings.admission.tls.cert is None:
        return None
    journal = BindingJournal(instruments, conditions.audit, cluster.tell_binding)
    return binding_parts(
        BindingSources(
            settings=settings,
            wishes=_rules(settings),
            cluster=cluster,
            ledger=choose_ledger(settings.store, conditions.clock, cluster),
            scenes=scenes,
            fleet=registry.snapshot,
            not_ready=conditions.not_ready,
            audit=conditions.audit,
            use_journal=UseJournal(instruments, conditions.audit, cluster.tell_use, journal.logged),
            journal=journal,
            clock=conditions.clock,
        )
    )


def verifier_settings(settings: ControllerSettings) -> VerifierSettings:
    """The part of the settings that the Verifier is judged by."""
    times = settings.attestation
    return VerifierSettings(
        trust_domain=settings.trust_domain,
        cluster=settings.cluster,
        path_prefix=settings.path_prefix,
        enrollment_required=times.enrollment is Enrollment.REQUIRED,
        interval_ns=times.interval.ns,
        lease_ns=times.lease.ns,
        challenge_ttl_ns=times.challenge_ttl.ns,
        skew_warn_ms=settings.clock.warn.ns // _MS,
        skew_refuse_ms=settings.clock.refuse.ns // _MS,
        limits=Limits(
            streams=settings.limits.streams,
            streams_per_peer=settings.limits.streams_per_peer,
            message_bytes=settings.limits.message_bytes,
        ),
    )


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


def _extender(
    settings: ControllerSettings,
    verbs: ExtenderVerbs,
    audit: DurableLog,
    instruments: Instruments,
    cluster: Cluster | None,
) -> ExtenderServer:
    journal = ExtenderJournal(instruments)
    tell = None if cluster is None else cluster.tell_placement
    limits = ExtenderLimits(body_bytes=settings.limits.filter_bytes)
    return ExtenderServer(
        Extender(
            verbs,
            sink=NotedDecisions(audit, journal.count_nodes, tell),
            metrics=journal,
            limits=limits,
        ),
        address=settings.listen.extender,
        tls=_tls_files(settings.extender.tls),
        metrics=journal,
        limits=limits,
    )


def _hints(
    settings: ControllerSettings,
    cluster: Cluster | None,
    verbs: ExtenderVerbs,
    conditions: Conditions,
) -> NodeHints | None:
    if cluster is None or settings.scheduling is not Scheduling.AFFINITY:
        return None
    return cluster.hints(verbs.passing, conditions.not_ready)


def _admission(
    settings: ControllerSettings,
    cluster: Cluster | None,
    conditions: Conditions,
    instruments: Instruments,
    binding: BindingParts | None,
) -> HttpServer | None:
    def modes() -> frozenset[NodeMode] | None:
        return None if settings.static_hashes else conditions.policy().modes

    def tell(decision: AdmissionDecision) -> None:
        if cluster is not None:
            cluster.tell_admission(decision)

    journal = AdmissionJournal(instruments, conditions.audit, tell)
    ports = PodPorts(
        admission_rules(settings, _rules(settings)),
        is_enforced=_nowhere if cluster is None else cluster.namespaces.is_enforced,
        sink=journal,
        early=None if binding is None else binding.early,
        report=is_report_only(settings),
        modes=modes,
    )
    others = {} if binding is None else binding.handlers
    return admission_server(settings, ports, metrics=journal, others=others)


def _api(
    settings: ControllerSettings,
    cluster: Cluster | None,
    binding: BindingParts | None,
    fleet: KnownFleet,
    conditions: Conditions,
    *,
    journal: ApiJournal,
) -> HttpServer | None:
    finalize = None
    if cluster is not None and binding is not None:
        finalize = FinalizePorts(
            store=binding.ledger.store,
            pods=cluster.pods,
            ids=binding.ids,
            changed=binding.journal.changed,
        )
    audience = settings.api.audience
    return api_server(
        settings,
        ApiSources(
            fleet=fleet,
            policy=conditions.policy,
            ledger=None if binding is None else binding.ledger.store,
            finalize=finalize,
            reviewer=None if cluster is None else cluster.token_reviewer(audience),
            roots=lambda: conditions.known().roots,
            journal=journal,
            clock=conditions.clock,
        ),
    )


def _tls_files(tls: ExtenderTlsSettings) -> TlsFiles | None:
    if tls.cert is None or tls.key is None:
        return None
    return TlsFiles(tls.cert, tls.key, tls.client_ca)


def _usage(settings: ControllerSettings) -> PeerUsage:
    per_second = 2 / settings.attestation.interval.seconds + _SPARE_MESSAGES
    return PeerUsage(
        openings=Rate(settings.limits.rate / _MINUTE, settings.limits.rate),
        messages=Rate(per_second, int(5 * per_second)),
    )


def _insecure(settings: ControllerSettings, directory: NodeDirectory) -> tuple[str, ...]:
    warnings = [directory.warning()]
    if settings.store.kind is StoreKind.MEMORY:
        warnings.append(MEMORY_WARNING)
    if settings.insecure_static_hashes:
        warnings.append(
            f"InsecureStaticHashes: {len(settings.static_hashes)} nodes have hashes that"
            " nobody attested; never use this in production"
        )
    if settings.admission.tls.cert is not None and settings.admission.tls.client_ca is None:
        warnings.append(OPEN_TO_THE_NETWORK)
    return tuple(text for text in warnings if text)


def _log_identity(settings: ControllerSettings) -> LogIdentity:
    boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else "unknown"
    return LogIdentity(settings.origin, boot, secrets.token_hex(16))
