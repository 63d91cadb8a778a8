"""What a controller puts into a support bundle: its state in parts, each made from memory.

Each part lists what leaves. Texts that others wrote (details, reasons, errors) do not leave; the
known words in them do. A part that fails is reported as missing and stops no other part. The event
loop gets its turn between parts and within the list of nodes, so that a bundle of a large fleet
delays no decision.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from controller.audit.log import DurableLog
from controller.explain.node import WITHHELD, RecentRefusals, node_line
from controller.fleet.enrollment import QuarantineEntry
from controller.fleet.view import FleetSnapshot, NodeState
from controller.operations.readiness import Conditions
from controller.recorders.gauges import count_fleet
from controller.recorders.trust import WitnessAlarms
from controller.rpc.attestation import StreamTable
from gpuwarden.moment import NS_PER_S, rfc3339
from gpuwarden.reasons import ReasonCode
from gpuwarden.settings.loader import Loaded
from gpuwarden.support.disclosure import (
    disclosed_reasons,
    disclosed_settings,
    known_words,
    metrics_part,
)
from gpuwarden.support.local import versions
from gpuwarden.support.part import MAX_PART_BYTES, Content, Part, json_line, json_part, missing
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.names import Event

MAX_NAMES: Final = 2000
"""Nodes in a part that lists some of them."""
MAX_NODES: Final = 20_000
"""Lines in `nodes.jsonl`."""
_NODES: Final = "nodes.jsonl"
_METRICS: Final = "metrics.prom"
_NODES_PER_TURN: Final = 100
"""Nodes between two turns of the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerState:
    """The state of this process; `parts` puts it into a bundle."""

    loaded: Loaded[Any]
    conditions: Conditions
    fleet: Callable[[], FleetSnapshot]
    """The fleet with what only the node directory knows."""
    streams: StreamTable
    refusals: RecentRefusals
    alarms: WitnessAlarms
    audit: DurableLog
    store_facts: Callable[[], Mapping[str, str | int | bool]]
    metrics: Callable[[], bytes]

    async def parts(self) -> AsyncIterator[Part]:
        """All parts, in the order of CONTROLLER_PARTS."""
        sources: dict[str, Callable[[], Content | Part | Awaitable[Part]]] = {
            "versions.json": versions,
            "settings.json": lambda: disclosed_settings(self.loaded),
            "readiness.json": self.readiness,
            "identity.json": self.identity,
            "fleet.json": self.fleet_counts,
            _NODES: self.node_lines,
            "refusals.json": self.recent_refusals,
            "audit.json": self.audit_state,
            "store.json": self.store_state,
            _METRICS: lambda: metrics_part(_METRICS, self.metrics()),
        }
        for name, source in sources.items():
            yield await _part(name, source)
            await asyncio.sleep(0)

    def readiness(self) -> Content:
        """`readiness.json`."""
        conditions = self.conditions
        state, now, clock = conditions.state, conditions.readiness(), conditions.clock
        since = state.listening_since_ns
        return Content(
            {
                "at": rfc3339(clock.wall_ns()),
                "ready": now.ready,
                "reasons": disclosed_reasons(list(now.reasons)),
                "draining": state.draining,
                "clockSuspect": state.clock_suspect,
                "insecureStandIns": len(conditions.insecure),
                "listeningForSeconds": None
                if since is None
                else (clock.boottime_ns() - since) // NS_PER_S,
                "policy": conditions.policy().digest,
            },
            ("reasons",),
        )

    def identity(self) -> Content:
        """`identity.json`: whose SVID, and until when."""
        svids = self.conditions.svids
        svid = svids.current()
        shown = {}
        if svid is not None:
            shown = {
                "spiffeId": str(svid.spiffe_id),
                "notAfter": svid.not_after.isoformat(),
                "generation": svid.generation,
                "roots": len(svid.roots),
            }
        return Content({"svid": shown or None, "words": known_words(svids.state())}, ("state",))

    def fleet_counts(self) -> Content:
        """`fleet.json`."""
        snapshot, streams = self.fleet(), self.streams.counts()
        counts = count_fleet(snapshot, self.conditions.clock.boottime_ns())
        blocked = Counter(x.blocked.code.value for x in snapshot.nodes.values() if x.blocked)
        return Content(
            {
                "version": snapshot.version,
                "nodes": dict(counts.nodes),
                "gpus": dict(counts.gpus),
                "classes": {key: len(nodes) for key, nodes in snapshot.nodes_by_hash.items()},
                "blocked": dict(blocked),
                "streams": sum(streams.values()),
                "nodesWithStream": len(streams),
                "nodesWithSeveralStreams": sum(count > 1 for count in streams.values()),
            }
        )

    async def node_lines(self) -> Part:
        """`nodes.jsonl`: nodes that are not eligible come first, so that none of them is cut."""
        now_ns = self.conditions.clock.boottime_ns()
        nodes, streams = self.fleet().nodes, self.streams.counts()
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
            if written % _NODES_PER_TURN == 0:
                await asyncio.sleep(0)
        return Part(_NODES, bytes(lines), withheld=WITHHELD, left_out=len(order) - written)

    def recent_refusals(self) -> Content:
        """`refusals.json`: newest first."""
        return Content(
            [
                {
                    "what": one.what,
                    "subject": one.subject,
                    "code": one.code.value,
                    "step": one.step,
                    "first": rfc3339(one.first_ns),
                    "last": rfc3339(one.last_ns),
                    "count": one.count,
                }
                for one in self.refusals.newest_first()
            ],
            ("detail",),
        )

    def audit_state(self) -> Content:
        """`audit.json`: head and condition of the log, and the agents that accuse it."""
        condition, published = self.audit.condition, self.audit.published
        accusing = self.alarms.accusing()
        head = None
        if published is not None:
            head = {
                "log": published.log,
                "records": published.head.size,
                "root": published.head.root.hex(),
                "keyChanges": len(published.key_changes),
            }
        return Content(
            {
                "available": condition.available,
                "onlyReserveLeft": condition.low,
                "words": known_words(condition.reason),
                "waiting": self.audit.waiting,
                "checkpoint": head,
                "alarms": {node: accusing[node] for node in sorted(accusing)[:MAX_NAMES]},
            },
            ("reason",),
            max(0, len(accusing) - MAX_NAMES),
        )

    def store_state(self) -> Content:
        """`store.json`: its kind and age, and the quarantined nodes."""
        snapshot, facts = self.conditions.store.snapshot(), self.store_facts()
        denials = {x.node: x.denial for x in snapshot.records.values() if x.denial is not None}
        return Content(
            {
                "kind": facts.get("kind"),
                "generation": facts.get("generation"),
                "madeAgain": facts.get("created"),
                "fresh": self.conditions.clock.boottime_ns() < snapshot.fresh_until_ns,
                "records": len(snapshot.records),
                "denials": {node: _denial(denials[node]) for node in sorted(denials)[:MAX_NAMES]},
            },
            ("reason", "actor", "candidate"),
            max(0, len(denials) - MAX_NAMES),
        )


def _denial(denial: QuarantineEntry) -> dict[str, object]:
    """A code that another controller wrote leaves only if this one knows it."""
    code = denial.code if denial.code in set(ReasonCode) else None
    return {"code": code, "at": rfc3339(denial.wall_ns)}


async def _part(name: str, source: Callable[[], Content | Part | Awaitable[Part]]) -> Part:
    try:
        made = source()
        if isinstance(made, Content):
            return json_part(name, made)
        return made if isinstance(made, Part) else await made
    except Exception as error:  # noqa: BLE001 -- a sick process has a bundle too; what fails is named
        logger("support").error(Event.SUPPORT_PART_FAILED, part=name, exc_info=error)
        words = " ".join([type(error).__name__, *known_words(str(error))])
        return missing(name, f"{words}; the controller's log has more")
