"""What nodes' accepted evidence says about who uses which GPU, as the ledger asks. Pure.

An acceptance outlives later refusals, and the report in it is as true as it was: only newer
accepted evidence makes a newer report.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from controller.fleet.view import Acceptance, FleetSnapshot, NodeMode
from controller.ledger.pod_use import given_in, users_of
from controller.ledger.release import GivenDevice, UseReport

SETTLES_NS: Final = 60 * 1_000_000_000
"""A kubelet that names no device at all may have just started: it names none until it has read
its own state. So that counts once it has said so for this long."""


@dataclass(frozen=True, slots=True)
class HeardUse:
    """A report whose lease lasts."""

    report: UseReport
    evidence: str
    """Digest of the evidence that it stands in."""


class UseReports:
    """One per process; a report is made once per evidence."""

    def __init__(self, fleet: Callable[[], FleetSnapshot]) -> None:
        self._fleet = fleet
        self._made: dict[str, tuple[Acceptance, UseReport]] = {}
        self._silent_since_ns: dict[str, int] = {}
        """By node: when kubelet was first asked of the reports in a row without a device."""

    def of(self, node: str) -> UseReport | None:
        """The node's last; None where it was never accepted."""
        view = self._fleet().nodes.get(node)
        if view is None or view.acceptance is None:
            self._made.pop(node, None)
            self._silent_since_ns.pop(node, None)
            return None
        found = self._made.get(node)
        if found is None or found[0] is not view.acceptance:
            report = self._report(node, view.acceptance, view.mode)
            found = self._made[node] = (view.acceptance, report)
        return found[1]

    def heard(self, node: str, now_ns: int) -> HeardUse | None:
        """The node's last, while its lease lasts at `now_ns` (CLOCK_BOOTTIME)."""
        report, view = self.of(node), self._fleet().nodes.get(node)
        acceptance = None if view is None else view.acceptance
        if report is None or acceptance is None or now_ns >= acceptance.fresh_until_ns:
            return None
        return HeardUse(report, acceptance.evidence_digest)

    def _report(self, node: str, acceptance: Acceptance, mode: NodeMode) -> UseReport:
        asked_ns = acceptance.challenge_issued_ns
        return UseReport(
            acceptance.boot_id,
            asked_ns,
            users_of(acceptance),
            self._given(node, acceptance, mode),
            None if acceptance.pods_unread else frozenset(acceptance.pods or ()),
        )

    def _given(
        self, node: str, acceptance: Acceptance, mode: NodeMode
    ) -> frozenset[GivenDevice] | None:
        allocations = acceptance.allocations
        if mode is NodeMode.ENV:  # kubelet has no GPUs there to give
            return given_in(acceptance)
        if allocations is None:
            return None
        if allocations:
            self._silent_since_ns.pop(node, None)
            return given_in(acceptance)
        asked_ns = acceptance.challenge_issued_ns
        since_ns = self._silent_since_ns.setdefault(node, asked_ns)
        return frozenset() if asked_ns - since_ns >= SETTLES_NS else None
