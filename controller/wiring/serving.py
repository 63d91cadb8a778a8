"""Serving.

Holds: scheduling, assembly, gates, reading, ports, states, desk.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol

from controller.admission.review import AdmissionDecision, PodPorts
from controller.audit.checkpoints import Published
from controller.audit.log import Condition, DurableLog
from controller.audit.reading import records_about
from controller.explain.inquiry import InquiryPorts, PodInquiry
from controller.explain.node import WITHHELD, RecentRefusal, node_line
from controller.fleet.enrollment import Denial
from controller.fleet.registry import FleetRegistry
from controller.fleet.view import FleetSnapshot, GpuView, NodeState, NodeView
from controller.kube.node_hints import NodeHints
from controller.ledger.store import LedgerSnapshot, LedgerStore
from controller.messages import LabelsOf, PromiseOf, fit_message, unreadable_pod
from controller.operations.conditions import Conditions
from controller.operations.fleet import OperatorDesk
from controller.placement.node_verdict import Promise, promise_of
from controller.placement.pod import PodDecodeError
from controller.placement.selector import Device, Selector, compile_labels, labels_of
from controller.placement.snapshot import Scenes
from controller.placement.verbs import NotedDecisions
from controller.policy import NodeMode, Policy
from controller.recorders.binding import BindingJournal, UseJournal
from controller.recorders.gauges import count_fleet
from controller.recorders.http import AdmissionJournal, ApiJournal, ExtenderJournal
from controller.rpc.fleet import FleetService
from controller.rpc.fleet import KnownFleet as GatesKnownFleet
from controller.rpc.fleet import KnownFleet as ReadingKnownFleet
from controller.rpc.services import PlacementService
from controller.settings import ControllerSettings, ExtenderTlsSettings, Scheduling
from controller.web.api import ApiLimits, ApiPorts, Endpoint
from controller.web.authentication import (
    Authentication,
    AuthenticationPorts,
    TokenReviewer,
    TokenReviews,
)
from controller.web.documents import Inventory
from controller.web.extender import Extender, ExtenderLimits, ExtenderServer
from controller.web.finalize import FinalizePorts, Finalizer
from controller.web.server import HttpServer, Roots, TlsFiles
from controller.web.verbs import ExtenderVerbs, NoGpuUse, Surroundings
from controller.wiring.binding import (
    BindingParts,
    BindingSources,
    admission_rules,
    admission_server,
    binding_parts,
    choose_ledger,
    is_report_only,
)
from controller.wiring.cluster import Cluster
from controller.wiring.parts import enforced_by, wish_rules
from gpuwarden.clock import Clock
from gpuwarden.moment import NS_PER_S, rfc3339, utc
from gpuwarden.reasons import ReasonCode
from gpuwarden.settings.loader import Loaded
from gpuwarden.support.disclosed_settings import disclosed_settings
from gpuwarden.support.exposition import metrics_part
from gpuwarden.support.known_answers import told_reasons
from gpuwarden.support.known_words import known_words
from gpuwarden.support.part import MAX_PART_BYTES, Content, Part, json_line, json_part, missing
from gpuwarden.support.versions import versions
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event
from gpuwarden.wire.v1 import fleet_pb2 as pb

# --- scheduling
# What answers the scheduler: the verbs, the extender in front of them, hints on nodes.
#
# Connects alone: where a pod may go is decided in controller/scheduling.


def extender_verbs(
    settings: ControllerSettings,
    conditions: Conditions,
    scenes: Scenes,
    cluster: Cluster | None,
    binding: BindingParts | None,
) -> ExtenderVerbs:
    """Filter and prioritize, with what the gate holds and lately refused."""
    around = Surroundings(
        scenes=scenes,
        not_ready=conditions.not_ready,
        use=NoGpuUse() if binding is None else binding.use,
        rules=wish_rules(settings),
        is_enforced=enforced_by(cluster),
        report=is_report_only(settings),
    )
    if binding is not None:
        denials, boottime_ns = binding.denials, conditions.clock.boottime_ns
        around = replace(around, denied=lambda uid: denials.nodes(uid, boottime_ns()))
    return ExtenderVerbs(around)


def extender_server(
    settings: ControllerSettings,
    verbs: ExtenderVerbs,
    audit: DurableLog,
    instruments: Instruments,
    cluster: Cluster | None,
) -> ExtenderServer:
    """The listener for the scheduler, which notes each decision."""
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


def node_hints(
    settings: ControllerSettings,
    cluster: Cluster | None,
    verbs: ExtenderVerbs,
    conditions: Conditions,
) -> NodeHints | None:
    """None unless pods reach their nodes by affinity."""
    if cluster is None or settings.scheduling is not Scheduling.AFFINITY:
        return None
    return cluster.hints(verbs.passing, conditions.not_ready)


def _tls_files(tls: ExtenderTlsSettings) -> TlsFiles | None:
    if tls.cert is None or tls.key is None:
        return None
    return TlsFiles(tls.cert, tls.key, tls.client_ca)


# --- assembly
# Puts the HTTP API of a controller together from its settings. Starts nothing.


class KnownFleet(Protocol):
    """The fleet as people ask for it."""

    def snapshot(self) -> FleetSnapshot:
        """All nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSources:
    """What the API is made of; all of it is there already."""

    fleet: KnownFleet
    policy: Callable[[], Policy]
    ledger: LedgerStore | None
    finalize: FinalizePorts | None
    reviewer: TokenReviewer | None
    roots: Callable[[], Roots]
    journal: ApiJournal
    clock: Clock


