"""The parts of a support bundle that fit into one look: readiness, identity, fleet, log, store.

Each lists what leaves. Texts (details, reasons, errors) do not; of them the known words do.
"""

from collections import Counter
from typing import Final

from controller.fleet.enrollment import Denial
from controller.fleet_gauges import count_fleet
from controller.rpc.fleet_messages import rfc3339
from controller.support.ports import SupportPorts
from gpuwarden.reasons import ReasonCode
from gpuwarden.support.known_answers import told_reasons
from gpuwarden.support.known_words import known_words
from gpuwarden.support.part import Content

MAX_NAMES: Final = 2000
_NS: Final = 1_000_000_000


def readiness(ports: SupportPorts) -> Content:
    """`readiness.json`."""
    conditions = ports.conditions
    state, now, clock = conditions.state, conditions.readiness(), conditions.clock
    since = state.listening_since_ns
    return Content(
        {
            "at": rfc3339(clock.wall_ns()),
            "ready": now.ready,
            "reasons": told_reasons(list(now.reasons)),
            "draining": state.draining,
            "clockSuspect": state.clock_suspect,
            "insecureStandIns": len(conditions.insecure),
            "listeningForSeconds": None if since is None else (clock.boottime_ns() - since) // _NS,
            "policy": conditions.policy().digest,
        },
        ("reasons",),
    )


def identity(ports: SupportPorts) -> Content:
    """`identity.json`: whose SVID, and until when."""
    svids = ports.conditions.svids
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


def fleet(ports: SupportPorts) -> Content:
    """`fleet.json`: numbers."""
    snapshot, streams = ports.fleet(), ports.streams.counts()
    counts = count_fleet(snapshot, ports.conditions.clock.boottime_ns())
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


def refusals(ports: SupportPorts) -> Content:
    """`refusals.json`: the last ones, newest first."""
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
            for one in ports.refusals.newest_first()
        ],
        ("detail",),
    )


def audit(ports: SupportPorts) -> Content:
    """`audit.json`: the log's head and state, and who accuses it."""
    condition, published = ports.audit.condition, ports.audit.published
    accusing = ports.alarms.accusing()
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
            "waiting": ports.audit.waiting,
            "checkpoint": head,
            "alarms": {node: accusing[node] for node in sorted(accusing)[:MAX_NAMES]},
        },
        ("reason",),
        max(0, len(accusing) - MAX_NAMES),
    )


def store(ports: SupportPorts) -> Content:
    """`store.json`: its kind and state, and whom it keeps out."""
    snapshot, facts = ports.conditions.store.snapshot(), ports.store_facts()
    denials = {x.node: x.denial for x in snapshot.records.values() if x.denial is not None}
    return Content(
        {
            "kind": facts.get("kind"),
            "generation": facts.get("generation"),
            "madeAnew": facts.get("created"),
            "fresh": ports.conditions.clock.boottime_ns() < snapshot.fresh_until_ns,
            "records": len(snapshot.records),
            "denials": {node: _denial(denials[node]) for node in sorted(denials)[:MAX_NAMES]},
        },
        ("reason", "actor", "candidate"),
        max(0, len(denials) - MAX_NAMES),
    )


def _denial(denial: Denial) -> dict[str, object]:
    """A code that another controller wrote is one of ours, or not told."""
    code = denial.code if denial.code in set(ReasonCode) else None
    return {"code": code, "at": rfc3339(denial.wall_ns)}
