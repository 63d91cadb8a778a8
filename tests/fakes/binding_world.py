"""A small cluster around the binding webhook: pods bound by its answers, one ledger, time.

An API server here does what the real one does with an answer: it applies the patch, and then
refuses the write where the preconditions do not hold any more.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Protocol

import msgspec

from controller.admission.review import AdmissionRequest, Verdict
from controller.admission.rules import AdmissionRules
from controller.binding.decision import BindingView
from controller.binding.early_reservation import EarlyReservations
from controller.binding.operator_release import ReleaseService
from controller.binding.reconciler import (
    ReservationReconciler,
    StartupReconciler,
)
from controller.binding.reconciliation import Followup
from controller.binding.records import (
    BindDecision,
    ReleaseOrder,
    ReservationChange,
    ended_record,
    kept_record,
    reservation_record,
)
from controller.binding.request import PodStates, PodsUnavailableError, StoredPod, StoredPods
from controller.binding.turns import LostTurns, RecentDenials
from controller.binding.use import LedgerUse, UseReports
from controller.binding.webhook import BindingWebhook, Granting
from controller.fleet.directory import KnownNode
from controller.fleet.view import FleetSnapshot
from controller.kube.pods.pods import pod_kind
from controller.ledger.claim import Claimant
from controller.ledger.record import PodGone, PodRef, PodSeen, PodSight
from controller.ledger.release import DriftKind, NodeGone
from controller.ledger.restore import Grants, LivePod, LoggedGrant
from controller.ledger.store import Entry, LedgerStore
from controller.placement.snapshot import Scenes
from controller.policy import DEFAULT_POLICY
from controller.record import AuditLog, Record
from gpuwarden.evidence.model import Allocation, GpuProcess
from gpuwarden.reasons import ReasonCode, Refusal
from sandbox.kube.json_patch import applied
from tests.builders.admitted_pods import Document, admitted, documents
from tests.builders.bindings import IDS, NODE, binding, env_pod, review_request
from tests.builders.fleet_views import healthy
from tests.fakes.clock import FakeClock
from tests.fakes.ledger_store import MemoryLedgerStore
from tests.fakes.recording_audit import RecordingAudit

_PODS = pod_kind(AdmissionRules().requirements)


@dataclass
class FakePods:
    """Pods by name, in namespace team-a; the copy may lag behind."""

    stored: dict[str, Document] = field(default_factory=dict)
    copy: dict[str, Document] = field(default_factory=dict)
    down: bool = False
    reads: list[str] = field(default_factory=list)
    requeues: list[str] = field(default_factory=list)
    rereads: int = 0
    version: int = 100

    def put(self, document: Document) -> None:
        self.version += 1
        made: Document = msgspec.json.decode(msgspec.json.encode(document))
        made["metadata"]["resourceVersion"] = str(self.version)
        self.stored[made["metadata"]["name"]] = made
        self.catch_up()

    def catch_up(self) -> None:
        self.copy = dict(self.stored)

    def known(self, _namespace: str, name: str) -> StoredPod | None:
        return _stored(self.copy.get(name))

    async def read(self, _namespace: str, name: str) -> StoredPod | None:
        await self._ask(name)
        return _stored(self.stored.get(name))

    def sight(self, pod: PodRef) -> PodSight:
        found = self.copy.get(pod.name or "")
        return None if found is None or found["metadata"]["uid"] != pod.uid else _seen(found)

    async def look(self, pod: PodRef) -> PodSeen | PodGone:
        await self._ask(pod.name or "")
        found = self.stored.get(pod.name or "")
        missing = found is None or found["metadata"]["uid"] != pod.uid
        return PodGone() if found is None or missing else _seen(found)

    async def requeue(self, pod: PodRef) -> PodSeen | PodGone:
        answer = await self.look(pod)
        if isinstance(answer, PodSeen):
            self.requeues.append(pod.name or "")
            self.put(self.stored[pod.name or ""])
        return answer

    def live(self) -> tuple[LivePod, ...]:
        found = (_live(x) for x in self.copy.values())
        return tuple(x for x in found if x is not None)

    def holding(self, gpu: str) -> tuple[LivePod, ...]:
        return tuple(x for x in self.live() if gpu in x.gpus)

    def reread(self) -> None:
        self.rereads += 1

    async def _ask(self, name: str) -> None:
        self.reads.append(name)
        await asyncio.sleep(0)
        if self.down:
            raise PodsUnavailableError("the API server is away")


@dataclass
class Sink:
    """Remembers what is told."""

    decisions: list[BindDecision] = field(default_factory=list)
    changes: list[ReservationChange] = field(default_factory=list)
    releases: list[float] = field(default_factory=list)
    """Seconds from a known end to the release."""
    writes: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    drift: dict[DriftKind, int] = field(default_factory=dict)
    restored_pods: list[str] = field(default_factory=list)
    rollbacks: list[frozenset[str]] = field(default_factory=list)
    log: list[Record] = field(default_factory=list)
    """What the audit log has of reservations, in order."""
    early: list[tuple[str, bool]] = field(default_factory=list)
    orders: list[ReasonCode | None] = field(default_factory=list)
    """How operators' orders ended; None where they were done."""

    def bound(self, decision: BindDecision) -> None:
        self.decisions.append(decision)

    def changed(self, change: ReservationChange) -> None:
        self.changes.append(change)
        self.log.append(reservation_record(change))

    def freed(self, seconds: float) -> None:
        self.releases.append(seconds)

    def wrote(self, result: str) -> None:
        self.writes.append(result)

    def ordered(self, order: ReleaseOrder, refusal: Refusal | None) -> None:
        assert order.reason
        self.orders.append(None if refusal is None else refusal.code)

    def ledger_read(self, error: str) -> None:
        self.errors.append(error)

    def drifts(self, counts: Any) -> None:
        self.drift = dict(counts)

    def restored(self, pod: LivePod, gpu: str) -> None:
        self.restored_pods.append(f"{pod.pod.name} {gpu}")

    def rollback_detected(self, gpus: frozenset[str]) -> None:
        self.rollbacks.append(gpus)

    def reserved_early(self, code: ReasonCode, *, is_new: bool) -> None:
        self.early.append((code.value, is_new))

    def log_replayed(self, grants: Grants) -> None:
        del grants

    def kept(self, grant: LoggedGrant) -> None:
        self.log.append(kept_record(grant))

    def ended_elsewhere(self, grants: tuple[LoggedGrant, ...]) -> None:
        self.log += [ended_record(x) for x in grants]


