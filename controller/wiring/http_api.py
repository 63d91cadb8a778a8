"""The HTTP API and the console on its port: who looks, what is read, what is confirmed.

Constructs and connects only.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from controller.access import PeerUsage, TokenIdentity
from controller.binding.use import nothing_to_record
from controller.explain.fleet_rows import FleetFacts
from controller.explain.pod_views import SeenPod, with_holders
from controller.explain.query import PodQuery
from controller.explain.status import Installation
from controller.ledger.store import LedgerSnapshot
from controller.operations.operator_service import OperatorService
from controller.operations.readiness import Conditions
from controller.people.reviews import AccessReviews, TokenReviews
from controller.people.roles import Roles
from controller.placement.selector import compile_labels
from controller.policy import Policy
from controller.recorders.http import ApiRecorder
from controller.recorders.people import PeopleRecorder
from controller.recorders.trust import WitnessAlarms
from controller.rpc.attestation import StreamTable
from controller.rpc.fleet import KnownFleet
from controller.settings import ControllerSettings
from controller.web.api.api import ApiLimits, Endpoint, Routes
from controller.web.api.authentication import Authentication
from controller.web.api.documents import Inventory
from controller.web.api.finalize import Finalizer
from controller.web.api.reading import Reading, Sources
from controller.web.api.v1 import V1
from controller.web.api.v1_operations import StatusView, Witness
from controller.web.api.viewers import PeopleRules, Viewers
from controller.web.extender.verbs import EVALUATION
from controller.web.listener import HttpServer
from controller.wiring.binding import BindingParts
from controller.wiring.certificates import tls_files
from controller.wiring.cluster import Cluster
from controller.wiring.services import PerPolicy
from gpuwarden import __version__
from gpuwarden.moment import utc
from gpuwarden.policy.selector import Selector


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What the HTTP API is put into."""

    settings: ControllerSettings
    cluster: Cluster | None
    binding: BindingParts | None
    fleet: KnownFleet
    conditions: Conditions
    operators: OperatorService
    query: PodQuery | None
    streams: StreamTable
    alarms: WitnessAlarms
    installation: Callable[[], Installation]
    recorder: ApiRecorder
    people: PeopleRecorder


def http_api(around: Around) -> HttpServer | None:
    """None without `api.tls`; `POST /finalize` needs the binding webhook.

    Raises TlsFilesError for files that cannot serve.
    """
    settings, binding, cluster = around.settings, around.binding, around.cluster
    tls = settings.api.tls
    if tls.cert is None or tls.key is None:
        return None
    finalizer = None
    if cluster is not None and binding is not None:
        finalizer = Finalizer(binding.store, cluster.pods, binding.ids, binding.recorder.changed)
    limits, conditions, recorder = ApiLimits(), around.conditions, around.recorder
    callers = _callers(around)
    viewers = Viewers(
        callers,
        _people(around),
        roots=lambda: conditions.known().roots,
        wall=lambda: utc(conditions.clock.wall_ns()),
        trust_domain=settings.trust_domain,
    )
    usage = PeerUsage(openings=limits.others, messages=limits.others)
    reading = Reading(_sources(around), viewers, at_once=limits.pages_at_once)
    v1 = V1(
        reading,
        viewers,
        usage=usage,
        boottime_ns=conditions.clock.boottime_ns,
        answered=recorder.answered,
        failed=recorder.failed,
        answer_s=limits.answer_s,
    )
    routes: list[Routes] = [v1.add_routes]
    if settings.console.enabled:
        routes.append(_console(around, reading, viewers, v1, usage=usage, limits=limits))
    endpoint = Endpoint(
        callers,
        _inventory(around),
        finalizer,
        viewers=viewers,
        usage=usage,
        sink=recorder,
        boottime_ns=conditions.clock.boottime_ns,
        limits=limits,
        routes=routes,
        insecure=(EVALUATION,) if settings.evaluation.enabled else (),
    )
    return HttpServer(
        endpoint.application(),
        name="api",
        address=settings.listen.api,
        tls=tls_files(settings, tls.cert, tls.key, None),
        limits=limits,
        observer=recorder,
        client_roots=lambda: conditions.known().roots,
    )


def _console(
    around: Around,
    reading: Reading,
    viewers: Viewers,
    v1: V1,
    *,
    usage: PeerUsage,
    limits: ApiLimits,
) -> Routes:
    from controller.console.console import Console, ConsoleBounds  # noqa: PLC0415 -- templates and their library only where there is a console

    return Console(
        reading,
        viewers,
        v1,
        around.operators,
        usage=usage,
        clock=around.conditions.clock,
        answered=around.recorder.answered,
        failed=around.recorder.failed,
        bounds=ConsoleBounds(answer_s=limits.answer_s, receive_s=limits.receive_s),
    ).add_routes


