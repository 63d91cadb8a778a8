"""Puts the gate of a controller together, and what follows its answers. Starts nothing."""

import secrets
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from controller.admission.assembly import admission_rules, is_report_only
from controller.admission.pods import ENFORCED
from controller.admission.review import AdmissionHandler
from controller.audit.log import AuditLog
from controller.binding.absent_nodes import AbsentNodes
from controller.binding.bound_pod import BoundPod
from controller.binding.early import EarlyDesk, EarlyPorts
from controller.binding.follower import FollowerPorts, ReservationFollower
from controller.binding.followup import Followup
from controller.binding.footing_keeper import FootingKeeper, FootingPorts
from controller.binding.gate import GATE, BindingGate, GatePorts
from controller.binding.granting import Granting, GrantPorts
from controller.binding.id_keys import read_ids
from controller.binding.ledger_choice import ChosenLedger
from controller.binding.ledger_use import LedgerUse
from controller.binding.recent_denials import RecentDenials
from controller.binding.release_desk import ReleaseDesk, ReleasePorts
from controller.binding.use_keeper import UseKeeper, UsePorts
from controller.binding.use_reports import UseReports
from controller.binding.view import GateView
from controller.binding_journal import BindingJournal
from controller.fleet.view import FleetSnapshot
from controller.kube.cluster import Cluster
from controller.kube.objects import KnownPod
from controller.kube.reflection import Change
from controller.ledger.attempt import AttemptLimits
from controller.ledger.claimant import Claimant
from controller.ledger.reservation_id import ReservationIds
from controller.recovery.recall import LogRecall
from controller.scheduling.given_device import is_wished_for
from controller.scheduling.scenes import Scenes
from controller.scheduling.wish_keys import WishRules
from controller.settings import ControllerSettings
from controller.use_journal import UseJournal
from gpuwarden.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingSources:
    """What the gate is made of; all of it is there already."""

    settings: ControllerSettings
    wishes: WishRules
    cluster: Cluster
    ledger: ChosenLedger
    scenes: Scenes
    fleet: Callable[[], FleetSnapshot]
    not_ready: Callable[[], str | None]
    audit: AuditLog
    journal: BindingJournal
    use_journal: UseJournal
    clock: Clock


@dataclass(frozen=True, slots=True)
class BindingParts:
    """The gate, not yet started."""

    handlers: Mapping[str, AdmissionHandler]
    """By path."""
    early: EarlyDesk
    use: LedgerUse
    denials: RecentDenials
    follower: ReservationFollower
    journal: BindingJournal
    ledger: ChosenLedger
    ids: ReservationIds | None
    releases: ReleaseDesk
    use_keeper: UseKeeper | None
    """None in report-only mode: nothing is reserved, so there is nothing to compare with."""
    uncertainty: Callable[[], str | None]
    """What nothing is reserved before."""

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, NoReturn]]:
        """What has to run, each once."""
        use = {} if self.use_keeper is None else {"gpu use": self.use_keeper.follow()}
        return {"reservations": self.follower.follow(), **use}

    def set_gauges(self) -> None:
        """Show what is held."""
        self.journal.show(self.ledger.store.snapshot())