LogReplayer = Callable[[], Awaitable[Grants]]


class PodPorts(StoredPods, PodStates, Protocol):
    """All that a replica asks about pods."""


class Replica:
    """One controller's binding webhook, and its reconciler."""

    def __init__(
        self,
        world: "BindingWorld",
        store: LedgerStore,
        name: str,
        *,
        pods: PodPorts | None = None,
        audit: AuditLog | None = None,
        log_replay: LogReplayer | None = None,
    ) -> None:
        """`pods`, `audit`: what stands between it and the world's.

        `log_replay`: what its log has from before its start.
        """
        self.store = store
        self.sink = Sink()
        self.audit = RecordingAudit()
        pods = pods or world.pods
        self.denials = RecentDenials()
        self.turns = LostTurns()
        self.woken: list[str] = []
        self.asked_nodes: list[str] = []
        """Which were challenged because a release waits for them."""
        self._world = world
        self._name = name
        self._calls = 0
        self.reports = UseReports(lambda: world.fleet)
        self.scenes = Scenes(lambda: world.fleet, lambda: world.policy, world.clock.now)
        self.use = LedgerUse(store.snapshot)
        self.reconciliation = StartupReconciler(
            store=store,
            pods=pods,
            ids=IDS,
            fleet=world.snapshot_on_the_loop,
            report=self.reports.of,
            sink=self.sink,
            boottime_ns=world.clock.boottime_ns,
            draw_call=self._draw_call,
            holding=world.pods.holding,
            log_replay=log_replay,
            take_replaced=self._taken,
        )
        self.replaced: tuple[Entry, ...] = ()
        """Records whose place another one took."""
        self.reconciler = ReservationReconciler(
            store=store,
            pods=pods,
            report=self.reports.of,
            gone=world.gone.get,
            denials=self.denials,
            turns=self.turns,
            reconciliation=self.reconciliation,
            sink=self.sink,
            wake=self.woken.extend,
            boottime_ns=world.clock.boottime_ns,
            followup=Followup(),
            is_connected=lambda _node: True,
            ask=self.asked_nodes.append,
        )
        self.claims = Claimant(store)
        self.granting = Granting(
            claims=self.claims,
            audit=audit or self.audit,
            grant_refusal=lambda node, gpus: self.view().grant_refusal(node, gpus),
            sink=self.sink,
            wake=self.woken.extend,
            draw_call=self._draw_call,
        )
        self.binding_webhook = BindingWebhook(
            pods=pods,
            view=self.view,
            granting=self.granting,
            store=store,
            is_enforced=lambda _namespace: True,
            denials=self.denials,
            sink=self.sink,
            boottime_ns=world.clock.boottime_ns,
        )
        self.early = EarlyReservations(
            view=self.view,
            use=self.use.use,
            nodes=lambda: world.nodes,
            pods=world.pods,
            store=store,
            granting=self.granting,
            audit=audit or self.audit,
            sink=self.sink,
            ids=IDS,
        )
        self.releases = ReleaseService(
            store=store,
            pods=pods,
            heard=lambda node: self.reports.heard(node, world.clock.boottime_ns()),
            not_ready=lambda: self.not_ready,
            audit=self.audit,
            sink=self.sink,
            wake=self.woken.extend,
        )
        self.not_ready: str | None = None
        self.changes: dict[str, Any] = {}
        """Of the view, made by tests."""

    def view(self) -> BindingView:
        made = BindingView(
            scene=self.scenes.now(),
            ledger=self.store.snapshot(),
            claiming={},
            ids=IDS,
            rules=AdmissionRules(),
            not_ready=None,
            grant_refusal=self.reconciliation.refusal,
            turn_refusal=lambda uid: self.turns.refusal(uid, self._world.clock.boottime_ns()),
        )
        return replace(made, **self.changes)

    async def stand(self) -> None:
        """What the first list of pods and the first round bring about."""
        self.reconciliation.pods_listed(self._world.clock.boottime_ns())
        await self.reconciler.round()

    async def bind(self, name: str, node: str = NODE, **request: Any) -> Verdict:
        """The binding webhook's answer about a Binding of the scheduler."""
        return await self.binding_webhook.decide(self.asked(name, node, **request))

    def asked(self, name: str, node: str = NODE, **request: Any) -> AdmissionRequest:
        found = self._world.pods.stored.get(name)
        uid = None if found is None else found["metadata"]["uid"]
        return review_request(binding(name, node, uid=uid), **request)

    def _taken(self) -> tuple[Entry, ...]:
        taken, self.replaced = self.replaced, ()
        return taken

    def _draw_call(self) -> str:
        self._calls += 1
        return f"{self._name}{self._calls:08x}"


