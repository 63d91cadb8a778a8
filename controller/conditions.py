"""What the parts of a controller ask about the moment: snapshots, time, readiness.

Collects from sources that answer from memory, at each question anew. Must not decide;
`readiness` and the Verifier do.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol

from controller.audit.durable_log import DurableLog
from controller.clock_guard import ClockAnchor
from controller.fleet.directory import NodeDirectory
from controller.fleet.enrollment import EnrollmentStore
from controller.policy import Policy
from controller.policy_in_force import PolicyInForce
from controller.readiness import Readiness, ReadinessFacts, first_round, readiness
from controller.settings import AttestationSettings
from controller.spire.condition import NO_SPIRE_SERVER, SpireConditions
from controller.verifier.context import Now, Snapshots
from gpuwarden.clock import Clock
from gpuwarden.identity.svid import SvidSource

_NS: Final = 1e9


class NamespaceCopy(Protocol):
    """The cluster's namespaces, as far as their age goes."""

    def fresh_until_ns(self) -> int:
        """CLOCK_BOOTTIME from which they are too old."""


@dataclass(slots=True)
class ProcessState:
    """What changes over the life of the process, beside the fleet."""

    anchor: ClockAnchor
    listening_since_ns: int | None = None
    draining: bool = False
    clock_suspect: bool = False
    ledger_uncertainty: Callable[[], str | None] = lambda: None
    """What nothing is reserved before; without a gate nothing is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """One for the process."""

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
    namespaces: NamespaceCopy | None = None
    """Where namespaces say which pods are guarded; None without a cluster."""
    spire: SpireConditions = NO_SPIRE_SERVER

    def now(self) -> Now:
        """This moment on both clocks."""
        wall = datetime.fromtimestamp(self.clock.wall_ns() / _NS, UTC)
        return Now(self.clock.boottime_ns(), wall)

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
        """Why nothing may be decided about guarded pods yet."""
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
        pins, nodes = self.store.snapshot(), self.directory.snapshot()
        spire = self.spire.condition(now_ns)
        return readiness(
            ReadinessFacts(
                first_round=self.not_ready(),
                svid_valid=self.svids.current() is not None,
                svid_state=self.svids.state(),
                audit_error=None if audit.available else audit.reason,
                stores_error=_stale("pins and denials", pins.fresh_until_ns, now_ns),
                directory_error=_stale("the list of nodes", nodes.fresh_until_ns, now_ns)
                or self._namespaces_error(now_ns),
                clock_suspect=self.state.clock_suspect,
                draining=self.state.draining,
                insecure=self.insecure,
                ledger_uncertainty=self.state.ledger_uncertainty(),
                spire_error=spire.error,
                spire_warnings=spire.warnings,
            )
        )

    def _namespaces_error(self, now_ns: int) -> str | None:
        if self.namespaces is None:
            return None
        return _stale("the list of namespaces", self.namespaces.fresh_until_ns(), now_ns)


def _stale(what: str, fresh_until_ns: int, now_ns: int) -> str | None:
    return f"{what} are too old to rely on" if now_ns >= fresh_until_ns else None
