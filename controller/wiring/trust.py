"""What trusts a node and what ends the trust: evidence, quarantine, operators, SPIRE, revocation.

Constructs and connects only. No step of the verification and no right of an operator is decided
here.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from controller.access import PeerUsage, Rate
from controller.binding.asked_rounds import LEAST_NS
from controller.fleet.directory import NodeDirectory
from controller.fleet.quarantine import QuarantineEntries
from controller.fleet.registry import FleetRegistry
from controller.operations.log_replay import LogReplay
from controller.operations.operator_service import OperatorService
from controller.operations.quarantine_reconciler import QuarantineReconciler
from controller.operations.readiness import ClockAnchor, Conditions
from controller.recorders.trust import SpireRecorder, TrustRecorder
from controller.rpc.attestation import AttestationService, StreamTable
from controller.rpc.challenges import AuditHeads, Challenger
from controller.rpc.intake import EvidenceIntake
from controller.settings import ControllerSettings, Enrollment
from controller.spire.client import connected
from controller.spire.facts import LiveSpireFacts, SpireCondition, no_spire_server
from controller.spire.poller import Revocation, SpirePoller
from controller.spire.verification import SpireLimits
from controller.verifier.context import Limits, NoSpire, SpireFacts, VerifierSettings
from controller.verifier.verifier import Verifier
from controller.wiring.binding import BindingParts
from gpuwarden.clock import Clock
from gpuwarden.identity.spiffe_id import controller_id
from gpuwarden.identity.svid import SvidSource
from gpuwarden.moment import NS_PER_MS, NS_PER_S, Moment
from gpuwarden.telemetry.metrics import Instruments

_MINUTE: Final = 60.0
_SPARE_MESSAGES: Final = 4.0
"""Messages a second that a peer may send beyond what its challenges ask for."""


def verifier_settings(settings: ControllerSettings) -> VerifierSettings:
    """The settings that the verifier decides by."""
    times = settings.attestation
    return VerifierSettings(
        trust_domain=settings.trust_domain,
        cluster=settings.cluster,
        path_prefix=settings.path_prefix,
        enrollment_required=times.enrollment is Enrollment.REQUIRED,
        evaluation=settings.evaluation.enabled,
        interval_ns=times.interval.ns,
        lease_ns=times.lease.ns,
        challenge_ttl_ns=times.challenge_ttl.ns,
        skew_warn_ms=settings.clock.warn.ns // NS_PER_MS,
        skew_refuse_ms=settings.clock.refuse.ns // NS_PER_MS,
        limits=Limits(
            streams=settings.limits.streams,
            streams_per_peer=settings.limits.streams_per_peer,
            message_bytes=settings.limits.message_bytes,
        ),
    )


def evidence_intake(
    verifier: Verifier,
    conditions: Conditions,
    denials: QuarantineEntries,
    registry: FleetRegistry,
    recorder: TrustRecorder,
) -> EvidenceIntake:
    """Takes the verifier's results to the registry, the store and the log."""
    return EvidenceIntake(
        verifier=verifier,
        store=conditions.store,
        denials=denials,
        registry=registry,
        audit=conditions.audit,
        known=conditions.known,
        now=conditions.now,
        observer=recorder,
    )


def attestation_service(
    settings: ControllerSettings,
    conditions: Conditions,
    verifier: Verifier,
    intake: EvidenceIntake,
    *,
    recorder: TrustRecorder,
    table: StreamTable,
    binding: BindingParts | None,
) -> AttestationService:
    """The agents' streams; agents report their pods while GPUs of the node are released."""
    return AttestationService(
        verifier=verifier,
        intake=intake,
        challenger=Challenger(
            verifier.settings,
            conditions.svids,
            AuditHeads(conditions.audit, settings.origin),
            wants_pods=_no_pods if binding is None else binding.reconciler.releases_on,
        ),
        usage=_peer_usage(settings),
        table=table,
        known=conditions.known,
        now=conditions.now,
        jitter=random.SystemRandom().random,
        observer=recorder,
        heard=_nobody_waits if binding is None else binding.reconciler.heard,
    )


