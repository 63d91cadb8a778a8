"""Writes labels of nodes: a node whose labels the API server refuses holds up no other.

Each node that failed is tried again after a pause of its own, which grows to a limit; nodes that
did not fail go first. Used from one event loop.
"""

from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Final

from controller.kube.api.client import ApiClient
from controller.kube.api.resources import NODES, ApiError
from gpuwarden.moment import NS_PER_S
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event, Metric

FIRST_PAUSE_NS: Final = 2 * NS_PER_S
LONGEST_PAUSE_NS: Final = 5 * 60 * NS_PER_S

Labels = Mapping[str, str | None]
"""What to change about a node; None removes a label."""


class NodeLabels:
    """Writes the labels of one kind, few nodes at a time."""

    def __init__(
        self,
        api: ApiClient,
        kind: str,
        most: int,
        *,
        changes: Metric,
        failed: Event,
        boottime_ns: Callable[[], int],
        instruments: Instruments,
    ) -> None:
        """`most`: so many nodes at a time; `changes`: counts them; `failed`: the log event."""
        self._api = api
        self._most = most
        self._failed = failed
        self._boottime_ns = boottime_ns
        self._count = instruments.counter(changes)
        self._refused = instruments.gauge(names.KUBE_UNLABELLED_NODES).labels(kind)
        self._refused.set(0)
        self._log = logger("kube")
        self._pauses: dict[str, tuple[int, int]] = {}
        """Node -> its pause now, and when that ends; of nodes whose last write failed."""
        self._was_unavailable = False

    async def write(self, due: Iterable[tuple[str, Labels]]) -> None:
        """Write what is due now: every node that has to change, with the change."""
        by_node = dict(due)
        self._pauses = {x: pause for x, pause in self._pauses.items() if x in by_node}
        self._refused.set(len(self._pauses))
        now_ns = self._boottime_ns()
        ready = [x for x in by_node if x not in self._pauses]
        ready += [x for x, (_, until_ns) in self._pauses.items() if until_ns <= now_ns]
        for node in ready[: self._most]:
            if not await self._write(node, by_node[node]):
                break
        self._refused.set(len(self._pauses))

    async def _write(self, node: str, labels: Labels) -> bool:
        """False where the API server takes nothing at all now."""
        try:
            await self._api.patch(NODES, node, {"metadata": {"labels": dict(labels)}})
        except ApiError as error:
            if not error.is_not_found:
                return self._note(node, error)
        else:
            self._count.labels("changed").inc()
        self._was_unavailable = False
        self._pauses.pop(node, None)
        return True

    def _note(self, node: str, error: ApiError) -> bool:
        self._count.labels("failed").inc()
        pause_ns, _ = self._pauses.pop(node, (0, 0))
        unavailable = _is_unavailable(error)
        if not (self._was_unavailable if unavailable else pause_ns):
            event = self._failed
            self._log.warning(event, node=node, reason=str(error))
        self._was_unavailable = unavailable
        pause_ns = min(2 * pause_ns or FIRST_PAUSE_NS, LONGEST_PAUSE_NS)
        self._pauses[node] = pause_ns, self._boottime_ns() + pause_ns
        return not unavailable


def _is_unavailable(error: ApiError) -> bool:
    """It may be the API server, and not this node. 500 can also be one node's webhook."""
    return error.status in {0, HTTPStatus.TOO_MANY_REQUESTS} or (
        error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    )
