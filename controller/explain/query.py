"""Asks about one pod: the API server, the ledger, the fleet, the audit log; puts them together.

One read past every copy, for somebody who asks. Must not decide anything about the pod.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from controller.audit.reading import Recent
from controller.binding.request import PodsUnavailableError
from controller.explain.pod import AllocationTrace, Asked, trace_of
from controller.fleet.view import FleetSnapshot
from controller.ledger.record import ReservationIds
from controller.ledger.store import LedgerSnapshot
from controller.placement.pod import PodDecodeError
from controller.placement.verbs import PodExplanation
from gpuwarden.clock import Clock
from gpuwarden.reasons import ReasonCode, Refusal


class StoredPods(Protocol):
    """The pods of the cluster."""

    async def document(self, namespace: str, name: str) -> bytes | None:
        """The whole pod at its newest; None where there is none. Raises PodsUnavailableError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPorts:
    """What is asked."""

    pods: StoredPods
    explain: Callable[[bytes], PodExplanation]
    """Raises PodDecodeError."""
    fleet: Callable[[], FleetSnapshot]
    ledger: Callable[[], LedgerSnapshot] | None
    """None where nothing is reserved."""
    ids: ReservationIds | None
    recent: Callable[[str], Recent]
    """The last records about a subject; blocks, and raises OSError."""
    clock: Clock


class PodQuery:
    """Used from one event loop."""

    def __init__(self, ports: QueryPorts) -> None:
        self._ports = ports

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
        ports = self._ports
        body = await ports.pods.document(namespace, name)
        asked = Asked(
            namespace=namespace,
            name=name,
            body=body,
            explanation=None if body is None else ports.explain(body),
            ledger=None if ports.ledger is None else ports.ledger(),
            fleet=ports.fleet(),
            ids=ports.ids,
            recent=await asyncio.to_thread(self._recent, f"pod/{namespace}/{name}"),
            now_ns=ports.clock.boottime_ns(),
        )
        return await asyncio.to_thread(trace_of, asked)

    def _recent(self, subject: str) -> Recent:
        try:
            return self._ports.recent(subject)
        except OSError:
            return Recent()  # a log that cannot be read says nothing, and readiness says so
