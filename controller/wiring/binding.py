"""Makes the webhooks and the reconcilers of reservations from the settings. Starts nothing."""

import secrets
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from controller.admission.pod_webhooks import ENFORCED
from controller.admission.review import AdmissionHandler
from controller.admission.rules import AdmissionRules
from controller.binding.decision import BindingView, held_back
from controller.binding.early_reservation import EarlyReservations
from controller.binding.operator_release import ReleaseService
from controller.binding.reconciler import (
    ReservationReconciler,
    StartupReconciler,
)
from controller.binding.reconciliation import AbsentNodes, Followup
from controller.binding.request import BoundPod
from controller.binding.turns import LostTurns, RecentDenials
from controller.binding.use import (
    LedgerUse,
    ToRecord,
    UseFaultKind,
    UseReports,
    allocations_to_record,
    nothing_to_record,
)
from controller.binding.use_reconciler import UseNow, UseReconciler
from controller.binding.waking import Chosen, NamespaceRoom, Room, choose_to_wake
from controller.binding.webhook import (
    BINDING_WEBHOOK,
    BindingWebhook,
    Granting,
)
from controller.fleet.view import FleetSnapshot
from controller.kube.api.cache import Change
from controller.kube.pods.pods import KnownPod
from controller.ledger.attempt import AttemptLimits
from controller.ledger.claim import Claimant
from controller.ledger.record import key_of
from controller.ledger.reservation_id import ReservationIds, ReservationKey
from controller.ledger.store import LedgerStore
from controller.operations.log_replay import LogReplay
from controller.placement.devices import is_required
from controller.placement.filter_and_score import HeldBack
from controller.placement.keys import RequirementRules
from controller.placement.snapshot import GpuUse, Scenes
from controller.record import AuditLog
from controller.recorders.binding import BindingRecorder, UseRecorder
from controller.recorders.http import AdmissionRecorder
from controller.rpc.attestation import StreamTable
from controller.settings import (
    ControllerSettings,
    Enforcement,
    Scheduling,
)
from controller.web.extender.verbs import AskHeldBack
from controller.web.listener import HttpServer
from controller.web.webhook import AdmissionLimits, AdmissionWebhooks
from controller.wiring.certificates import tls_files
from controller.wiring.cluster import Cluster
from gpuwarden.clock import Clock

# --- the keys of reservation IDs
# `admission.idKeys` names one file that all replicas share: one line per key, `<key id> <secret
# in hex>`, at least 32 bytes. Blank lines and lines that begin with # do not count. The first key
# makes IDs, all of them read IDs. The file is read once at the start; no message shows its
# content.

_MAX_BYTES: Final = 64 * 1024


class IdKeysError(Exception):
    """The file cannot be used; names it, and what was expected."""


