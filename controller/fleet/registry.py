"""All nodes, in memory: feeds events to the state machine and hands out frozen snapshots."""

import heapq
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from controller.fleet.attestation_result import Accepted, FailureNoticeAccepted, Refused
from controller.fleet.trust import (
    ChangeKind,
    Event,
    EvidenceAccepted,
    EvidenceRefused,
    NewsReceived,
    NodeRecord,
    Quarantine,
    Release,
    Tick,
    TrustChange,
    apply,
    needs_grant,
    new_record,
)
from controller.fleet.view import EMPTY_FLEET, Acceptance, FleetSnapshot, NodeView, acceptance_of
from controller.policy import DEFAULT_POLICY, Consequence, Policy
from gpuwarden.evidence.model import Failure
from gpuwarden.evidence.strict_json import quote
from gpuwarden.reasons import ReasonCode

Changes = tuple[TrustChange, ...]


class FleetRegistry:
    """The fleet as this controller has verified it. Not thread-safe: lives in one event loop.

    A heartbeat replaces one entry of a dict; the dict is copied when somebody asks for a snapshot
    after a change, so readers pay for copies and thousands of heartbeats per second do not (15,000
    nodes: about 0.4 ms per copy, at most one per reader's decision). The index by class hash is
    kept per hash and frozen again only where its members changed, which an unchanged round never
    does.
    """

    def __init__(self, policy: Policy = DEFAULT_POLICY) -> None:
        self._policy = policy
        self._records: dict[str, NodeRecord] = {}
        self._views: dict[str, NodeView] = {}
        self._members: dict[str, set[str]] = {}
        self._frozen: dict[str, frozenset[str]] = {}
        self._leases: list[tuple[int, str]] = []
        self._waiting: set[str] = set()
        self._listeners: dict[int, Callable[[], None]] = {}
        self._snapshot: FleetSnapshot = EMPTY_FLEET
        self._version = 0
        self._last: tuple[Accepted, Acceptance | None, Acceptance] | None = None

    def snapshot(self) -> FleetSnapshot:
        """The fleet now; the same object until something changes."""
        if self._snapshot.version != self._version:
            self._snapshot = FleetSnapshot(
                MappingProxyType(self._views.copy()), self._index(), self._version
            )
        return self._snapshot

    def view(self, node: str) -> NodeView | None:
        """One node now, without a copy of the fleet."""
        return self._views.get(node)

    def subscribe(self, notify: Callable[[], None], /) -> Callable[[], None]:
        """Call `notify` after each change; returns the way to stop that."""
        key = max(self._listeners, default=0) + 1
        self._listeners[key] = notify
        return lambda: self._forget_listener(key)

    def needs_grant(self, accepted: Accepted, now_ns: int) -> bool:
        """Whether this acceptance must wait for its audit record to be durable."""
        return needs_grant(self._record(accepted.node), self._read(accepted), now_ns)

    def accept(self, accepted: Accepted, *, now_ns: int, wall_ns: int) -> Changes:
        """Step 20: the node's record is swapped; its audit record is durable by now."""
        acceptance = replace(self._read(accepted), accepted_wall_ns=wall_ns)
        return self._apply(accepted.node, EvidenceAccepted(acceptance, now_ns))

    def refuse(self, refused: Refused, *, now_ns: int, wall_ns: int) -> Changes:
        """Record a refusal; one that names no node changes nothing.

        A refusal of a node that neither the directory nor this registry knows is not
        remembered: names are as many as a peer can make up.
        """
        if refused.node is None or not self._remembers(refused):
            return ()
        event = EvidenceRefused(
            refused.code,
            refused.step,
            refused.effect,
            refused.detail,
            now_ns,
            wall_ns,
            MappingProxyType({x.uuid: x.error for x in refused.lost}),
            refused.candidate,
        )
        return (
            *self._apply(refused.node, event),
            *(
                TrustChange(
                    x.owner,
                    ChangeKind.CLAIM_REPELLED,
                    ReasonCode.GPU_CLAIMED_TWICE,
                    f"claimed by {x.claimant}",
                    x.uuid,
                )
                for x in refused.contested
            ),
        )

    def failure_notice(
        self, accepted: FailureNoticeAccepted, *, now_ns: int, wall_ns: int
    ) -> Changes:
        """Take away what the node itself says is gone; an XID without consequence takes nothing."""
        changes: list[TrustChange] = []
        for failure in accepted.failures:
            if self.consequence(failure) is not Consequence.NONE:
                event = NewsReceived(_text(failure), failure.gpu, now_ns, wall_ns)
                changes += self._apply(accepted.node, event)
        return tuple(changes)

    def consequence(self, failure: Failure) -> Consequence:
        """What policy makes of it. Whatever is no XID ends with newer evidence, and is `reset`."""
        return Consequence.RESET if failure.xid is None else self._policy.consequence(failure.xid)

    def quarantine(
        self, node: str, *, code: ReasonCode, reason: str, now_ns: int, wall_ns: int
    ) -> Changes:
        """Take the node out until it is released."""
        return self._apply(node, Quarantine(code, reason, now_ns, wall_ns))

    def release(self, node: str, *, reason: str, now_ns: int, wall_ns: int) -> Changes:
        """An operator lets a quarantined node try again; others are unaffected."""
        return self._apply(node, Release(reason, now_ns, wall_ns)) if node in self._records else ()

    def tick(self, now_ns: int) -> Changes:
        """Announce leases that have ended; costs what ended, not what lives."""
        changes: list[TrustChange] = []
        while self._leases and self._leases[0][0] <= now_ns:
            _, node = heapq.heappop(self._leases)
            self._waiting.discard(node)
            record = self._records.get(node)
            acceptance = record.view.acceptance if record else None
            if acceptance is None:
                continue
            if acceptance.fresh_until_ns > now_ns:
                self._await_lease(node, acceptance)
                continue
            changes += self._apply(node, Tick(now_ns))
        return tuple(changes)

    def forget(self, node: str) -> None:
        """The directory no longer has the node; what comes from it later starts again."""
        record = self._records.pop(node, None)
        if record is None:
            return
        del self._views[node]
        self._move(node, _hash_of(record.view), None)
        self._changed()

    def set_policy(self, policy: Policy) -> None:
        """Nodes get the modes that the new policy declares."""
        self._policy = policy
        for name, record in list(self._records.items()):
            if record.view.mode is not policy.mode(name):
                self._store(record, _with_mode(record, policy))
        self._changed()

    def _apply(self, node: str, event: Event) -> Changes:
        before = self._record(node)
        outcome = apply(before, event)
        if outcome.record is not before or node not in self._records:
            self._store(before, outcome.record)
            self._changed()
        return outcome.changes

    def _read(self, accepted: Accepted) -> Acceptance:
        """What `needs_grant` has just made of the same evidence serves `accept` as well."""
        before = self._record(accepted.node).view.acceptance
        if self._last is None or self._last[0] is not accepted or self._last[1] is not before:
            self._last = (accepted, before, acceptance_of(accepted, before, accepted_wall_ns=0))
        return self._last[2]

    def _record(self, node: str) -> NodeRecord:
        return self._records.get(node) or new_record(node, self._policy.mode(node))

    def _remembers(self, refused: Refused) -> bool:
        return refused.node in self._records or refused.code not in _NODE_MAY_NOT_EXIST

    def _store(self, before: NodeRecord, after: NodeRecord) -> None:
        name, acceptance = after.view.name, after.view.acceptance
        self._records[name] = after
        self._views[name] = after.view
        self._move(name, _hash_of(before.view), _hash_of(after.view))
        if acceptance is not None and name not in self._waiting and not after.lapsed:
            self._await_lease(name, acceptance)

    def _await_lease(self, node: str, acceptance: Acceptance) -> None:
        """One entry per node: its time is only a lower bound, renewals are found at its end."""
        self._waiting.add(node)
        heapq.heappush(self._leases, (acceptance.fresh_until_ns, node))

    def _move(self, node: str, before: str | None, after: str | None) -> None:
        if before == after:
            return
        for key in (before, after):
            if key is not None:
                self._frozen.pop(key, None)
        if before is not None:
            self._members[before].discard(node)
            if not self._members[before]:
                del self._members[before]
        if after is not None:
            self._members.setdefault(after, set()).add(node)

    def _index(self) -> Mapping[str, frozenset[str]]:
        for key, members in self._members.items():
            if key not in self._frozen:
                self._frozen[key] = frozenset(members)
        return MappingProxyType(self._frozen.copy())

    def _changed(self) -> None:
        self._version += 1
        for notify in tuple(self._listeners.values()):
            notify()

    def _forget_listener(self, key: int) -> None:
        self._listeners.pop(key, None)


_NODE_MAY_NOT_EXIST = frozenset(
    {ReasonCode.NODE_UNKNOWN, ReasonCode.ENROLLMENT_STALE, ReasonCode.DIRECTORY_STALE}
)
"""Given before the directory has confirmed the node."""


def _hash_of(view: NodeView) -> str | None:
    return view.acceptance.attestation_hash if view.acceptance else None


def _with_mode(record: NodeRecord, policy: Policy) -> NodeRecord:
    view = replace(record.view, mode=policy.mode(record.view.name))
    return replace(record, view=view)


def _text(failure: Failure) -> str:
    what = f"xid {failure.xid}" if failure.xid is not None else failure.kind
    return f"{what}: {quote(failure.detail)}" if failure.detail else what