def operator_service(
    conditions: Conditions,
    denials: QuarantineEntries,
    registry: FleetRegistry,
    recorder: TrustRecorder,
) -> OperatorService:
    """Carries out what operators order."""
    return OperatorService(
        conditions.store,
        denials,
        registry,
        knows=conditions.knows,
        audit=conditions.audit,
        clock=conditions.clock,
        observer=recorder,
    )


def quarantine_reconciler(
    settings: ControllerSettings,
    conditions: Conditions,
    denials: QuarantineEntries,
    registry: FleetRegistry,
    *,
    recorder: TrustRecorder,
    instruments: Instruments,
) -> QuarantineReconciler:
    """Carries out quarantine entries: those of every replica, and older ones in this audit log."""
    return QuarantineReconciler(
        conditions.store,
        denials,
        registry,
        clock=conditions.clock,
        observer=recorder,
        instruments=instruments,
        log_replay=LogReplay(settings.audit.dir).denials,
    )


def revocation(
    settings: ControllerSettings,
    conditions: Conditions,
    spire: SpireFacts,
    directory: NodeDirectory,
    *,
    registry: FleetRegistry,
    intake: EvidenceIntake,
    table: StreamTable,
) -> Revocation:
    """Ends the trust in nodes whose agents the SPIRE server no longer confirms."""
    return Revocation(
        trust_domain=settings.trust_domain,
        path_prefix=settings.path_prefix,
        spire=spire,
        fleet=registry.snapshot,
        directory=directory,
        policy=conditions.policy,
        boottime_ns=conditions.clock.boottime_ns,
        refuse=intake.refuse,
        end_streams=table.end_node,
    )


def _no_pods(_node: str) -> bool:
    """Without a ledger nothing is released."""
    return False


def _nobody_waits(_node: str) -> None:
    """Without a ledger no release waits for a report."""


def _peer_usage(settings: ControllerSettings) -> PeerUsage:
    asked = NS_PER_S / LEAST_NS
    per_second = 2 / settings.attestation.interval.seconds + asked + _SPARE_MESSAGES
    return PeerUsage(
        openings=Rate(settings.limits.rate / _MINUTE, settings.limits.rate),
        messages=Rate(per_second, int(5 * per_second)),
    )


# --- SPIRE


@dataclass(frozen=True, slots=True)
class SpireConfirmation:
    """What confirms nodes at level L1; without a SPIRE server it reports only that."""

    facts: SpireFacts
    condition: Callable[[int], SpireCondition]
    poller: SpirePoller | None


def spire_confirmation(
    settings: ControllerSettings,
    svids: SvidSource,
    clock: Clock,
    anchor: ClockAnchor,
    recorder: SpireRecorder,
) -> SpireConfirmation:
    """What confirms nodes at level L1, not yet started."""
    spire = settings.spire
    if spire.server is None:
        return SpireConfirmation(NoSpire(), no_spire_server, None)
    limits = SpireLimits(settings.trust_domain, spire.grace.ns, spire.poll.ns * 3 // 2)
    own = controller_id(settings.trust_domain, settings.path_prefix)
    poller = SpirePoller(
        partial(connected, address=spire.server),
        svids=svids,
        moment=partial(believed_moment, clock, anchor),
        jitter=random.SystemRandom().random,
        observer=recorder,
        beginning=f"spiffe://{settings.trust_domain}{settings.path_prefix}/",
        poll_s=spire.poll.seconds,
    )
    facts = LiveSpireFacts(poller, limits, str(own))
    return SpireConfirmation(facts, facts.condition, poller)


def believed_moment(clock: Clock, anchor: ClockAnchor) -> Moment:
    """Both clocks, the wall clock no later than the time since the start allows.

    A wall clock that jumps ahead would make every SPIRE agent look expired, and that revokes.
    """
    boottime_ns, wall_ns = clock.boottime_ns(), clock.wall_ns()
    ahead_ns = max(0, anchor.offset_ns(boottime_ns, wall_ns))
    return Moment(boottime_ns, wall_ns - ahead_ns)
