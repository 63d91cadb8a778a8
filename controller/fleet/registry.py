"""Registry.

Holds: sharing, acceptance, registry.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from controller.fleet.appraisal import Accepted, BadNewsAccepted, Refused
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
from controller.fleet.view import EMPTY_FLEET, Acceptance, FleetSnapshot, GpuView, NodeView
from controller.policy import DEFAULT_POLICY, Policy
from gpuwarden.evidence.model import (
    WANT_PODS,
    BadNews,
    Evidence,
    EvidenceWithPods,
    Gpu,
    GpuProcess,
    Inventory,
    LostGpu,
)
from gpuwarden.evidence.node_identity import serial
from gpuwarden.evidence.strict_json import quote
from gpuwarden.reasons import ReasonCode

# --- sharing
# Keeps equal values once: nodes of a fleet differ in few of the facts that each sends. Pure.
#
# What differs between all nodes (UUIDs, serials) is better not put here.

T = TypeVar("T")

_VALUES = 4096
"""Values that are remembered; rare ones are forgotten again."""


@lru_cache(_VALUES)
def shared(value: T) -> T:
    """The first of equal values, in place of the others."""
    return value


def compacted(inventory: Inventory) -> Inventory:
    """An equal inventory that shares with others what is large."""
    return msgspec.structs.replace(
        inventory,
        gpus=tuple(
            msgspec.structs.replace(
                gpu,
                nvlinks=shared(gpu.nvlinks),
                board_part_number=shared(gpu.board_part_number),
                product=shared(gpu.product),
                vbios=shared(gpu.vbios),
                fabric=shared(gpu.fabric),
            )
            for gpu in inventory.gpus
        ),
    )


# --- acceptance
# Turns accepted evidence into what the rest of the product reads: `Acceptance` with GPU views.
#
# A lost GPU keeps its place in PCI bus order and its last known facts, so that indices in
# scheduling maps do not shift when a card falls off the bus. Judges nothing.

Use = TypeVar("Use", bound=tuple[Any, ...])

_MIB_SHIFT = 20
_NO_PROCESSES: Mapping[str, int] = MappingProxyType({})


def acceptance_of(
    accepted: Accepted, before: Acceptance | None, *, accepted_wall_ns: int
) -> Acceptance:
    """The new acceptance of a node whose last one is `before`."""
    inventory = accepted.evidence.inventory
    hello = accepted.stream.hello
    if before is not None and _unchanged(accepted, before):
        gpus = before.gpus
    else:
        last = {x.uuid: x for x in before.gpus} if before else {}
        gpus = _in_bus_order(inventory.gpus, accepted.lost, last)
    return Acceptance(
        attestation_hash=shared(accepted.attestation_hash),
        level=accepted.level,
        host=inventory.host,
        gpus=gpus,
        evidence_digest=accepted.evidence_digest,
        identity_digest=accepted.identity_digest,
        identity_document=accepted.identity_document,
        class_document=shared(accepted.class_document),
        instance_id=hello.instance_id,
        boot_id=hello.boot_id,
        agent_version=shared(hello.agent_version),
        challenge_issued_ns=accepted.challenge_issued_ns,
        fresh_until_ns=accepted.fresh_until_ns,
        accepted_wall_ns=accepted_wall_ns,
        warnings=accepted.warnings,
        processes_by_gpu=_processes(accepted.evidence.processes or ()),
        allocations=_kept(before.allocations if before else None, accepted.evidence.allocations),
        processes=_kept(before.processes if before else None, accepted.evidence.processes),
        pods=_pods(accepted.evidence),
        pods_unread=any(x.fact == WANT_PODS for x in accepted.evidence.failed_reads),
        inventory=inventory,
    )


def _pods(evidence: Evidence) -> tuple[str, ...] | None:
    return evidence.pods if isinstance(evidence, EvidenceWithPods) else None


def _unchanged(accepted: Accepted, before: Acceptance) -> bool:
    """Whether the GPUs are those of before, none of them lost or in bad news."""
    same = accepted.evidence.inventory is before.inventory and not accepted.lost
    return same and all(x.lost is None and x.unhealthy is None for x in before.gpus)


def _in_bus_order(
    gpus: Iterable[Gpu], lost: Iterable[LostGpu], last: Mapping[str, GpuView]
) -> tuple[GpuView, ...]:
    """Position is the index; a GPU whose bus id nobody knows comes last."""
    found: list[tuple[str, Gpu | LostGpu]] = [(x.pci_bus_id, x) for x in gpus]
    found += [(_last_bus_id(x, last), x) for x in lost]
    found.sort(key=lambda x: (not x[0], x[0].lower(), x[1].uuid))
    return tuple(
        _view(position, card)
        if isinstance(card, Gpu)
        else _lost_view(position, bus_id, card, last.get(card.uuid))
        for position, (bus_id, card) in enumerate(found)
    )


def _last_bus_id(lost: LostGpu, last: Mapping[str, GpuView]) -> str:
    known = last.get(lost.uuid)
    return lost.pci_bus_id or (known.pci_bus_id if known else "")


def _view(position: int, gpu: Gpu) -> GpuView:
    return GpuView(
        index=position,
        uuid=gpu.uuid,
        serial=serial(gpu.serial),
        board_part_number=shared(gpu.board_part_number),
        product=shared(gpu.product),
        pci_bus_id=shared(gpu.pci_bus_id),
        pci=shared(gpu.pci),
        subsystem=shared(gpu.subsystem),
        vbios=shared(gpu.vbios),
        gsp=shared(gpu.gsp),
        memory_mib=_mebibytes(gpu.memory_bytes),
        ecc=gpu.ecc,
        mig=gpu.mig,
        mig_devices=gpu.mig_devices,
        virt=shared(gpu.virt),
        compute_capability=shared(gpu.compute_capability),
        architecture=shared(gpu.architecture),
        compute_mode=shared(gpu.compute_mode),
        persistence_mode=gpu.persistence_mode,
        nvlinks=shared(gpu.nvlinks),
        fabric_kind=shared(gpu.fabric.kind) if gpu.fabric else None,
        chassis_serial=shared(gpu.chassis_serial),
        module_id=gpu.module_id,
    )


def _lost_view(position: int, bus_id: str, lost: LostGpu, known: GpuView | None) -> GpuView:
    if known is not None:
        return replace(known, index=position, pci_bus_id=bus_id, lost=lost, unhealthy=None)
    return GpuView(
        index=position,
        uuid=lost.uuid,
        serial=None,
        board_part_number=None,
        product=None,
        pci_bus_id=bus_id,
        pci=None,
        subsystem=None,
        vbios=None,
        gsp=None,
        memory_mib=None,
        ecc=None,
        mig=None,
        mig_devices=(),
        virt=None,
        compute_capability=None,
        architecture=None,
        compute_mode=None,
        persistence_mode=None,
        nvlinks=(),
        fabric_kind=None,
        chassis_serial=None,
        module_id=None,
        lost=lost,
    )


def _kept(before: Use | None, now: Use | None) -> Use | None:
    """The old object where nothing has changed: a fleet holds each account once, not per round."""
    return before if before == now else now


def _processes(processes: tuple[GpuProcess, ...]) -> Mapping[str, int]:
    return MappingProxyType(dict(Counter(x.gpu for x in processes))) if processes else _NO_PROCESSES


def _mebibytes(count: str | None) -> int | None:
    """As in the class document: 0 (unified memory) is no such fact."""
    return (int(count) >> _MIB_SHIFT) or None if count is not None else None


# --- registry
# All nodes, in memory: feeds events to the state machine and hands out frozen snapshots.
#
# A heartbeat replaces one entry of a dict; the dict is copied when somebody asks for a
# snapshot after a change, so readers pay for copies and thousands of heartbeats per second
# do not (15,000 nodes: about 0.4 ms per copy, at most one per reader's decision). The index by
# class hash is kept per hash and frozen anew only where its members changed, which an
# unchanged round never does. Not thread-safe: lives in one event loop.

Changes = tuple[TrustChange, ...]


class FleetRegistry:
    """The fleet as this controller has verified it."""

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

    def bad_news(self, accepted: BadNewsAccepted, *, now_ns: int, wall_ns: int) -> Changes:
        """Take away what the node itself says is gone."""
        news = accepted.news
        event = NewsReceived(_text(news), news.gpu, now_ns, wall_ns)
        return self._apply(accepted.node, event)

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
        """The directory no longer has the node; what comes from it later starts anew."""
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


def _text(news: BadNews) -> str:
    what = f"xid {news.xid}" if news.xid is not None else news.kind
    return f"{what}: {quote(news.detail)}" if news.detail else what
