"""The Kubernetes side of a controller: caches, enrollments, reservations, leader election, Events.

Opens nothing by itself. The connection comes in as an `Exchange`, so that a controller without a
cluster never imports the client library. The tasks run until they are cancelled; the age of the
caches shows what they fail at.
"""

import asyncio
import contextlib
import random
import secrets
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from controller.admission.pod import AdmittedPod
from controller.admission.pod_webhooks import AdmissionDecision
from controller.binding.records import BindDecision
from controller.binding.use import UseFault
from controller.binding.waking import WaitingPod
from controller.certificates.files import CertificateFiles
from controller.certificates.plan import Terms
from controller.fleet.enrollment import AUTOMATIC
from controller.fleet.trust import ChangeKind, TrustChange
from controller.fleet.view import FleetSnapshot, NodeView
from controller.kube.access.access_config import AccessDocument, ClientAuthorities
from controller.kube.access.access_review import KubeAccessReviewer
from controller.kube.access.token_review import KubePersonReviewer, KubeTokenReviewer
from controller.kube.api.cache import DEFAULT_PACE, Cache, Change, ListWatch, Observe, Pace
from controller.kube.api.client import ApiClient, Exchange
from controller.kube.api.leader_election import Leadership
from controller.kube.api.resources import Kind
from controller.kube.api.text_documents import TextDocuments
from controller.kube.nodes.inventory_labels import InventoryLabels
from controller.kube.nodes.node_hints import NodeHints
from controller.kube.nodes.nodes import (
    NAMESPACE_KIND,
    NODE_KIND,
    ClusterNodes,
    EnforcedNamespaces,
    MapNames,
)
from controller.kube.objects.certificates import ManagedCertificates
from controller.kube.objects.enrollments import KubernetesEnrollmentStore
from controller.kube.objects.policies import ClusterPolicy
from controller.kube.objects.reservations import KubernetesLedgerStore
from controller.kube.pods.events import (
    EventRecorder,
    Notice,
    admission_notice,
    binding_notice,
    placement_notice,
    trust_notices,
    use_notices,
)
from controller.kube.pods.gpu_failures import GpuFailures
from controller.kube.pods.job_types import JobTypes
from controller.kube.pods.pod_waker import Choose, PodWaker
from controller.kube.pods.pods import (
    ClusterBoundPods,
    ClusterPods,
    KnownPod,
    PodEvictor,
    PodsByNode,
    is_awake,
    pod_kind,
)
from controller.kube.pods.priority_classes import PRIORITY_CLASS_KIND, ClusterPriorityClasses
from controller.kube.pods.waiting_events import AskWhy, WaitingPodEvents
from controller.ledger.record import PodRef
from controller.ledger.store import LedgerUnavailableError
from controller.placement.filter_and_score import FilterDecision, Totals
from controller.placement.keys import RequirementRules
from controller.placement.requirements import Requirements, controlling_owner
from controller.record import AuditLog
from controller.settings import KubernetesSettings
from gpuwarden.clock import Clock
from gpuwarden.moment import NS_PER_S
from gpuwarden.telemetry import names
from gpuwarden.telemetry.metrics import Instruments

T = TypeVar("T")
_SHOWN_EVERY_S = 2.0


@dataclass(frozen=True, slots=True)
class HintedCluster:
    """What hints need to know, where they are given."""

    priority_classes: ClusterPriorityClasses
    job_types: JobTypes


