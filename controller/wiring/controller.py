"""Controller.

Holds: assembly, effective settings.
"""

import hashlib
from functools import partial

from controller.explain.node import RecentRefusals
from controller.fleet.denials import DenialFate, Denials
from controller.fleet.enrollment import NodeDirectory
from controller.fleet.registry import FleetRegistry
from controller.kube.client import Exchange
from controller.operations.conditions import ClockAnchor, Conditions, ProcessState
from controller.placement.snapshot import InsecureStaticHashes, Scenes
from controller.policies.in_force import PolicyInForce
from controller.policy import DEFAULT_POLICY
from controller.record import Record
from controller.recorders.http import ApiJournal
from controller.recorders.trust import CONTROLLER, SpireJournal, TrustJournal
from controller.rpc.attestation import StreamTable
from controller.rpc.fleet import KnownFleet
from controller.rpc.services import OperatorService
from controller.settings import ControllerSettings, Protection
from controller.verifier.verifier import Verifier
from controller.wiring.parts import (
    Parts,
    insecure_warnings,
    kubernetes_cluster,
    log_identity,
    node_directory,
    policy_source,
    tell_of_changes,
)
from controller.wiring.serving import (
    admission_webhooks,
    binding_gate,
    extender_server,
    extender_verbs,
    fleet_service,
    http_api,
    node_hints,
    placement_service,
)
from controller.wiring.stores import audit_log, choose_store, spire_parts
from controller.wiring.trust import (
    attestation_service,
    denial_follower,
    evidence_intake,
    operator_desk,
    revocation,
    verifier_settings,
)
from gpuwarden import __version__
from gpuwarden.audit.record import RecordKind
from gpuwarden.clock import Clock
from gpuwarden.identity.svid import SvidSource
from gpuwarden.settings.key import ENV_PREFIX
from gpuwarden.settings.loader import Loaded
from gpuwarden.settings.report import effective, render
from gpuwarden.telemetry.logs import EventLogger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

# --- assembly
# Makes the parts of a controller from its settings and connects them.
#
# Starts nothing and opens no port. What a part is made of stands in the file of its side.


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


# --- effective settings
# Says with which settings a controller runs: in its own log, and in the audit log.
#
# Changes no setting, and shows no more of one than `config print` does.


def announce_settings(loaded: Loaded[ControllerSettings], parts: Parts, log: EventLogger) -> None:
    """Tell the values, which came under a foreign name, and which stand-ins are insecure."""
    log.info(
        Event.CONFIG_EFFECTIVE,
        digest=_digest(loaded),
        settings={key: entry["value"] for key, entry in effective(loaded).items()},
    )
    for key, source in loaded.sources.items():
        if _is_alias(source):
            log.info(Event.CONFIG_ALIAS, key=key, source=source)
    for warning in parts.conditions.insecure:
        log.warning(Event.CONFIG_INSECURE, warning=warning)


def record_settings(loaded: Loaded[ControllerSettings], parts: Parts) -> None:
    """Note in the audit log what is in force: settings and policy by digest, store, version."""
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
    """Whether a value came from a variable that is not named as ours are."""
    kind, _, variable = source.partition(" ")
    return kind == "environment" and not variable.startswith(ENV_PREFIX)


def _digest(loaded: Loaded[ControllerSettings]) -> str:
    """SHA-256 of the effective configuration as `config print` shows it."""
    return hashlib.sha256(render(loaded).encode()).hexdigest()
