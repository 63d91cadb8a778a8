"""Makes the parts of a support bundle one after the other; what fails stops no other part.

Gives the event loop back between parts and, in the list of nodes, again and again: a bundle
of a large fleet must not delay a verdict.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

from controller.fleet.view import NodeState
from controller.support import states
from controller.support.node_lines import WITHHELD, node_line
from controller.support.ports import SupportPorts
from gpuwarden.support.disclosed_settings import disclosed_settings
from gpuwarden.support.exposition import metrics_part
from gpuwarden.support.known_words import known_words
from gpuwarden.support.part import MAX_PART_BYTES, Content, Part, json_line, json_part, missing
from gpuwarden.support.versions import versions
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.names import Event

MAX_NODES: Final = 20_000
_NODES: Final = "nodes.jsonl"
_METRICS: Final = "metrics.prom"
_AT_ONCE: Final = 100
"""Nodes between two turns of the event loop."""

_BEFORE_NODES: Final[dict[str, Callable[[SupportPorts], Content]]] = {
    "versions.json": lambda _ports: versions(),
    "settings.json": lambda ports: disclosed_settings(ports.loaded),
    "readiness.json": states.readiness,
    "identity.json": states.identity,
    "fleet.json": states.fleet,
}
_AFTER_NODES: Final[dict[str, Callable[[SupportPorts], Content]]] = {
    "refusals.json": states.refusals,
    "audit.json": states.audit,
    "store.json": states.store,
}


class SupportDesk:
    """One for the process."""

    def __init__(self, ports: SupportPorts) -> None:
        self._ports = ports
        self._log = logger("support")

    async def parts(self) -> AsyncIterator[Part]:
        """All parts, in the order of CONTROLLER_PARTS."""
        for name, source in _BEFORE_NODES.items():
            yield self._json(name, source)
            await asyncio.sleep(0)
        yield await self._nodes()
        for name, source in _AFTER_NODES.items():
            yield self._json(name, source)
            await asyncio.sleep(0)
        try:
            yield metrics_part(_METRICS, self._ports.metrics())
        except Exception as error:  # noqa: BLE001 -- as in `_json`
            yield self._failed(_METRICS, error)

    def _json(self, name: str, source: Callable[[SupportPorts], Content]) -> Part:
        try:
            return json_part(name, source(self._ports))
        except Exception as error:  # noqa: BLE001 -- a sick process has a bundle too; what fails is named
            return self._failed(name, error)

    async def _nodes(self) -> Part:
        """Those first that are not eligible, so that they stay when there is no room for all."""
        try:
            return await self._node_lines()
        except Exception as error:  # noqa: BLE001 -- as in `_json`
            return self._failed(_NODES, error)

    async def _node_lines(self) -> Part:
        now_ns = self._ports.conditions.clock.boottime_ns()
        nodes, streams = self._ports.fleet().nodes, self._ports.streams.counts()
        order = sorted(
            (node.state(now_ns) is NodeState.ELIGIBLE, name) for name, node in nodes.items()
        )
        lines, written = bytearray(), 0
        for _, name in order[:MAX_NODES]:
            line = json_line(node_line(nodes[name], now_ns, streams.get(name, 0)))
            if len(lines) + len(line) > MAX_PART_BYTES:
                break
            lines += line
            written += 1
            if written % _AT_ONCE == 0:
                await asyncio.sleep(0)
        return Part(_NODES, bytes(lines), withheld=WITHHELD, left_out=len(order) - written)

    def _failed(self, name: str, error: Exception) -> Part:
        self._log.error(Event.SUPPORT_PART_FAILED, part=name, exc_info=error)
        words = " ".join([type(error).__name__, *known_words(str(error))])
        return missing(name, f"{words}; the controller's log has more")
