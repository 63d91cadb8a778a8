"""Asks the API server, the ledger, the fleet and the audit log about one pod.

One read past every cache, for a person who asks. Must not decide anything about the pod.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from controller.binding.request import BoundPod, PodsUnavailableError
from controller.explain.pod import AllocationTrace, Asked, trace_of
from controller.fleet.view import FleetSnapshot
from controller.ledger.reservation_id import ReservationIds
from controller.ledger.store import LedgerSnapshot
from controller.placement.explanation import FitReport, PodExplanation
from controller.placement.pod import PodDecodeError
from gpuwarden.audit.reading import Recent
from gpuwarden.clock import Clock
from gpuwarden.reasons import ReasonCode, Refusal

_NOTHING: Final = FitReport((), {}, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodQuery:
    """Asks about one pod at a time; used from one event loop."""

    document: Callable[[str, str], Awaitable[bytes | None]]
    """The whole pod of that namespace and name at its newest; None where there is none. Raises
    PodsUnavailableError."""
    explain: Callable[[bytes], PodExplanation]
    """Raises PodDecodeError."""
    fleet: Callable[[], FleetSnapshot]
    ledger: Callable[[], LedgerSnapshot] | None
    """None where nothing is reserved."""
    ids: ReservationIds | None
    recent: Callable[[str], Recent]
    """The last records about a subject; blocks, and raises OSError."""
    clock: Clock
    pod_of: Callable[[str], BoundPod | None] = lambda _uid: None
    """The bound pod of a UID, of a static pod also by that of its node."""
    report_only: bool = False
    judging: Callable[[bytes], Callable[[], FitReport]] = lambda _pod: lambda: _NOTHING
    """What every node is to a pod; raises PodDecodeError.

    It takes snapshots on the event loop; what it returns judges by them, on a thread.
    """

    async def verdicts(self, namespace: str, name: str) -> FitReport | Refusal:
        """What every node is to a pod that exists; POD_UNKNOWN where it cannot be read."""
        try:
            body = await self.document(namespace, name)
            if body is not None:
                return await asyncio.to_thread(self.judging(body))
        except (PodsUnavailableError, PodDecodeError) as error:
            return Refusal(ReasonCode.POD_UNKNOWN, str(error))
        return Refusal(ReasonCode.POD_UNKNOWN, f"no pod {namespace}/{name}")

    async def about(self, namespace: str, name: str) -> AllocationTrace | Refusal:
        """What is known of a pod; POD_UNKNOWN where that is nothing, or cannot be read."""
        try:
            account = await self._account(namespace, name)
        except (PodsUnavailableError, PodDecodeError) as error:
            return Refusal(ReasonCode.POD_UNKNOWN, str(error))
        if account is None:
            text = f"no pod {namespace}/{name}; neither ledger nor audit log know one of that name"
            return Refusal(ReasonCode.POD_UNKNOWN, text)
        return account

    async def _account(self, namespace: str, name: str) -> AllocationTrace | None:
        body = await self.document(namespace, name)
        asked = Asked(
            namespace=namespace,
            name=name,
            body=body,
            explanation=None if body is None else self.explain(body),
            ledger=None if self.ledger is None else self.ledger(),
            fleet=self.fleet(),
            ids=self.ids,
            recent=await asyncio.to_thread(self._recent, f"pod/{namespace}/{name}"),
            now_ns=self.clock.boottime_ns(),
            pod_of=self.pod_of,
            report_only=self.report_only,
        )
        return await asyncio.to_thread(trace_of, asked)

    def _recent(self, subject: str) -> Recent:
        try:
            return self.recent(subject)
        except OSError:
            return Recent()  # a log that cannot be read says nothing, and readiness says so
