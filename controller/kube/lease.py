"""Who may do what only one replica may do: decisions over a coordination.k8s.io/v1 Lease. Pure.

Times in the Lease are other machines' and only shown to people. A holder is taken to be
gone when the Lease has not changed for its own duration on *this* machine's boot clock,
so that no clock that is wrong elsewhere matters, not even one that stands still and renews
with the same time. A leader stops
believing in itself before anybody else may: by the renew deadline, counted from before
its last successful write was sent.
"""

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from controller.kube.resources import ApiError
from controller.placement.texts import micro_time

_SECOND: Final = 1_000_000_000
_LONGEST_S: Final = 3600


@dataclass(frozen=True, slots=True)
class Terms:
    """duration > renew deadline > retry, as for any leader election."""

    duration_s: int = 15
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0


DEFAULT_TERMS: Final = Terms()


class _Metadata(msgspec.Struct, rename="camel", gc=False):
    resource_version: str = ""


class _Spec(msgspec.Struct, rename="camel", frozen=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Lease(msgspec.Struct, gc=False):
    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)


_DECODER: Final = msgspec.json.Decoder(_Lease)


@dataclass(frozen=True, slots=True)
class Lease:
    """A Lease as it was read."""

    version: str
    spec: _Spec

    @staticmethod
    def read(body: bytes) -> "Lease":
        """From JSON; raises ApiError."""
        try:
            found = _DECODER.decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise ApiError("a Lease that cannot be read", 422) from None
        return Lease(found.metadata.resource_version, found.spec)


@dataclass(frozen=True, slots=True)
class Create:
    """There is no Lease: make it ours."""

    spec: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Update:
    """Renew ours, or take one over, if it still has this version."""

    version: str
    spec: dict[str, Any]


class Candidate:
    """One per process; `identity` must be another one for each process."""

    def __init__(self, identity: str, terms: Terms = DEFAULT_TERMS) -> None:
        self._identity = identity
        self._terms = terms
        self._observed: tuple[str, int] | None = None
        """Version of another's Lease, and when we first saw it."""
        self._held_until_ns = 0

    def is_leader(self, now_ns: int) -> bool:
        """Whether nobody else can be."""
        return now_ns < self._held_until_ns

    def decide(self, lease: Lease | None, now_ns: int, wall_ns: int) -> Create | Update | None:
        """What to write after reading `lease`; None to wait."""
        if lease is None:
            return Create(self._spec(None, wall_ns))
        if lease.spec.holder_identity == self._identity or self._is_free(lease, now_ns):
            return Update(lease.version, self._spec(lease.spec, wall_ns))
        self._held_until_ns = 0
        return None

    def wrote(self, asked_ns: int) -> None:
        """Our write, sent at `asked_ns`, was taken: we hold the Lease."""
        self._held_until_ns = asked_ns + int(self._terms.renew_deadline_s * _SECOND)

    def lost(self) -> None:
        """Somebody else wrote first."""
        self._held_until_ns = 0

    def release(self, lease: Lease, wall_ns: int) -> Update | None:
        """Give it back, so that another need not wait; None if it is not ours."""
        self._held_until_ns = 0
        if lease.spec.holder_identity != self._identity:
            return None
        spec = self._spec(lease.spec, wall_ns)
        return Update(lease.version, {**spec, "holderIdentity": "", "leaseDurationSeconds": 1})

    def _is_free(self, lease: Lease, now_ns: int) -> bool:
        if not lease.spec.holder_identity:
            return True
        if self._observed is None or self._observed[0] != lease.version:
            self._observed = (lease.version, now_ns)
        duration_s = lease.spec.lease_duration_seconds or self._terms.duration_s
        bounded_s = min(max(duration_s, self._terms.duration_s), _LONGEST_S)
        return now_ns - self._observed[1] >= bounded_s * _SECOND

    def _spec(self, before: _Spec | None, wall_ns: int) -> dict[str, Any]:
        now = micro_time(wall_ns)
        transitions = 0 if before is None else before.lease_transitions or 0
        acquired = now if before is None else before.acquire_time or now
        if before is not None and before.holder_identity != self._identity:
            transitions, acquired = transitions + 1, now
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._terms.duration_s,
            "acquireTime": acquired,
            "renewTime": now,
            "leaseTransitions": transitions,
        }