def api_server(settings: ControllerSettings, sources: ApiSources) -> HttpServer | None:
    """The listener, or None without `api.tls`; raises TlsFilesError for files that cannot serve."""
    tls = settings.api.tls
    if tls.cert is None or tls.key is None:
        return None
    limits, finalize = ApiLimits(), sources.finalize
    endpoint = Endpoint(
        ApiPorts(
            authentication=_authentication(settings, sources),
            inventory=_inventory(sources),
            finalizer=None if finalize is None else Finalizer(finalize),
            sink=sources.journal,
            boottime_ns=sources.clock.boottime_ns,
        ),
        limits,
    )
    return HttpServer(
        endpoint.application(),
        address=settings.listen.api,
        tls=TlsFiles(tls.cert, tls.key),
        limits=limits,
        certificate_changed=sources.journal.certificate_changed,
        client_roots=sources.roots,
    )


def _authentication(settings: ControllerSettings, sources: ApiSources) -> Authentication:
    clock, reviews = sources.clock, None
    if sources.reviewer is not None:
        reviews = TokenReviews(
            sources.reviewer,
            boottime_ns=clock.boottime_ns,
            reviewed=sources.journal.reviewed,
        )
    return Authentication(
        AuthenticationPorts(
            reviews=reviews,
            roots=sources.roots,
            wall=lambda: utc(clock.wall_ns()),
            trust_domain=settings.trust_domain,
            path_prefix=settings.path_prefix,
            readers=frozenset(settings.api.readers),
        )
    )


def _inventory(sources: ApiSources) -> Callable[[], Inventory]:
    labels = _Labels(sources.policy)

    def inventory() -> Inventory:
        ledger = LedgerSnapshot() if sources.ledger is None else sources.ledger.snapshot()
        now_ns = sources.clock.boottime_ns()
        return Inventory(sources.fleet.snapshot(), ledger, labels(), now_ns)

    return inventory


class _Labels:
    """The selectors behind the policy's labels, compiled once per policy."""

    def __init__(self, policy: Callable[[], Policy]) -> None:
        self._policy = policy
        self._made: tuple[Policy, Mapping[str, Selector]] | None = None

    def __call__(self) -> Mapping[str, Selector]:
        policy = self._policy()
        if self._made is None or self._made[0] is not policy:
            self._made = (policy, compile_labels(policy.labels))
        return self._made[1]


# --- gates
# What lets pods and requests in: the binding gate, the webhooks, the HTTP API.
#
# Connects alone: what is let in is decided in controller/binding, admission and http_api.


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
    fleet: GatesKnownFleet,
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


# --- reading
# What people and tools read of a controller: fleet, labels, fit, promises, placements.
#
# Connects alone, and hands out nothing that changes a node, a denial or a reservation.


def fleet_service(
    conditions: Conditions,
    fleet: ReadingKnownFleet,
    desk: OperatorDesk,
    verbs: ExtenderVerbs,
    scenes: Scenes,
) -> FleetService:
    """The nodes as they stand, and what a pod would find there."""
    return FleetService(
        fleet,
        conditions.clock,
        policy=conditions.policy,
        shown=desk.shown,
        readiness=conditions.readiness,
        labels=Labels(conditions.policy),
        fit=partial(_fit, verbs),
        promises=partial(_promises, scenes),
    )


def placement_service(
    settings: ControllerSettings,
    cluster: Cluster | None,
    binding: BindingParts | None,
    verbs: ExtenderVerbs,
    *,
    fleet: ReadingKnownFleet,
    clock: Clock,
) -> PlacementService:
    """Reservations, and with a cluster the way of one pod to its GPUs."""
    ledger = None if binding is None else binding.ledger.store.snapshot
    if cluster is None:
        return PlacementService(ledger, clock)
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
    return PlacementService(ledger, clock, about=inquiry.about)


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