def binding_parts(sources: BindingSources) -> BindingParts:
    """Make the parts and connect them; raises IdKeysError for keys that cannot be used."""
    settings, cluster, store = sources.settings, sources.cluster, sources.ledger.store
    boottime_ns = sources.clock.boottime_ns
    keys = settings.admission.id_keys
    ids = None if keys is None else read_ids(settings.cluster, keys)
    reports, denials = UseReports(sources.fleet), RecentDenials()
    footing = FootingKeeper(
        FootingPorts(
            store=store,
            pods=cluster.pods,
            ids=ids,
            fleet=sources.fleet,
            report=reports.of,
            sink=sources.journal,
            boottime_ns=boottime_ns,
            draw_call=_draw_call,
            holding=cluster.pods.holding,
            recall=LogRecall(settings.audit.dir).grants,
            take_replaced=sources.ledger.take_replaced,
        )
    )
    follower = ReservationFollower(
        FollowerPorts(
            store=store,
            pods=cluster.pods,
            report=reports.of,
            gone=AbsentNodes(cluster.nodes.snapshot, boottime_ns).gone,
            denials=denials,
            footing=footing,
            sink=sources.journal,
            wake=cluster.wake_nodes,
            boottime_ns=boottime_ns,
        ),
        _followup(settings),
    )
    cluster.follow_pods(_observer(follower, footing))
    granting = Granting(
        GrantPorts(
            claims=Claimant(store),
            audit=sources.audit,
            grant_refusal=footing.refusal,
            sink=sources.journal,
            wake=cluster.wake_nodes,
            draw_call=_draw_call,
        )
    )
    view, use = _view(sources, ids, footing), LedgerUse(store.snapshot)
    ports = GatePorts(
        pods=cluster.pods,
        view=view,
        granting=granting,
        records=store,
        is_enforced=cluster.namespaces.is_enforced,
        denials=denials,
        sink=sources.journal,
        boottime_ns=boottime_ns,
    )
    early = EarlyPorts(
        view=view,
        use=use,
        nodes=lambda: cluster.nodes.snapshot().nodes,
        pods=cluster.pods,
        store=store,
        granting=granting,
        audit=sources.audit,
        sink=sources.journal,
    )
    return BindingParts(
        {GATE: BindingGate(ports), GATE + ENFORCED: BindingGate(ports, marked=True)},
        EarlyDesk(early, ids),
        use,
        denials,
        follower,
        sources.journal,
        sources.ledger,
        ids,
        _release_desk(sources, reports),
        None if is_report_only(settings) else _use_keeper(sources, ids, reports, footing),
        lambda: footing.uncertainty,
    )


def _release_desk(sources: BindingSources, reports: UseReports) -> ReleaseDesk:
    cluster, boottime_ns = sources.cluster, sources.clock.boottime_ns
    return ReleaseDesk(
        ReleasePorts(
            store=sources.ledger.store,
            pods=cluster.pods,
            heard=lambda node: reports.heard(node, boottime_ns()),
            not_ready=sources.not_ready,
            audit=sources.audit,
            sink=sources.journal,
            wake=cluster.wake_nodes,
        )
    )


def _use_keeper(
    sources: BindingSources,
    ids: ReservationIds | None,
    reports: UseReports,
    footing: FootingKeeper,
) -> UseKeeper:
    cluster, scenes = sources.cluster, sources.scenes

    def fits(pod: BoundPod, gpu: str) -> bool:
        scene = scenes.now()
        node = scene.fleet.nodes.get(pod.node)
        if pod.needs is None or node is None or node.acceptance is None:
            return True
        pool = scene.memory.pool(node.name, node.acceptance)
        return is_wished_for(pod.needs, pool, gpu, scene.policy.labels)

    def may_evict() -> bool:
        return scenes.now().policy.policy.evicts_mismatched and cluster.leadership.leads()

    return UseKeeper(
        UsePorts(
            store=sources.ledger.store,
            pods=cluster.bound_pods,
            ids=ids,
            fleet=sources.fleet,
            report=reports.of,
            fits=fits,
            is_firm=lambda: footing.is_firm,
            may_evict=may_evict,
            evictor=cluster.evictor,
            wake=cluster.wake_nodes,
            sink=sources.use_journal,
            boottime_ns=sources.clock.boottime_ns,
            draw_call=_draw_call,
        )
    )


def _view(
    sources: BindingSources, ids: ReservationIds | None, footing: FootingKeeper
) -> Callable[[], GateView]:
    settings = sources.settings
    rules, report = admission_rules(settings, sources.wishes), is_report_only(settings)

    def view() -> GateView:
        return GateView(
            scene=sources.scenes.now(),
            ledger=sources.ledger.store.snapshot(),
            claiming={},
            ids=ids,
            rules=rules,
            not_ready=sources.not_ready(),
            grant_refusal=footing.refusal,
            quota=settings.reservation.quota_per_namespace,
            report=report,
        )

    return view


def _followup(settings: ControllerSettings) -> Followup:
    reservation = settings.reservation
    limits = AttemptLimits(pending_ns=reservation.max_pending.ns)
    return Followup(limits, reservation.node_gone_grace.ns)


def _observer(
    follower: ReservationFollower, footing: FootingKeeper
) -> Callable[[tuple[Change[KnownPod], ...], int | None], None]:
    def observe(changes: tuple[Change[KnownPod], ...], asked_ns: int | None) -> None:
        if asked_ns is not None:
            footing.pods_listed(asked_ns)
        for change in changes:
            if change.new is not None:
                follower.pod_changed(change.new.uid, gone=False)
            elif change.old is not None:
                follower.pod_changed(change.old.uid, gone=True)

    return observe


def _draw_call() -> str:
    return secrets.token_hex(8)
