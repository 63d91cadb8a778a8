"""Leader election by a coordination.k8s.io/v1 Lease: who does what only one replica may do.

Nothing that decides trust depends on it: every replica verifies and serves. `Candidate` decides
and is pure; `Leadership` reads and writes the Lease.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import msgspec

from controller.kube.api.client import ApiClient
from controller.kube.api.resources import LEASE_NAME, LEASES, ApiError
from gpuwarden.clock import Clock
from gpuwarden.moment import NS_PER_S, rfc3339
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

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
    """What one replica decides about the Lease; `identity` must differ for each process. Pure.

    Times in the Lease are other machines' and only shown to people. A holder counts as gone when
    the Lease has not changed for its own duration on this machine's boot clock, so a wrong clock
    elsewhere does not matter, not even one that stands still and renews with the same time. A
    leader gives up before anybody else may lead: by the renew deadline, counted from before its
    last successful write was sent.
    """

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
        self._held_until_ns = asked_ns + int(self._terms.renew_deadline_s * NS_PER_S)

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
        return now_ns - self._observed[1] >= bounded_s * NS_PER_S

    def _spec(self, before: _Spec | None, wall_ns: int) -> dict[str, Any]:
        now = rfc3339(wall_ns, digits=6)
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


_RELEASE_SECONDS: Final = 1.0


class Leadership:
    """Tries to lead forever, and gives the Lease back at the end; one per process."""

    def __init__(
        self,
        api: ApiClient,
        *,
        namespace: str,
        identity: str,
        clock: Clock,
        instruments: Instruments,
        jitter: Callable[[], float],
        terms: Terms = DEFAULT_TERMS,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._candidate = Candidate(identity, terms)
        self._clock = clock
        self._jitter = jitter
        self._terms = terms
        self._gauge = instruments.gauge(names.LEADER)
        self._log = logger("kube")
        self._reported = False

    def leads(self) -> bool:
        """Whether this replica leads now; ask again before each act."""
        return self._candidate.is_leader(self._clock.boottime_ns())

    async def follow(self) -> NoReturn:
        """Try forever; ends by cancellation only."""
        while True:
            with contextlib.suppress(ApiError):
                await self._try()
            self.report()
            await asyncio.sleep(self._terms.retry_s * (1.0 + self._jitter() / 5))

    async def release(self) -> None:
        """Give the Lease back if it is ours; best effort, at most a second."""
        if not self.leads():
            return
        with contextlib.suppress(ApiError, TimeoutError):
            async with asyncio.timeout(_RELEASE_SECONDS):
                lease = await self._read()
                if lease is not None:
                    update = self._candidate.release(lease, self._clock.wall_ns())
                    await self._write(update)
        self.report()

    def report(self) -> None:
        """Log a change of leadership and set the gauge."""
        leads = self.leads()
        self._gauge.set(leads)
        if leads and not self._reported:
            self._log.info(Event.LEADER_ELECTED)
        elif self._reported and not leads:
            self._log.warning(Event.LEADER_LOST)
        self._reported = leads

    async def _try(self) -> None:
        lease = await self._read()
        asked_ns = self._clock.boottime_ns()
        decided = self._candidate.decide(lease, asked_ns, self._clock.wall_ns())
        if decided is None:
            return
        try:
            await self._write(decided)
        except ApiError as error:
            if error.is_conflict:
                self._candidate.lost()
            raise
        self._candidate.wrote(asked_ns)

    async def _read(self) -> Lease | None:
        try:
            return Lease.read(await self._api.get(LEASES, LEASE_NAME, self._namespace))
        except ApiError as error:
            if error.is_not_found:
                return None
            raise

    async def _write(self, decided: Create | Update | None) -> None:
        match decided:
            case Create(spec):
                body = {
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": LEASE_NAME, "namespace": self._namespace},
                    "spec": spec,
                }
                await self._api.create(LEASES, body, self._namespace)
            case Update(version, spec):
                patch = {"metadata": {"resourceVersion": version}, "spec": spec}
                await self._api.patch(LEASES, LEASE_NAME, patch, self._namespace)
            case None:
                return
