"""Readiness: whether this controller may decide, why not, and the moment's snapshots behind that.

Answers come from memory, collected at each question again. Warnings never make it unready.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from controller.audit.log import DurableLog
from controller.fleet.directory import NodeDirectory
from controller.fleet.enrollment import EnrollmentStore
from controller.policies.in_force import PolicyInForce
from controller.policy import Policy
from controller.settings import AttestationSettings
from controller.spire.facts import SpireCondition, no_spire_server
from controller.verifier.context import Snapshots
from gpuwarden.clock import Clock, moment_of
from gpuwarden.identity.svid import SvidSource
from gpuwarden.moment import NS_PER_MS, Moment

_WINDOW_FACTOR = Fraction(11, 10)


@dataclass(frozen=True, slots=True)
class ReadinessFacts:
    """What readiness is decided on; collected at each question."""

    first_round: str | None
    """As `first_round` says."""
    svid_valid: bool
    svid_state: str
    audit_error: str | None
    stores_error: str | None
    directory_error: str | None
    clock_suspect: bool
    draining: bool
    insecure: tuple[str, ...] = ()
    """Warnings about insecure stand-ins in use."""
    ledger_uncertainty: str | None = None
    """What nothing is reserved before; pods without such a requirement are placed meanwhile."""
    spire_error: str | None = None
    spire_warnings: tuple[str, ...] = ()
    listener_warnings: tuple[str, ...] = ()
    """Clients that are refused, certificates that end."""
    cluster_warnings: tuple[str, ...] = ()
    """Watches of the Kubernetes API that are down."""
    certificates_error: str | None = None
    """What listeners wait for before they open."""
    certificate_warnings: tuple[str, ...] = ()
    """Managed certificates that cannot be read, written or renewed."""
    export_warnings: tuple[str, ...] = ()
    """Exporters that do not reach their destinations."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """`reasons` empty = ready. Both are lines for people, in a fixed order."""

    reasons: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def ready(self) -> bool:
        """Whether no reason is against it."""
        return not self.reasons


def window_ns(interval_ns: int, challenge_ttl_ns: int) -> int:
    """Time after listening in which every live agent has been heard once."""
    return int(interval_ns * _WINDOW_FACTOR) + challenge_ttl_ns


def first_round(
    listening_since_ns: int | None, interval_ns: int, challenge_ttl_ns: int, now_ns: int
) -> str | None:
    """Why nothing may be decided about managed pods yet; None once every agent had its turn.

    After a start no node has evidence yet, so for 1.1 x interval + ttl after listening a missing
    node means "not heard yet", not "untrusted": until then managed pods get CONTROLLER_NOT_READY.

    All times are CLOCK_BOOTTIME; `listening_since_ns` is None before the agents' listener opens.
    """
    if listening_since_ns is None:
        return "first round: not listening for agents yet"
    end_ns = listening_since_ns + window_ns(interval_ns, challenge_ttl_ns)
    if now_ns >= end_ns:
        return None
    return f"first round: {-(-(end_ns - now_ns) // NS_PER_MS)} ms left to hear from every agent"


def readiness(facts: ReadinessFacts) -> Readiness:
    """Decide."""
    reasons = (
        "draining: the process is about to end" if facts.draining else None,
        facts.first_round,
        None if facts.svid_valid else f"svid: {facts.svid_state}",
        f"audit: {facts.audit_error}" if facts.audit_error else None,
        f"stores: {facts.stores_error}" if facts.stores_error else None,
        f"directory: {facts.directory_error}" if facts.directory_error else None,
        f"spire: {facts.spire_error}" if facts.spire_error else None,
        f"certificates: {facts.certificates_error}" if facts.certificates_error else None,
    )
    warnings = [*facts.insecure, *facts.spire_warnings]
    if facts.clock_suspect:
        warnings.append("CONTROLLER_CLOCK_SUSPECT: wall clock moved against the boot-time clock")
    if facts.ledger_uncertainty is not None:
        warnings.append(f"ledger: {facts.ledger_uncertainty}")
    warnings.extend(facts.listener_warnings)
    warnings.extend(facts.cluster_warnings)
    warnings.extend(facts.certificate_warnings)
    warnings.extend(facts.export_warnings)
    return Readiness(tuple(text for text in reasons if text is not None), tuple(warnings))


@dataclass(frozen=True, slots=True)
class ListenerState:
    """What a listener with certificates from files shows its clients, and demands of them."""

    name: str
    certificates: str
    """PEM of the chain that it serves now."""
    demands_certificate: bool
    client_ends: datetime | None
    """When the first certificate ends that clients have shown lately; None: none was shown."""


_DRIFT = 1000
"""A clock that is being disciplined may drift by one part in this many."""


@dataclass(frozen=True, slots=True)
class ClockAnchor:
    """Both clocks at one moment, and the step that is still believed (nanoseconds).

    Certificates are verified by wall time. A wall clock that has moved against CLOCK_BOOTTIME since
    the start is suspect (CONTROLLER_CLOCK_SUSPECT): a warning, never a reason to revoke anybody.
    """

    boottime_ns: int
    wall_ns: int
    tolerance_ns: int

    def offset_ns(self, boottime_ns: int, wall_ns: int) -> int:
        """How far the wall clock has moved against boot time since the anchor."""
        return (wall_ns - self.wall_ns) - (boottime_ns - self.boottime_ns)

    def suspect(self, boottime_ns: int, wall_ns: int) -> bool:
        """Whether that is more than tolerance and drift explain."""
        drift_ns = (boottime_ns - self.boottime_ns) // _DRIFT
        return abs(self.offset_ns(boottime_ns, wall_ns)) > self.tolerance_ns + drift_ns


@dataclass(slots=True)
class ProcessState:
    """What changes over the life of the process, beside the fleet."""

    anchor: ClockAnchor
    listening_since_ns: int | None = None
    draining: bool = False
    clock_suspect: bool = False
    ledger_uncertainty: Callable[[], str | None] = lambda: None
    """What nothing is reserved before; without a binding webhook nothing is."""
    listener_warnings: Callable[[], tuple[str, ...]] = lambda: ()
    """What somebody should know of the listeners."""
    listeners: Callable[[], tuple[ListenerState, ...]] = lambda: ()
    """Those over HTTPS."""
    certificates_error: Callable[[], str | None] = lambda: None
    """What listeners wait for before they open."""
    certificate_warnings: Callable[[], tuple[str, ...]] = lambda: ()
    """What somebody should know of managed certificates."""
    export_warnings: Callable[[], tuple[str, ...]] = lambda: ()
    """Which exporters do not deliver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What the parts of a controller ask about the moment: snapshots, time, readiness."""

    times: AttestationSettings
    clock: Clock
    svids: SvidSource
    directory: NodeDirectory
    store: EnrollmentStore
    audit: DurableLog
    policy_in_force: PolicyInForce
    state: ProcessState
    insecure: tuple[str, ...]
    """Warnings about stand-ins that are in use."""
    namespaces_fresh_until_ns: Callable[[], int] | None = None
    """CLOCK_BOOTTIME from which the list of namespaces is too old; None without a cluster."""
    cluster_warnings: Callable[[], tuple[str, ...]] = lambda: ()
    """What somebody should know of the watches of the Kubernetes API."""
    spire: Callable[[int], SpireCondition] = no_spire_server
    """How the SPIRE server answers at a CLOCK_BOOTTIME."""

    def now(self) -> Moment:
        """This moment on both clocks."""
        return moment_of(self.clock)

    def policy(self) -> Policy:
        """The policy in force."""
        return self.policy_in_force.current

    def knows(self, node: str) -> bool:
        """Whether the cluster has a node of this name."""
        return node in self.directory.snapshot().nodes

    def known(self) -> Snapshots:
        """What the Verifier decides by.

        Without an SVID, and before a policy is known, there are no roots, so nobody passes.
        """
        svid = self.svids.current() if self.policy_in_force.unknown is None else None
        return Snapshots(
            roots=svid.roots if svid else (),
            directory=self.directory.snapshot(),
            enrollment=self.store.snapshot(),
            policy=self.policy(),
        )

    def not_ready(self) -> str | None:
        """Why nothing may be decided about managed pods yet."""
        if (unknown := self.policy_in_force.unknown) is not None:
            return f"policy: {unknown}"
        return first_round(
            self.state.listening_since_ns,
            self.times.interval.ns,
            self.times.challenge_ttl.ns,
            self.clock.boottime_ns(),
        )

    def readiness(self) -> Readiness:
        """Whether this controller is ready, and why not."""
        now_ns = self.clock.boottime_ns()
        audit = self.audit.condition
        enrollments, nodes = self.store.snapshot(), self.directory.snapshot()
        spire = self.spire(now_ns)
        return readiness(
            ReadinessFacts(
                first_round=self.not_ready(),
                svid_valid=self.svids.current() is not None,
                svid_state=self.svids.state(),
                audit_error=None if audit.available else audit.reason,
                stores_error=_stale("the enrollments", enrollments.fresh_until_ns, now_ns),
                directory_error=_stale("the list of nodes", nodes.fresh_until_ns, now_ns)
                or self._namespaces_error(now_ns),
                clock_suspect=self.state.clock_suspect,
                draining=self.state.draining,
                insecure=self.insecure,
                ledger_uncertainty=self.state.ledger_uncertainty(),
                spire_error=spire.error,
                spire_warnings=spire.warnings,
                listener_warnings=self.state.listener_warnings(),
                cluster_warnings=self.cluster_warnings(),
                certificates_error=self.state.certificates_error(),
                certificate_warnings=self.state.certificate_warnings(),
                export_warnings=self.state.export_warnings(),
            )
        )

    def _namespaces_error(self, now_ns: int) -> str | None:
        if self.namespaces_fresh_until_ns is None:
            return None
        return _stale("the list of namespaces", self.namespaces_fresh_until_ns(), now_ns)


def _stale(what: str, fresh_until_ns: int, now_ns: int) -> str | None:
    return f"{what} are too old to rely on" if now_ns >= fresh_until_ns else None