# --- who calls, and who looks


def _callers(around: Around) -> Authentication:
    settings, conditions, clock = around.settings, around.conditions, around.conditions.clock
    reviews: TokenReviews[TokenIdentity] | None = None
    if around.cluster is not None:
        reviews = TokenReviews(
            around.cluster.token_reviewer(settings.api.audience),
            boottime_ns=clock.boottime_ns,
            reviewed=around.recorder.reviewed,
        )
    return Authentication(
        reviews=reviews,
        roots=lambda: conditions.known().roots,
        wall=lambda: utc(clock.wall_ns()),
        trust_domain=settings.trust_domain,
        path_prefix=settings.path_prefix,
        readers=frozenset(settings.api.readers),
    )


def _people(around: Around) -> PeopleRules:
    console, cluster = around.settings.console, around.cluster
    if cluster is None:
        return PeopleRules(loopback=console.enabled and console.loopback)
    boottime_ns = around.conditions.clock.boottime_ns
    return PeopleRules(
        reviews=TokenReviews(
            cluster.person_reviewer(),
            boottime_ns=boottime_ns,
            reviewed=partial(around.people.reviewed, "token"),
        ),
        roles=Roles(
            AccessReviews(
                cluster.access_reviewer(),
                boottime_ns=boottime_ns,
                reviewed=partial(around.people.reviewed, "right"),
            )
        ),
        proxies=frozenset(console.proxies if console.enabled else ()),
        cookie=console.enabled,
        loopback=console.enabled and console.loopback,
    )


# --- what is read


def _inventory(around: Around) -> Callable[[], Inventory]:
    conditions, binding = around.conditions, around.binding
    selectors = PerPolicy(conditions.policy, _selectors_of)

    def inventory() -> Inventory:
        ledger = LedgerSnapshot() if binding is None else binding.store.snapshot()
        now_ns = conditions.clock.boottime_ns()
        return Inventory(around.fleet.snapshot(), ledger, selectors(), now_ns)

    return inventory


def _selectors_of(policy: Policy) -> Mapping[str, Selector]:
    return compile_labels(policy.labels)


def _sources(around: Around) -> Sources:
    conditions, query, cluster = around.conditions, around.query, around.cluster
    audit = conditions.audit
    return Sources(
        facts=partial(_facts, around),
        policy=conditions.policy,
        shown=around.operators.shown,
        status=partial(_status, around),
        pods=None if cluster is None else partial(_pods, cluster, around.binding),
        trace=None if query is None else query.about,
        verdicts=None if query is None else query.verdicts,
        audit=around.settings.audit.dir,
        published=lambda: audit.published,
        witnesses=partial(_witnesses, around),
        alarms=around.alarms.accusing,
        clock=conditions.clock,
    )


def _facts(around: Around) -> FleetFacts:
    binding = around.binding
    return FleetFacts(
        around.fleet.snapshot(),
        LedgerSnapshot() if binding is None else binding.store.snapshot(),
        around.conditions.directory.snapshot().nodes,
        around.conditions.clock.boottime_ns(),
        reserves=binding is not None and binding.reserves,
        to_record=nothing_to_record if binding is None else binding.to_record(),
    )


def _pods(cluster: Cluster, binding: BindingParts | None) -> Iterable[SeenPod]:
    managed = (SeenPod(x.namespace, x.name, x.uid, x.node) for x in cluster.managed_pods())
    if binding is None:
        return managed
    return with_holders(managed, binding.store.snapshot(), cluster.pods.sight)


def _witnesses(around: Around) -> list[Witness]:
    """Of this replica's log alone."""
    origin = around.settings.origin
    return [
        Witness(node, one.checkpoint)
        for node, one in around.streams.witnesses()
        if one.origin == origin
    ]


def _status(around: Around) -> StatusView:
    here, now = around.installation(), around.conditions.readiness()
    spire = "off"
    if here.spire.configured:
        spire = here.spire.error or "ok"
    return StatusView(
        cluster=here.cluster,
        replica=here.replica,
        version=__version__,
        not_ready="; ".join(now.reasons),
        warnings=list(now.warnings),
        enforcement=here.enforcement,
        evaluation=here.evaluation,
        leads=here.leads,
        replicas=list(here.replicas),
        alarms={x: list(codes) for x, codes in here.alarms.items()},
        spire=spire,
        ledger_known=_facts(around).is_ledger_known,
    )
