"""What lets pods and requests in: the binding gate, the webhooks, the HTTP API.

Connects alone: what is let in is decided in controller/binding, admission and http_api.
"""

from controller.admission.assembly import admission_rules, admission_server, is_report_only
from controller.admission.decision import AdmissionDecision
from controller.admission.pods import PodPorts
from controller.admission_journal import AdmissionJournal
from controller.api_journal import ApiJournal
from controller.binding.assembly import BindingParts, BindingSources, binding_parts
from controller.binding.ledger_choice import choose_ledger
from controller.binding_journal import BindingJournal
from controller.composition.surroundings import enforced_by, wish_rules
from controller.conditions import Conditions
from controller.fleet.registry import FleetRegistry
from controller.fleet.view import NodeMode
from controller.http_api.assembly import ApiSources, api_server
from controller.http_api.finalizing import FinalizePorts
from controller.http_server import HttpServer
from controller.kube.cluster import Cluster
from controller.rpc.known_fleet import KnownFleet
from controller.scheduling.scenes import Scenes
from controller.settings import ControllerSettings
from controller.use_journal import UseJournal
from gpuwarden.telemetry.metrics import Instruments


def binding_gate(
    settings: ControllerSettings,
    cluster: Cluster | None,
    scenes: Scenes,
    *,
    registry: FleetRegistry,
    conditions: Conditions,
    instruments: Instruments,
) -> BindingParts | None:
    """None without a cluster or webhooks."""
    if cluster is None or settings.admission.tls.cert is None:
        return None
    journal = BindingJournal(instruments, conditions.audit, cluster.tell_binding)
    return binding_parts(
        BindingSources(
            settings=settings,
            wishes=wish_rules(settings),
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


def admission_webhooks(
    settings: ControllerSettings,
    cluster: Cluster | None,
    conditions: Conditions,
    instruments: Instruments,
    binding: BindingParts | None,
) -> HttpServer | None:
    """None without a certificate for them."""

    def modes() -> frozenset[NodeMode] | None:
        return None if settings.static_hashes else conditions.policy().modes

    def tell(decision: AdmissionDecision) -> None:
        if cluster is not None:
            cluster.tell_admission(decision)

    journal = AdmissionJournal(instruments, conditions.audit, tell)
    ports = PodPorts(
        admission_rules(settings, wish_rules(settings)),
        is_enforced=enforced_by(cluster),
        sink=journal,
        early=None if binding is None else binding.early,
        report=is_report_only(settings),
        modes=modes,
    )
    others = {} if binding is None else binding.handlers
    return admission_server(settings, ports, metrics=journal, others=others)


def http_api(
    settings: ControllerSettings,
    cluster: Cluster | None,
    binding: BindingParts | None,
    fleet: KnownFleet,
    conditions: Conditions,
    *,
    journal: ApiJournal,
) -> HttpServer | None:
    """None without `api.tls`; finalizing needs the binding gate."""
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
