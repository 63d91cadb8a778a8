"""Reservations that nobody uses: since when, and how many GPU-seconds each namespace lets idle.

A GPU is idle for a pod that holds it while no process of this pod runs on it, in a share group of
none of its pods, by the node's own reports. Time counts between two reports that follow each other.
What lies between others (a silent node, a controller that was away) counts as nothing. A MIG device
counts as one GPU. The time of a GPU that several pods hold, in slices of time or as a share group,
is divided between them. Pure. Nothing is decided by it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from controller.fleet.view import Acceptance
from controller.ledger.record import GpuRecord, HolderState, PodRef, key_of
from controller.ledger.release import UseReport
from controller.ledger.store import LedgerSnapshot
from controller.record import Json, Record
from gpuwarden.audit.record import LogRecord, RecordKind
from gpuwarden.moment import NS_PER_S

IDLE_AFTER_NS: Final = 15 * 60 * NS_PER_S
"""A GPU that is idle for less is not listed: images are pulled, models are loaded."""
MAX_GAP_NS: Final = 5 * 60 * NS_PER_S
"""Two reports further apart do not follow each other."""
ACCOUNTED_NS: Final = 15 * 60 * NS_PER_S
"""How often the accounts go into the audit log."""
MAX_NAMESPACES: Final = 1024
"""Accounts that are kept; further namespaces share one."""
OTHERS: Final = "_others"
"""No namespace has an underscore in its name."""
USE_KINDS: Final = (RecordKind.USE_IDLE.value, RecordKind.USE_ACCOUNT.value)
"""What `Remembered` is made of."""
_CONTROLLER: Final = "controller"
_SHOWN_CHARS: Final = 253


@dataclass(frozen=True, slots=True)
class Holding:
    """A GPU or MIG device that a pod is bound with."""

    gpu: str
    node: str
    pod: PodRef
    reservation: str

    @property
    def key(self) -> tuple[str, str]:
        """Of one reservation's part in one GPU."""
        return key_of(self.gpu), self.reservation


@dataclass(frozen=True, slots=True)
class IdleGpu:
    """A GPU that is idle for long enough to be told."""

    holding: Holding
    since_wall_ns: int
    """When the first report that shows it idle was accepted."""


@dataclass(frozen=True, slots=True)
class IdleChanges:
    """What a report has changed."""

    begun: tuple[IdleGpu, ...] = ()
    ended: tuple[IdleGpu, ...] = ()
    resumed: tuple[IdleGpu, ...] = ()
    """What was remembered and is still idle."""

    def __bool__(self) -> bool:
        return bool(self.begun or self.ended or self.resumed)


@dataclass(frozen=True, slots=True)
class Account:
    """GPU-seconds of one namespace."""

    reserved_ns: int = 0
    idle_ns: int = 0

    def plus(self, other: "Account") -> "Account":
        """Both together."""
        return Account(self.reserved_ns + other.reserved_ns, self.idle_ns + other.idle_ns)


@dataclass(frozen=True, slots=True)
class Remembered:
    """What the audit log has from before this start."""

    accounts: Mapping[str, Account] = field(default_factory=dict)
    idle: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """`Holding.key` -> since when, of those whose end the log does not have."""
    since: str = ""
    """RFC 3339, of the oldest account."""


@dataclass(frozen=True, slots=True)
class _Seen:
    holding: Holding
    asked_ns: int
    since_wall_ns: int | None
    """None while it is used."""
    since_ns: int
    told: bool


def holdings_of(acceptance: Acceptance, node: str, ledger: LedgerSnapshot) -> Iterator[Holding]:
    """What bound pods hold of the GPUs that the node shows."""
    for gpu in acceptance.gpus:
        for card in acceptance.with_parts(gpu.uuid):
            entry = ledger.get(card)
            if entry is not None and entry.record.node == node:
                yield from _holding(entry.record)


def _holding(record: GpuRecord) -> Iterator[Holding]:
    bound = [x for x in record.holders if x.state is HolderState.CONFIRMED]
    for holder in bound:
        yield Holding(record.gpu, record.node, holder.pod, holder.reservation)


def _is_held(holding: Holding, ledger: LedgerSnapshot) -> bool:
    entry = ledger.get(holding.gpu)
    held = () if entry is None else _holding(entry.record)
    return any((x.node, x.key) == (holding.node, holding.key) for x in held)


UidOf = Callable[[str], str | None]
"""UID in the API of a pod that its node knows by this one; None where there is none."""