class BindingWorld:
    """Pods, nodes, time and the ledger, with replicas around."""

    def __init__(
        self, *gpus: int, store: LedgerStore | None = None, clock: FakeClock | None = None
    ) -> None:
        """One `env` node per number, with so many GPUs: gpu-1, gpu-2, …"""
        self.clock = clock or FakeClock()
        self.pods = FakePods()
        self.gone: dict[str, NodeGone] = {}
        self.nodes = {
            f"gpu-{n}": KnownNode(f"uid-gpu-{n}") for n in range(1, len(gpus or (8,)) + 1)
        }
        self.fleet = FleetSnapshot({}, {}, 0)
        self.policy = DEFAULT_POLICY
        self._gpus = gpus or (8,)
        self.store = store or MemoryLedgerStore()
        self.report()

    def snapshot(self) -> FleetSnapshot:
        return self.fleet

    def snapshot_on_the_loop(self) -> FleetSnapshot:
        """As the registry's, which no thread may ask; raises RuntimeError there."""
        asyncio.get_running_loop()
        return self.fleet

    def report(
        self,
        *processes: GpuProcess,
        given: Iterable[Allocation] = (),
        after_s: float = 1,
        pods: tuple[str, ...] = (),
    ) -> None:
        """New evidence of every node, asked for after a while; `pods` (UIDs) run there."""
        self.clock.advance(after_s)
        now_ns = self.clock.boottime_ns()
        nodes = {}
        for number, count in enumerate(self._gpus, 1):
            view = healthy(f"gpu-{number}", gpus=count)
            assert view.acceptance is not None
            accepted = replace(
                view.acceptance,
                challenge_issued_ns=now_ns,
                fresh_until_ns=now_ns + 90 * 10**9,
                processes=tuple(processes),
                processes_by_gpu=Counter(x.gpu for x in processes),
                allocations=tuple(given),
                pods=pods,
            )
            nodes[view.name] = replace(view, acceptance=accepted)
        self.fleet = FleetSnapshot(nodes, {}, self.fleet.version + 1)

    async def replica(self, name: str = "a", store: LedgerStore | None = None) -> Replica:
        """A replica with firm ground under it."""
        made = Replica(self, store or self.store, name)
        await made.stand()
        self.report()
        return made

    def pod(self, name: str, **pod: Any) -> str:
        """A waiting pod; its name."""
        document = env_pod(name=name, uid=f"uid-{name}", **pod)
        self.pods.put(document)
        return name

    def lands(self, name: str, verdict: Verdict, node: str = NODE) -> bool:
        """Whether the API server can carry out an answer, and then it does."""
        if verdict.refusals:
            return False
        pod = self.pods.stored.get(name)
        sent = binding(name, node, uid=None)
        made = applied(sent, documents(verdict.patch))["metadata"]
        if pod is None or pod["spec"].get("nodeName"):
            return False
        metadata = pod["metadata"]
        held = (made.get("uid"), made.get("resourceVersion"))
        if held != (metadata["uid"], metadata["resourceVersion"]):
            return False
        annotations = {**(metadata.get("annotations") or {}), **made["annotations"]}
        self.pods.put(
            pod
            | {
                "metadata": metadata | {"annotations": annotations},
                "spec": pod["spec"] | {"nodeName": node},
            }
        )
        return True

    def assigned(self) -> dict[str, tuple[str, ...]]:
        """GPUs by bound pod, as its containers see them."""
        return {
            name: tuple(
                pod["metadata"]["annotations"]["gpuwarden.dev/gpu-uuids-assigned"].split(",")
            )
            for name, pod in self.pods.stored.items()
            if pod["spec"].get("nodeName")
        }

    def states(self) -> dict[str, list[str]]:
        """States of all holders by GPU."""
        entries = self.store.snapshot().entries.values()
        return {x.record.gpu: [y.state.value for y in x.record.holders] for x in entries}


def _stored(pod: Document | None) -> StoredPod | None:
    if pod is None:
        return None
    metadata, node = pod["metadata"], pod["spec"].get("nodeName", "")
    has_ended = _has_ended(pod)
    waiting = None if node or has_ended else admitted(pod)
    return StoredPod(metadata["uid"], metadata["resourceVersion"], node, has_ended, waiting)


def _seen(pod: Document) -> PodSeen:
    annotations = pod["metadata"].get("annotations") or {}
    return PodSeen(
        pod["metadata"]["uid"],
        pod["spec"].get("nodeName", ""),
        annotations.get("gpuwarden.dev/reservation-id"),
        _has_ended(pod),
    )


def _live(pod: Document) -> LivePod | None:
    """As the cluster's copy has it."""
    return _read_live(msgspec.json.encode(pod))


@lru_cache(maxsize=1024)
def _read_live(body: bytes) -> LivePod | None:
    """Each version of a pod is read once, as the real copy reads it."""
    _, entry = _PODS.entry(body)
    known = entry.value
    return None if known.has_ended else known.held


def _has_ended(pod: Document) -> bool:
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}