class Cluster:
    """One per process; used from one event loop."""

    def __init__(
        self,
        settings: KubernetesSettings,
        exchange: Exchange,
        *,
        replica: str,
        rules: RequirementRules,
        clock: Clock,
        instruments: Instruments,
        pace: Pace = DEFAULT_PACE,
        has_policy: bool = False,
        hints: bool = False,
    ) -> None:
        """`has_policy`: whether the policy is an object of the cluster. `hints`: are given."""
        self._exchange = exchange
        self._clock = clock
        self._instruments = instruments
        self._rules = rules
        self._replica = replica
        self._pace = pace
        self._stale_after_ns = settings.stale_after.ns
        self._namespace = settings.namespace
        self._writes_events = settings.events
        self._namespace = settings.namespace
        self._api = api = ApiClient(exchange, instruments)
        stale_after_ns = settings.stale_after.ns
        map_names = MapNames()
        nodes = self._followed(NODE_KIND, map_names.observe)
        namespaces = self._followed(NAMESPACE_KIND)
        self.nodes = ClusterNodes(nodes.cache, stale_after_ns, map_names)
        self.namespaces = EnforcedNamespaces(namespaces.cache, stale_after_ns)
        self._pods = by_node = PodsByNode(self.namespaces.is_enforced)
        kind = pod_kind(rules)
        pods = self._followed(kind, self._observe_pods)
        self.pods = ClusterPods(api, kind, pods.cache, replica=replica, clock=clock)
        self.bound_pods = ClusterBoundPods(pods.cache, by_node, clock.boottime_ns)
        self.evictor = PodEvictor(api)
        self._pod_observers: list[Observe[KnownPod]] = [self._pods.observe, self.pods.observe]
        self.enrollments = KubernetesEnrollmentStore(
            api,
            clock=clock,
            instruments=instruments,
            stale_after_ns=stale_after_ns,
            pace=pace,
            jitter=_jitter,
        )
        self.reservations = KubernetesLedgerStore(
            api,
            clock=clock,
            instruments=instruments,
            stale_after_ns=stale_after_ns,
            pace=pace,
            jitter=_jitter,
        )
        self.leadership = Leadership(
            api,
            namespace=settings.namespace,
            identity=f"{replica}_{secrets.token_hex(8)}",
            clock=clock,
            instruments=instruments,
            jitter=_jitter,
        )
        self._events = EventRecorder(
            api,
            reporter=replica,
            clock=clock,
            instruments=instruments,
            leads=self.leadership.leads,
            draw_name=lambda: secrets.token_hex(8),
        )
        self._own_events = EventRecorder(
            api,
            reporter=replica,
            clock=clock,
            instruments=instruments,
            leads=_always,
            draw_name=lambda: secrets.token_hex(8),
        )
        """For what no other replica knows: the API server asks one replica about each pod, and an
        operator one about each node."""
        self._gpu_failures = GpuFailures(by_node.managed, self.reservations.snapshot)
        self._waker = PodWaker(
            self.pods,
            pods_wait=self._pods.any_waits,
            clock=clock,
            instruments=instruments,
        )
        self._watchers: Mapping[str, ListWatch[Any]] = {
            "nodes": nodes,
            "namespaces": namespaces,
            "pods": pods,
            "nodeenrollments": self.enrollments.watcher,
            "gpureservations": self.reservations.watcher,
        }
        self.policy: ClusterPolicy | None = None
        if has_policy:
            self.policy = ClusterPolicy(
                api,
                clock=clock,
                instruments=instruments,
                leads=self.leadership.leads,
                jitter=_jitter,
                pace=pace,
                opaque_hashes=rules.opaque_hashes,
            )
            self._watchers = {**self._watchers, **self.policy.watchers}

        self.hinted: HintedCluster | None = None
        if hints:
            classes = self._followed(PRIORITY_CLASS_KIND)
            self.hinted = HintedCluster(
                ClusterPriorityClasses(classes.cache, stale_after_ns, clock.boottime_ns),
                JobTypes(),
            )
            self._pod_observers.append(self.hinted.job_types.observe)
            self._watchers = {**self._watchers, "priorityclasses": classes}

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, NoReturn]]:
        """What has to run, each once."""
        policy = {} if self.policy is None else {"kube policy status": self.policy.run()}
        return {
            **{f"kube {name}": watcher.follow() for name, watcher in self._watchers.items()},
            **policy,
            "kube leadership": self.leadership.follow(),
            "kube events": self._events.follow(),
            "kube own events": self._own_events.follow(),
            "kube requeues": self._waker.follow(),
            "kube reservations shown": self._show_reservations(),
        }

    def hints(
        self,
        passing: Callable[[AdmittedPod], Iterable[str]],
        is_held_back: Callable[[AdmittedPod], bool],
        not_ready: Callable[[], str | None],
    ) -> NodeHints:
        """Keeps the nodes' hint labels, for schedulers that do not ask the extender.

        `passing`: the nodes where a waiting pod would pass. `is_held_back`: whether it gets no GPUs
        anywhere now, for its own sake: no node has a label for it then.
        """
        return NodeHints(
            self._api,
            waiting=lambda: (x for x in self._waiting() if not is_held_back(x)),
            nodes=self.nodes.snapshot,
            passing=passing,
            not_ready=not_ready,
            leads=self.leadership.leads,
            boottime_ns=self._clock.boottime_ns,
            rules=self._rules,
            instruments=self._instruments,
        )

    def inventory_labels(
        self, fleet: Callable[[], FleetSnapshot], not_ready: Callable[[], str | None]
    ) -> InventoryLabels:
        """Keeps labels on nodes with what their evidence shows."""
        return InventoryLabels(
            self._api,
            fleet=fleet,
            nodes=self.nodes.snapshot,
            not_ready=not_ready,
            leads=self.leadership.leads,
            boottime_ns=self._clock.boottime_ns,
            instruments=self._instruments,
        )

    def waiting_events(
        self,
        explain: AskWhy,
        not_ready: Callable[[], str | None],
    ) -> WaitingPodEvents | None:
        """Says in Events why pods wait, for schedulers that do not ask the extender.

        None where no Events are written.
        """
        if not self._writes_events:
            return None
        return WaitingPodEvents(
            waiting=self._waiting,
            explain=explain,
            not_ready=not_ready,
            leads=self.leadership.leads,
            say=self._events.say,
            boottime_ns=self._clock.boottime_ns,
        )

    def managed_certificates(
        self, files: CertificateFiles, *, terms: Terms, listeners: frozenset[str], audit: AuditLog
    ) -> ManagedCertificates:
        """Keeps certificates in Secrets and as files; `listeners` cannot open before theirs."""
        return ManagedCertificates(
            self._api,
            files,
            namespace=self._namespace,
            terms=terms,
            listeners=listeners,
            clock=self._clock,
            instruments=self._instruments,
            audit=audit,
            leads=self.leadership.leads,
            jitter=_jitter,
        )

    def _waiting(self) -> Iterator[AdmittedPod]:
        for pod in self._pods.managed(""):
            if pod.waiting is not None and self.namespaces.is_enforced(pod.namespace):
                yield pod.waiting

    def token_reviewer(self, audience: str) -> KubeTokenReviewer:
        """Asks the API server whose a token for `audience` is."""
        return KubeTokenReviewer(self._api, audience)

    def person_reviewer(self) -> KubePersonReviewer:
        """Asks the API server which person a token is of."""
        return KubePersonReviewer(self._api)

    def access_reviewer(self) -> KubeAccessReviewer:
        """Asks the API server what a person may do."""
        return KubeAccessReviewer(self._api)

    def client_authorities(self) -> ClientAuthorities:
        """The CAs of people's client certificates."""
        return ClientAuthorities(self._api, self._clock.boottime_ns)

    def access_document(self, wanted: Callable[[], dict[str, str] | None]) -> AccessDocument:
        """The ConfigMap by which people verify the controller; the leader keeps it."""
        return AccessDocument(
            self._api, self._namespace, wanted=wanted, leads=self.leadership.leads
        )

    def text_documents(self) -> TextDocuments:
        """Texts that outlive this process and are there for all replicas."""
        return TextDocuments(self._api, self._namespace)

    def follow_pods(self, observe: Observe[KnownPod]) -> None:
        """Report further changes of the pods to `observe`."""
        self._pod_observers.append(observe)

    def report_trust(
        self,
        changes: Sequence[TrustChange],
        actor: str,
        view: Callable[[str], NodeView | None],
    ) -> None:
        """Report in Events what `actor` caused for nodes, by the view of one; returns at once.

        Of a release the store does not say whose it was: the replica that was asked reports it.
        """
        if not self._writes_events:
            return
        nodes, pods = self.nodes.snapshot(), self._pods.managed
        released = [x for x in changes if x.kind is ChangeKind.RELEASED]
        others = [x for x in changes if x.kind is not ChangeKind.RELEASED]
        self._events.say(trust_notices(others, nodes, pods))
        self._events.say(self._gpu_failures.notices(others, nodes, view))
        if actor != AUTOMATIC:
            self._own_events.say(trust_notices(released, nodes, pods))

    def report_use(self, faults: Iterable[UseFault]) -> None:
        """Report in Events where nodes and the ledger do not agree; returns at once."""
        if self._writes_events:
            self._events.say(use_notices(faults, self.nodes.snapshot()))

    def report_admission(self, decision: AdmissionDecision) -> None:
        """Report in an Event what would be denied; returns at once."""
        self._report_own(admission_notice(decision))

    def report_binding(self, decision: BindDecision) -> None:
        """Report in an Event what would be denied; returns at once."""
        self._report_own(binding_notice(decision))

    def report_placement(self, decision: FilterDecision, totals: Totals) -> None:
        """Report in an Event that a pod would not be placed; returns at once."""
        self._report_own(placement_notice(decision, totals))

    def _report_own(self, notice: Notice | None) -> None:
        if notice is not None and self._writes_events:
            self._own_events.say((notice,))

    def wake(self, changes: Iterable[TrustChange]) -> None:
        """Requeue pods that `changes` may help; returns at once."""
        self._waker.wake(changes)

    def wake_nodes(self, nodes: Iterable[str]) -> None:
        """Requeue pods that these nodes may have room for; returns at once."""
        self._waker.wake_nodes(nodes)

    def wake_everything(self) -> None:
        """Requeue pods that may pass anywhere now; returns at once."""
        self._waker.wake_everything()

    def wake_by(self, choose: Choose, freed: Callable[[], Iterable[str]]) -> None:
        """Choose whom to requeue by `choose`; `freed`: as of `PodWaker`."""
        self._waker.choose, self._waker.freed = choose, freed

    def managed_pods(self) -> Iterator[KnownPod]:
        """Managed pods that have not ended, bound or not."""
        return self._pods.all_managed()

    def waiting_namespaces(self) -> frozenset[str]:
        """Namespaces of managed pods that are not bound."""
        return frozenset(pod.namespace for pod in self._pods.managed(""))

    def waiting_pods(self, without: frozenset[str] = frozenset()) -> Iterator[WaitingPod]:
        """The managed pods that are not bound, and whose requirements can be read."""
        for pod in self._pods.managed(""):
            if pod.waiting is None or pod.uid in without or not isinstance(pod.needs, Requirements):
                continue
            ref = PodRef(pod.namespace, pod.name, pod.uid, controlling_owner(pod.waiting))
            enforced = self.namespaces.is_enforced(pod.namespace)
            awake = is_awake(pod.waiting, self._replica, self._clock.wall_ns())
            yield WaitingPod(ref, pod.waiting, pod.needs, enforced, is_awake=awake)

    def warnings(self) -> tuple[str, ...]:
        """What has not been heard of for too long, by whatever it is relied on."""
        now_ns = self._clock.boottime_ns()
        return tuple(
            _silence(name, watcher.cache, now_ns)
            for name, watcher in self._watchers.items()
            if now_ns >= watcher.cache.fresh_until_ns(self._stale_after_ns)
        )

    def set_gauges(self) -> None:
        """Show how large and how old the caches are."""
        objects, age = (
            self._instruments.gauge(names.KUBE_OBJECTS),
            self._instruments.gauge(names.KUBE_AGE),
        )
        now_ns = self._clock.boottime_ns()
        for name, watcher in self._watchers.items():
            cache = watcher.cache
            objects.labels(name).set(len(cache.objects))
            if cache.fresh_at_ns is not None:
                age.labels(name).set(max(0, now_ns - cache.fresh_at_ns) / NS_PER_S)

    async def close(self) -> None:
        """Give the Lease back and close connections; the tasks have ended before."""
        await self.leadership.release()
        await self._exchange.close()

    async def _show_reservations(self) -> NoReturn:
        """Keep the status of reservations up to date, for people; one replica does."""
        while True:
            await asyncio.sleep(_SHOWN_EVERY_S)
            if self.leadership.leads():
                with contextlib.suppress(LedgerUnavailableError):
                    await self.reservations.show()

    def _observe_pods(self, changes: tuple[Change[KnownPod], ...], asked_ns: int | None) -> None:
        for observe in self._pod_observers:
            observe(changes, asked_ns)

    def _followed(
        self, kind: Kind[T], observe: Observe[T] = lambda _changes, _asked: None
    ) -> ListWatch[T]:
        return ListWatch(
            self._api,
            kind,
            clock=self._clock,
            instruments=self._instruments,
            jitter=_jitter,
            pace=self._pace,
            observe=observe,
        )


def _silence(name: str, cache: Cache[Any], now_ns: int) -> str:
    since = "never"
    if cache.fresh_at_ns is not None:
        since = f"{(now_ns - cache.fresh_at_ns) // NS_PER_S} s ago"
    trouble = f" ({cache.trouble})" if cache.trouble else ""
    return f"kubernetes: the watch of {name} was last heard {since}{trouble}"


def _always() -> bool:
    return True


def _jitter() -> float:
    """For back-off: no secret depends on it."""
    return random.random()  # noqa: S311 - spreads retries, protects nothing
