"""Turns changes of trust into facts about GPUs and hands them to every exporter.

Only accepted evidence comes in: what was refused has no acceptance.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final, NoReturn

from controller.export.delivery import Delivery
from controller.export.records import facts_of
from controller.fleet.trust import ChangeKind, TrustChange
from controller.fleet.view import FleetSnapshot
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.names import Event

FLUSH_SECONDS: Final = 10.0
_ACCEPTED: Final = frozenset(
    {ChangeKind.FIRST_ACCEPTED, ChangeKind.RESTORED, ChangeKind.FACTS_CHANGED}
)


class InventoryExport:
    """All exporters of this controller; one event loop."""

    def __init__(
        self,
        deliveries: Mapping[str, Delivery],
        *,
        fleet: Callable[[], FleetSnapshot],
        provider_id: Callable[[str], str | None],
        source: Callable[[str], str],
    ) -> None:
        """`provider_id`: of a node, where the directory knows one; `source`: its agent's ID."""
        self._deliveries = deliveries
        self._fleet = fleet
        self._provider_id = provider_id
        self._source = source

    def changed(self, changes: Iterable[TrustChange]) -> None:
        """What followed for nodes, the fleet as of now; returns at once."""
        for node in {x.node: None for x in changes if x.kind in _ACCEPTED}:
            acceptance = self._fleet().nodes[node].acceptance
            if acceptance is None:
                continue
            found = facts_of(
                node,
                acceptance,
                source=self._source(node),
                provider_id=self._provider_id(node),
            )
            for facts in found:
                for delivery in self._deliveries.values():
                    delivery.note(facts)

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, NoReturn]]:
        """What has to run, each once."""
        return {f"export {name}": x.follow() for name, x in self._deliveries.items()}

    def warnings(self) -> tuple[str, ...]:
        """Which exporters do not deliver, and why; from memory."""
        found = (x.warning() for x in self._deliveries.values())
        return tuple(x for x in found if x is not None)

    async def flush(self, seconds: float = FLUSH_SECONDS) -> None:
        """Try once more to deliver what waits, for so long at most; the tasks still run."""
        waits = [asyncio.ensure_future(x.flush()) for x in self._deliveries.values()]
        await asyncio.wait(waits, timeout=seconds)
        for wait in waits:
            wait.cancel()
        left = {name: x.waiting for name, x in self._deliveries.items()}
        logger("export").info(Event.EXPORT_FLUSHED, left=left)

    async def close(self) -> None:
        """Let go of the destinations, after the tasks have ended."""
        await asyncio.gather(*(x.close() for x in self._deliveries.values()))