# --- ports
# Where the parts of a support bundle come from; all of it answers from memory.


class Streams(Protocol):
    """Open attestation streams."""

    def counts(self) -> Mapping[str, int]:
        """How many of each node."""


class Refusals(Protocol):
    """What was refused lately."""

    def newest_first(self) -> tuple[RecentRefusal, ...]:
        """All that is known."""


class AuditState(Protocol):
    """How the audit log is doing."""

    @property
    def condition(self) -> Condition:
        """Whether it can be written."""

    @property
    def waiting(self) -> int:
        """Records that wait to be written."""

    @property
    def published(self) -> Published | None:
        """The last checkpoint."""


class Alarms(Protocol):
    """What agents say against audit logs."""

    def accusing(self) -> Mapping[str, tuple[str, ...]]:
        """Node -> codes of its alarms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportPorts:
    """One for the process."""

    loaded: Loaded[Any]
    conditions: Conditions
    fleet: Callable[[], FleetSnapshot]
    """The fleet with what only the directory knows."""
    streams: Streams
    refusals: Refusals
    alarms: Alarms
    audit: AuditState
    store_facts: Callable[[], Mapping[str, str | int | bool]]
    metrics: Callable[[], bytes]


# --- states
# The parts of a support bundle that fit into one look: readiness, identity, fleet, log, store.
#
# Each lists what leaves. Texts (details, reasons, errors) do not; of them the known words do.

MAX_NAMES: Final = 2000


def readiness(ports: SupportPorts) -> Content:
    """`readiness.json`."""
    conditions = ports.conditions
    state, now, clock = conditions.state, conditions.readiness(), conditions.clock
    since = state.listening_since_ns
    return Content(
        {
            "at": rfc3339(clock.wall_ns()),
            "ready": now.ready,
            "reasons": told_reasons(list(now.reasons)),
            "draining": state.draining,
            "clockSuspect": state.clock_suspect,
            "insecureStandIns": len(conditions.insecure),
            "listeningForSeconds": None
            if since is None
            else (clock.boottime_ns() - since) // NS_PER_S,
            "policy": conditions.policy().digest,
        },
        ("reasons",),
    )


def identity(ports: SupportPorts) -> Content:
    """`identity.json`: whose SVID, and until when."""
    svids = ports.conditions.svids
    svid = svids.current()
    shown = {}
    if svid is not None:
        shown = {
            "spiffeId": str(svid.spiffe_id),
            "notAfter": svid.not_after.isoformat(),
            "generation": svid.generation,
            "roots": len(svid.roots),
        }
    return Content({"svid": shown or None, "words": known_words(svids.state())}, ("state",))


def fleet(ports: SupportPorts) -> Content:
    """`fleet.json`: numbers."""
    snapshot, streams = ports.fleet(), ports.streams.counts()
    counts = count_fleet(snapshot, ports.conditions.clock.boottime_ns())
    blocked = Counter(x.blocked.code.value for x in snapshot.nodes.values() if x.blocked)
    return Content(
        {
            "version": snapshot.version,
            "nodes": dict(counts.nodes),
            "gpus": dict(counts.gpus),
            "classes": {key: len(nodes) for key, nodes in snapshot.nodes_by_hash.items()},
            "blocked": dict(blocked),
            "streams": sum(streams.values()),
            "nodesWithStream": len(streams),
            "nodesWithSeveralStreams": sum(count > 1 for count in streams.values()),
        }
    )


def refusals(ports: SupportPorts) -> Content:
    """`refusals.json`: the last ones, newest first."""
    return Content(
        [
            {
                "what": one.what,
                "subject": one.subject,
                "code": one.code.value,
                "step": one.step,
                "first": rfc3339(one.first_ns),
                "last": rfc3339(one.last_ns),
                "count": one.count,
            }
            for one in ports.refusals.newest_first()
        ],
        ("detail",),
    )


def audit(ports: SupportPorts) -> Content:
    """`audit.json`: the log's head and state, and who accuses it."""
    condition, published = ports.audit.condition, ports.audit.published
    accusing = ports.alarms.accusing()
    head = None
    if published is not None:
        head = {
            "log": published.log,
            "records": published.head.size,
            "root": published.head.root.hex(),
            "keyChanges": len(published.key_changes),
        }
    return Content(
        {
            "available": condition.available,
            "onlyReserveLeft": condition.low,
            "words": known_words(condition.reason),
            "waiting": ports.audit.waiting,
            "checkpoint": head,
            "alarms": {node: accusing[node] for node in sorted(accusing)[:MAX_NAMES]},
        },
        ("reason",),
        max(0, len(accusing) - MAX_NAMES),
    )