def not_known(_uid: str) -> None:
    """Where nobody knows pods by other UIDs."""


def used_by_holders(
    acceptance: Acceptance,
    report: UseReport,
    ledger: LedgerSnapshot,
    uid_of: UidOf = not_known,
) -> frozenset[tuple[str, str]] | None:
    """`Holding.key` of those that use what they hold; None where processes could not be read.

    The driver names the whole GPU for processes on its MIG devices, and the node a static pod by
    another UID than the API. A share group uses what any pod of it uses.
    """
    if report.users is None:
        return None
    found: set[tuple[str, str]] = set()
    for gpu, uids in report.users.items():
        entries = (ledger.get(x) for x in acceptance.with_parts(gpu))
        for record in (x.record for x in entries if x is not None):
            held_by = {x.pod.uid for x in record.holders if x.pod.uid is not None}
            users = held_by & (uids | {uid_of(x) for x in uids - held_by if x is not None})
            together = bool(users) and record.is_shared_by(record.share)
            using = (x for x in record.holders if together or x.pod.uid in users)
            found.update((record.key, x.reservation) for x in using)
    return frozenset(found)


class IdleWatch:
    """One per process."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[tuple[str, str], _Seen]] = {}
        """By node."""
        self._accounts: dict[str, Account] = {}
        self._since = ""
        self._logged: dict[tuple[str, str], int] = {}
        """As `Remembered.idle`, of what no report has been about yet."""
        self._unwritten: dict[str, Account] = {}

    def remember(self, remembered: Remembered) -> None:
        """What was before; once, before the first report."""
        self._since, self._logged = remembered.since, dict(remembered.idle)
        self._accounts = dict(remembered.accounts)

    def reported(
        self,
        node: str,
        acceptance: Acceptance,
        report: UseReport,
        ledger: LedgerSnapshot,
        uid_of: UidOf = not_known,
    ) -> IdleChanges:
        """A node's new report."""
        before = dict(self._seen.get(node, {}))
        used = used_by_holders(acceptance, report, ledger, uid_of)
        if used is None:
            return IdleChanges()
        now: dict[tuple[str, str], _Seen] = {}
        resumed = []
        holdings = tuple(holdings_of(acceptance, node, ledger))
        pods_on = Counter(x.gpu for x in holdings)
        for holding in holdings:
            logged_ns = self._logged.pop(holding.key, None)
            if logged_ns is not None:
                before[holding.key] = _Seen(
                    holding, report.asked_ns, logged_ns, report.asked_ns, told=True
                )
            is_used = holding.key in used
            now[holding.key] = self._next(
                before.get(holding.key),
                holding,
                acceptance,
                report,
                is_used=is_used,
                pods=pods_on[holding.gpu],
            )
            if logged_ns is not None and not is_used:
                resumed.append(now[holding.key])
        self._seen[node] = now
        begun = [x for key, x in now.items() if x.told and not _was_told(before.get(key))]
        ended = [x for key, x in before.items() if x.told and not _was_told(now.get(key))]
        return IdleChanges(tuple(_told(begun)), tuple(_told(ended)), tuple(_told(resumed)))

    def forget(self, node: str) -> IdleChanges:
        """The node is gone."""
        return IdleChanges(ended=tuple(_told(self._seen.pop(node, {}).values())))

    def without_report(self, node: str, ledger: LedgerSnapshot) -> IdleChanges:
        """The node is silent: what the ledger has no bound pod for any more has ended."""
        seen = self._seen.get(node, {})
        over = {key: x for key, x in seen.items() if not _is_held(x.holding, ledger)}
        for key in over:
            del seen[key]
        return IdleChanges(ended=tuple(_told(over.values())))

    def standing(self) -> tuple[IdleGpu, ...]:
        """All that are told, the longest idle first."""
        found = [x for seen in self._seen.values() for x in _told(seen.values())]
        return tuple(sorted(found, key=lambda x: (x.since_wall_ns, x.holding.key)))

    def accounts(self) -> Mapping[str, Account]:
        """By namespace: all that is known, from before this start too."""
        return dict(self._accounts)

    @property
    def accounted_since(self) -> str:
        """RFC 3339 of the oldest account that the log had; empty where it had none."""
        return self._since

    def take_accounts(self) -> Mapping[str, Account]:
        """By namespace: what came since this was asked last, for the audit log."""
        found, self._unwritten = self._unwritten, {}
        return found

    def _next(
        self,
        before: _Seen | None,
        holding: Holding,
        acceptance: Acceptance,
        report: UseReport,
        *,
        is_used: bool,
        pods: int,
    ) -> _Seen:
        """`pods`: how many are bound with it."""
        asked_ns = report.asked_ns
        if before is not None and asked_ns - before.asked_ns > MAX_GAP_NS:
            before = None
        span_ns = 0 if before is None else asked_ns - before.asked_ns
        was_idle = before is not None and before.since_wall_ns is not None
        idle_ns = span_ns if was_idle and not is_used else 0
        self._count(holding.pod.namespace, Account(span_ns // pods, idle_ns // pods))
        if is_used:
            return _Seen(holding, asked_ns, None, asked_ns, told=False)
        if before is None or before.since_wall_ns is None:
            return _Seen(holding, asked_ns, acceptance.accepted_wall_ns, asked_ns, told=False)
        told = before.told or asked_ns - before.since_ns >= IDLE_AFTER_NS
        return replace(before, asked_ns=asked_ns, told=told)

    def _count(self, namespace: str, more: Account) -> None:
        if not more.reserved_ns:
            return
        if namespace not in self._accounts and len(self._accounts) >= MAX_NAMESPACES:
            namespace = OTHERS
        for accounts in (self._accounts, self._unwritten):
            accounts[namespace] = accounts.get(namespace, Account()).plus(more)


def _told(seen: Iterable[_Seen]) -> Iterator[IdleGpu]:
    for x in seen:
        if x.told and x.since_wall_ns is not None:
            yield IdleGpu(x.holding, x.since_wall_ns)


def _was_told(seen: _Seen | None) -> bool:
    return seen is not None and seen.told


def idle_by_namespace(standing: Iterable[IdleGpu]) -> Mapping[str, int]:
    """How many are told of each namespace."""
    return Counter(x.holding.pod.namespace for x in standing)


# --- the audit log


def idle_record(idle: IdleGpu, *, ended: bool) -> Record:
    """The `use.idle` record: a reserved GPU is idle for long, or is not any more."""
    holding = idle.holding
    refs: dict[str, Json] = {
        "uid": holding.pod.uid,
        "node": holding.node[:_SHOWN_CHARS],
        "reservation": holding.reservation,
        "gpus": [holding.gpu],
        "sinceMs": str(idle.since_wall_ns // 1_000_000),
    }
    namespace, name = holding.pod.namespace, holding.pod.name or "-"
    subject = f"pod/{namespace[:_SHOWN_CHARS]}/{name[:_SHOWN_CHARS]}"
    decision = "ended" if ended else "idle"
    return Record(RecordKind.USE_IDLE, _CONTROLLER, subject, decision, refs=refs)


def account_record(namespace: str, account: Account) -> Record:
    """The `use.account` record: GPU-seconds since the record before."""
    return Record(
        RecordKind.USE_ACCOUNT,
        _CONTROLLER,
        f"namespace/{namespace[:_SHOWN_CHARS]}",
        "accounted",
        refs={
            "reservedMs": str(account.reserved_ns // 1_000_000),
            "idleMs": str(account.idle_ns // 1_000_000),
        },
    )


def remembered(records: Iterable[LogRecord]) -> Remembered:
    """What the records of one log add up to; what has not the form of ours is skipped."""
    accounts: dict[str, Account] = {}
    idle: dict[tuple[str, str], int] = {}
    since = ""
    for record in records:
        if record.kind == RecordKind.USE_ACCOUNT:
            namespace = record.subject.removeprefix("namespace/")
            found = Account(ns_in(record, "reservedMs"), ns_in(record, "idleMs"))
            accounts[namespace] = accounts.get(namespace, Account()).plus(found)
            since = since or record.ts
        elif record.kind == RecordKind.USE_IDLE:
            gpus, reservation = record.refs.get("gpus"), record.refs.get("reservation")
            for gpu in gpus if isinstance(gpus, list) else ():
                key = key_of(str(gpu)), str(reservation)
                if record.decision == "idle":
                    idle[key] = ns_in(record, "sinceMs")
                else:
                    idle.pop(key, None)
    return Remembered(accounts, idle, since)


def ns_in(record: LogRecord, key: str) -> int:
    """A reference in milliseconds; 0 where it is no such number."""
    text = record.refs.get(key)
    if not isinstance(text, str) or not text.isascii() or not text.isdecimal():
        return 0
    return int(text) * 1_000_000