def read_ids(cluster: str, path: Path) -> ReservationIds:
    """The ids of a cluster by the keys in `path`; raises IdKeysError."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise IdKeysError(f"{path}: {error.strerror}") from None
    if len(content) > _MAX_BYTES:
        raise IdKeysError(f"{path}: more than {_MAX_BYTES} bytes")
    try:
        lines = content.decode("ascii").splitlines()
    except UnicodeDecodeError:
        raise IdKeysError(f"{path}: expected ASCII") from None
    keys = tuple(
        _key(path, number, line.split())
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.lstrip().startswith("#")
    )
    try:
        return ReservationIds(cluster, keys)
    except ValueError as error:
        raise IdKeysError(f"{path}: {error}") from None


def _key(path: Path, number: int, words: list[str]) -> ReservationKey:
    expected = f"{path} line {number}: expected a key id (1 to 16 of a-z and 0-9) and hex digits"
    try:
        key_id, secret = words
        return ReservationKey(key_id, bytes.fromhex(secret))
    except ValueError:
        raise IdKeysError(f"{expected} of 32 bytes or more") from None


# --- the listener of the webhooks
# Other parts of the controller add handlers for paths of their own.

OPEN_TO_THE_NETWORK: Final = (
    "admission.tls.clientCa is not set: whoever reaches listen.admission can call the webhooks,"
    " so only the network keeps others from it"
)


def admission_rules(settings: ControllerSettings, requirements: RequirementRules) -> AdmissionRules:
    """The rules that mutation, validation and binding webhook share."""
    return AdmissionRules(
        requirements,
        settings.scheduling.scheduler_names[0],
        further_schedulers=settings.scheduling.scheduler_names[1:],
        by_affinity=settings.scheduling.mode is Scheduling.AFFINITY,
        runtime_classes=settings.admission.runtime_classes,
        host_paths=frozenset(settings.admission.host_paths),
    )


REPORT_ONLY_WARNING: Final = (
    "report-only (enforcement: report): everything is judged, and nothing is patched, refused,"
    " reserved or kept from a node"
)


def is_report_only(settings: ControllerSettings) -> bool:
    """Whether decisions are shown and not carried out."""
    return settings.enforcement is Enforcement.REPORT


def admission_server(
    settings: ControllerSettings,
    handlers: Mapping[str, AdmissionHandler],
    *,
    recorder: AdmissionRecorder,
    open_paths: frozenset[str] = frozenset(),
) -> HttpServer | None:
    """The listener of all webhooks, or None without `admission.tls`.

    Raises TlsFilesError for files that cannot serve.
    """
    tls = settings.admission.tls
    if tls.cert is None or tls.key is None:
        return None
    limits = AdmissionLimits()
    webhooks = AdmissionWebhooks(
        handlers,
        metrics=recorder,
        limits=limits,
        report=is_report_only(settings),
        open_paths=open_paths,
    )
    return HttpServer(
        webhooks.application(),
        name="admission",
        address=settings.listen.admission,
        tls=tls_files(settings, tls.cert, tls.key, tls.client_ca),
        limits=limits,
        observer=recorder,
    )


# --- the parts


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingSources:
    """What the binding webhook is made of; all of it is there already."""

    settings: ControllerSettings
    requirements: RequirementRules
    cluster: Cluster
    scenes: Scenes
    fleet: Callable[[], FleetSnapshot]
    not_ready: Callable[[], str | None]
    audit: AuditLog
    recorder: BindingRecorder
    use_recorder: UseRecorder
    streams: StreamTable
    clock: Clock


@dataclass(frozen=True, slots=True)
class BindingParts:
    """The binding webhook, not yet started."""

    handlers: Mapping[str, AdmissionHandler]
    """By path."""
    early: EarlyReservations
    use: GpuUse
    held_back: AskHeldBack
    """What /filter is to say of a pod as the binding webhook would."""
    denials: RecentDenials
    turns: LostTurns
    reconciler: ReservationReconciler
    recorder: BindingRecorder
    store: LedgerStore
    ids: ReservationIds | None
    releases: ReleaseService
    use_reconciler: UseReconciler | None
    """None in report-only mode: nothing is reserved, so there is nothing to compare with."""
    uncertainty: Callable[[], str | None]
    """What nothing is reserved before."""

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, NoReturn]]:
        """What has to run, each once."""
        use = {} if self.use_reconciler is None else {"gpu use": self.use_reconciler.follow()}
        return {"reservations": self.reconciler.follow(), **use}

    @property
    def reserves(self) -> bool:
        """Whether anything is reserved here: not in report-only mode."""
        return self.use_reconciler is not None

    def to_record(self) -> ToRecord:
        """What kubelet gave as it should and has no record yet, as of now."""
        if self.use_reconciler is None:
            return nothing_to_record
        unexplained = frozenset(
            key_of(x.gpu) for x in self.use_now().faults if x.kind is UseFaultKind.UNRESERVED_USE
        )
        pods = self.use_reconciler.pods
        return partial(allocations_to_record, pods=pods, unexplained=unexplained)

    def use_now(self) -> UseNow:
        """What nodes show of use."""
        return UseNow() if self.use_reconciler is None else self.use_reconciler.now()

    def set_gauges(self, now_ns: int) -> None:
        """Show what is held."""
        self.recorder.show(self.store.snapshot(), len(self.turns), now_ns)


def binding_parts(sources: BindingSources) -> BindingParts:
    """Make the parts and connect them; raises IdKeysError for keys that cannot be used."""
    settings, cluster, store = sources.settings, sources.cluster, sources.cluster.reservations
    boottime_ns = sources.clock.boottime_ns
    keys = settings.admission.id_keys
    ids = None if keys is None else read_ids(settings.cluster, keys)
    reports, denials, turns = UseReports(sources.fleet), RecentDenials(), LostTurns()
    reconciliation = StartupReconciler(
        store=store,
        pods=cluster.pods,
        ids=ids,
        fleet=sources.fleet,
        report=reports.of,
        sink=sources.recorder,
        boottime_ns=boottime_ns,
        draw_call=_draw_call,
        holding=cluster.pods.holding,
        log_replay=LogReplay(settings.audit.dir).grants,
        take_replaced=store.take_replaced,
    )
    reconciler = ReservationReconciler(
        store=store,
        pods=cluster.pods,
        report=reports.of,
        gone=AbsentNodes(cluster.nodes.snapshot, boottime_ns).gone,
        denials=denials,
        turns=turns,
        reconciliation=reconciliation,
        sink=sources.recorder,
        wake=cluster.wake_nodes,
        boottime_ns=boottime_ns,
        followup=_followup(settings),
        is_connected=sources.streams.is_connected,
        ask=sources.streams.ask,
    )
    cluster.follow_pods(_observer(reconciler, reconciliation))
    granting = Granting(
        claims=Claimant(store),
        audit=sources.audit,
        grant_refusal=reconciliation.refusal,
        sink=sources.recorder,
        wake=cluster.wake_nodes,
        draw_call=_draw_call,
    )
    view, use = _view(sources, ids, reconciliation, turns), LedgerUse(store.snapshot).use
    webhook = BindingWebhook(
        pods=cluster.pods,
        view=view,
        granting=granting,
        store=store,
        is_enforced=cluster.namespaces.is_enforced,
        denials=denials,
        sink=sources.recorder,
        boottime_ns=boottime_ns,
    )
    _choose_whom_to_wake(sources, lambda: replace(view(), claiming=granting.gpus), use)
    early = EarlyReservations(
        view=view,
        use=use,
        nodes=lambda: cluster.nodes.snapshot().nodes,
        pods=cluster.pods,
        store=store,
        granting=granting,
        audit=sources.audit,
        sink=sources.recorder,
        ids=ids,
    )
    return BindingParts(
        {
            BINDING_WEBHOOK: webhook.decide,
            BINDING_WEBHOOK + ENFORCED: replace(webhook, marked=True).decide,
        },
        early,
        use,
        _held_back(sources, lambda: replace(view(), claiming=granting.gpus), denials),
        denials,
        turns,
        reconciler,
        sources.recorder,
        store,
        ids,
        _release_service(sources, reports),
        None
        if is_report_only(settings)
        else _use_reconciler(sources, ids, reports, reconciliation),
        lambda: reconciliation.uncertainty,
    )


def _held_back(
    sources: BindingSources, view: Callable[[], BindingView], denials: RecentDenials
) -> AskHeldBack:
    def ask(namespace: str, pod_uid: str, count: int) -> HeldBack | None:
        denied = denials.of_pod(pod_uid, sources.clock.boottime_ns())
        if denied is not None:
            return HeldBack(denied, everywhere=True)
        refusal = held_back(view(), namespace, pod_uid, count)
        return None if refusal is None else HeldBack(refusal)

    return ask


def _choose_whom_to_wake(
    sources: BindingSources, view: Callable[[], BindingView], use: GpuUse
) -> None:
    cluster, room = sources.cluster, NamespaceRoom()

    def choose(where: Room, without: frozenset[str]) -> Chosen:
        return choose_to_wake(cluster.waiting_pods(without), where, view(), use)

    def freed() -> frozenset[str]:
        if sources.settings.reservation.quota_per_namespace is None:
            return frozenset()
        held = cluster.reservations.snapshot().held_in
        return room.freed(held, cluster.waiting_namespaces())

    cluster.wake_by(choose, freed)


def _release_service(sources: BindingSources, reports: UseReports) -> ReleaseService:
    cluster, boottime_ns = sources.cluster, sources.clock.boottime_ns
    return ReleaseService(
        store=sources.cluster.reservations,
        pods=cluster.pods,
        heard=lambda node: reports.heard(node, boottime_ns()),
        not_ready=sources.not_ready,
        audit=sources.audit,
        sink=sources.recorder,
        wake=cluster.wake_nodes,
    )


def _use_reconciler(
    sources: BindingSources,
    ids: ReservationIds | None,
    reports: UseReports,
    reconciliation: StartupReconciler,
) -> UseReconciler:
    cluster, scenes = sources.cluster, sources.scenes

    def fits(pod: BoundPod, gpu: str) -> bool:
        scene = scenes.now()
        node = scene.fleet.nodes.get(pod.node)
        if pod.needs is None or node is None or node.acceptance is None:
            return True
        pool = scene.memory.pool(node.name, node.acceptance)
        return is_required(pod.needs, pool, gpu, scene.policy.labels)

    def may_evict() -> bool:
        return scenes.now().policy.policy.evicts_mismatched and cluster.leadership.leads()

    return UseReconciler(
        store=sources.cluster.reservations,
        pods=cluster.bound_pods,
        ids=ids,
        fleet=lambda: scenes.now().fleet,
        report=reports.of,
        fits=fits,
        is_firm=lambda: reconciliation.is_firm,
        may_evict=may_evict,
        evictor=cluster.evictor,
        wake=cluster.wake_nodes,
        sink=sources.use_recorder,
        boottime_ns=sources.clock.boottime_ns,
        draw_call=_draw_call,
        recall=LogReplay(sources.settings.audit.dir).use,
    )


def _view(
    sources: BindingSources,
    ids: ReservationIds | None,
    reconciliation: StartupReconciler,
    turns: LostTurns,
) -> Callable[[], BindingView]:
    settings = sources.settings
    rules, report = admission_rules(settings, sources.requirements), is_report_only(settings)

    def view() -> BindingView:
        return BindingView(
            scene=sources.scenes.now(),
            ledger=sources.cluster.reservations.snapshot(),
            claiming={},
            ids=ids,
            rules=rules,
            not_ready=sources.not_ready(),
            grant_refusal=reconciliation.refusal,
            turn_refusal=lambda uid: turns.refusal(uid, sources.clock.boottime_ns()),
            quota=settings.reservation.quota_per_namespace,
            report=report,
        )

    return view


def _followup(settings: ControllerSettings) -> Followup:
    reservation = settings.reservation
    limits = AttemptLimits(pending_ns=reservation.max_pending.ns)
    return Followup(limits, reservation.node_gone_grace.ns)


def _observer(
    reconciler: ReservationReconciler, reconciliation: StartupReconciler
) -> Callable[[tuple[Change[KnownPod], ...], int | None], None]:
    def observe(changes: tuple[Change[KnownPod], ...], asked_ns: int | None) -> None:
        if asked_ns is not None:
            reconciliation.pods_listed(asked_ns)
        for change in changes:
            if change.new is not None:
                reconciler.pod_changed(change.new.uid, gone=False)
            elif change.old is not None:
                reconciler.pod_changed(change.old.uid, gone=True)

    return observe


def _draw_call() -> str:
    return secrets.token_hex(8)