def store(ports: SupportPorts) -> Content:
    """`store.json`: its kind and state, and whom it keeps out."""
    snapshot, facts = ports.conditions.store.snapshot(), ports.store_facts()
    denials = {x.node: x.denial for x in snapshot.records.values() if x.denial is not None}
    return Content(
        {
            "kind": facts.get("kind"),
            "generation": facts.get("generation"),
            "madeAnew": facts.get("created"),
            "fresh": ports.conditions.clock.boottime_ns() < snapshot.fresh_until_ns,
            "records": len(snapshot.records),
            "denials": {node: _denial(denials[node]) for node in sorted(denials)[:MAX_NAMES]},
        },
        ("reason", "actor", "candidate"),
        max(0, len(denials) - MAX_NAMES),
    )


def _denial(denial: Denial) -> dict[str, object]:
    """A code that another controller wrote is one of ours, or not told."""
    code = denial.code if denial.code in set(ReasonCode) else None
    return {"code": code, "at": rfc3339(denial.wall_ns)}


# --- desk
# Makes the parts of a support bundle one after the other; what fails stops no other part.
#
# Gives the event loop back between parts and, in the list of nodes, again and again: a bundle
# of a large fleet must not delay a verdict.

MAX_NODES: Final = 20_000
_NODES: Final = "nodes.jsonl"
_METRICS: Final = "metrics.prom"
_AT_ONCE: Final = 100
"""Nodes between two turns of the event loop."""

_BEFORE_NODES: Final[dict[str, Callable[[SupportPorts], Content]]] = {
    "versions.json": lambda _ports: versions(),
    "settings.json": lambda ports: disclosed_settings(ports.loaded),
    "readiness.json": readiness,
    "identity.json": identity,
    "fleet.json": fleet,
}
_AFTER_NODES: Final[dict[str, Callable[[SupportPorts], Content]]] = {
    "refusals.json": refusals,
    "audit.json": audit,
    "store.json": store,
}


class SupportDesk:
    """One for the process."""

    def __init__(self, ports: SupportPorts) -> None:
        self._ports = ports
        self._log = logger("support")

    async def parts(self) -> AsyncIterator[Part]:
        """All parts, in the order of CONTROLLER_PARTS."""
        for name, source in _BEFORE_NODES.items():
            yield self._json(name, source)
            await asyncio.sleep(0)
        yield await self._nodes()
        for name, source in _AFTER_NODES.items():
            yield self._json(name, source)
            await asyncio.sleep(0)
        try:
            yield metrics_part(_METRICS, self._ports.metrics())
        except Exception as error:  # noqa: BLE001 -- as in `_json`
            yield self._failed(_METRICS, error)

    def _json(self, name: str, source: Callable[[SupportPorts], Content]) -> Part:
        try:
            return json_part(name, source(self._ports))
        except Exception as error:  # noqa: BLE001 -- a sick process has a bundle too; what fails is named
            return self._failed(name, error)

    async def _nodes(self) -> Part:
        """Those first that are not eligible, so that they stay when there is no room for all."""
        try:
            return await self._node_lines()
        except Exception as error:  # noqa: BLE001 -- as in `_json`
            return self._failed(_NODES, error)

    async def _node_lines(self) -> Part:
        now_ns = self._ports.conditions.clock.boottime_ns()
        nodes, streams = self._ports.fleet().nodes, self._ports.streams.counts()
        order = sorted(
            (node.state(now_ns) is NodeState.ELIGIBLE, name) for name, node in nodes.items()
        )
        lines, written = bytearray(), 0
        for _, name in order[:MAX_NODES]:
            line = json_line(node_line(nodes[name], now_ns, streams.get(name, 0)))
            if len(lines) + len(line) > MAX_PART_BYTES:
                break
            lines += line
            written += 1
            if written % _AT_ONCE == 0:
                await asyncio.sleep(0)
        return Part(_NODES, bytes(lines), withheld=WITHHELD, left_out=len(order) - written)

    def _failed(self, name: str, error: Exception) -> Part:
        self._log.error(Event.SUPPORT_PART_FAILED, part=name, exc_info=error)
        words = " ".join([type(error).__name__, *known_words(str(error))])
        return missing(name, f"{words}; the controller's log has more")
