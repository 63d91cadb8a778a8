"""Makes the parts of a controller from its settings and connects them.

Starts nothing and opens no port. What a part is made of stands in the file of its side.
"""

from functools import partial

from controller.api_journal import ApiJournal
from controller.audit.opening import audit_log
from controller.clock_guard import ClockAnchor
from controller.composition.gates import admission_webhooks, binding_gate, http_api
from controller.composition.parts import Parts
from controller.composition.reading import fleet_service, placement_service
from controller.composition.scheduling import extender_server, extender_verbs, node_hints
from controller.composition.surroundings import (
    insecure_warnings,
    kubernetes_cluster,
    log_identity,
    node_directory,
    policy_source,
    tell_of_changes,
)
from controller.composition.trust import (
    attestation_service,
    denial_follower,
    evidence_intake,
    operator_desk,
    revocation,
    verifier_settings,
)
from controller.conditions import Conditions, ProcessState
from controller.fleet.denials import DenialFate, Denials
from controller.fleet.directory import NodeDirectory
from controller.fleet.registry import FleetRegistry
from controller.kube.api import Exchange
from controller.policy import DEFAULT_POLICY
from controller.policy_in_force import PolicyInForce
from controller.rpc.known_fleet import KnownFleet
from controller.rpc.operator_service import OperatorService
from controller.rpc.stream_table import StreamTable
from controller.scheduling.scenes import Scenes
from controller.settings import ControllerSettings, Protection
from controller.spire.assembly import spire_parts
from controller.spire.journal import SpireJournal
from controller.static_hashes import InsecureStaticHashes
from controller.store.opening import choose_store
from controller.support.recent_refusals import RecentRefusals
from controller.trust_journal import TrustJournal
from controller.verifier.verifier import Verifier
from gpuwarden.clock import Clock
from gpuwarden.identity.svid import SvidSource
from gpuwarden.telemetry.metrics import Instruments


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
    cluster = kubernetes_cluster(settings, exchange, clock, instruments)
    directory = node_directory(directory, cluster)
    audit = audit_log(settings.audit, log_identity(settings), clock, instruments)
    refusals = RecentRefusals(clock.wall_ns)
    store = choose_store(settings.store, clock, None if cluster is None else cluster.enrollments)
    source = policy_source(settings, cluster)
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
        insecure=insecure_warnings(settings, directory),
        namespaces=None if cluster is None else cluster.namespaces,
        spire=spire.conditions,
    )
    journal = TrustJournal(instruments, audit, refusals, tell_of_changes(cluster, conditions))
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
    binding = binding_gate(
        settings,
        cluster,
        scenes,
        registry=registry,
        conditions=conditions,
        instruments=instruments,
    )
    if binding is not None:
        conditions.state.ledger_uncertainty = binding.uncertainty
    verbs = extender_verbs(settings, conditions, scenes, cluster, binding)
    desk = operator_desk(conditions, denials, registry, journal)
    verifier = Verifier(verifier_settings(settings), spire=spire.facts)
    intake = evidence_intake(verifier, conditions, denials, registry, journal)
    return Parts(
        settings=settings,
        clock=clock,
        cluster=cluster,
        conditions=conditions,
        audit=audit,
        store=store,
        denials=denial_follower(
            settings, conditions, denials, registry, journal=journal, instruments=instruments
        ),
        registry=registry,
        policy=policy,
        svids=svids,
        journal=journal,
        refusals=refusals,
        table=table,
        known_fleet=known_fleet,
        attestation=attestation_service(
            settings, conditions, verifier, intake, journal=journal, table=table, binding=binding
        ),
        fleet=fleet_service(conditions, known_fleet, desk, verbs, scenes),
        operator=OperatorService(desk, None if binding is None else binding.releases),
        placement=placement_service(
            settings, cluster, binding, verbs, fleet=known_fleet, clock=clock
        ),
        extender=extender_server(settings, verbs, audit, instruments, cluster),
        admission=admission_webhooks(settings, cluster, conditions, instruments, binding),
        api=http_api(
            settings,
            cluster,
            binding,
            known_fleet,
            conditions,
            journal=ApiJournal(instruments, audit),
        ),
        hints=node_hints(settings, cluster, verbs, conditions),
        binding=binding,
        spire=spire,
        revocation=revocation(
            settings,
            conditions,
            spire.facts,
            directory,
            registry=registry,
            intake=intake,
            table=table,
        ),
    )
