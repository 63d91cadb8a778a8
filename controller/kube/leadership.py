"""Tries to lead, for ever: reads the Lease, writes what the candidate decides, gives it back.

Nothing that decides trust depends on it: every replica verifies and serves. Leading only
chooses who does what would be wrong twice.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, NoReturn

from controller.kube.client import ApiClient
from controller.kube.lease import DEFAULT_TERMS, Candidate, Create, Lease, Terms, Update
from controller.kube.resources import LEASE_NAME, LEASES, ApiError
from gpuwarden.clock import Clock
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

_RELEASE_SECONDS: Final = 1.0


class Leadership:
    """One per process."""

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
        self._told = False

    def leads(self) -> bool:
        """Whether this replica leads now; ask again before each act."""
        return self._candidate.is_leader(self._clock.boottime_ns())

    async def follow(self) -> NoReturn:
        """Try for ever; ends by cancellation only."""
        while True:
            with contextlib.suppress(ApiError):
                await self._try()
            self.tell()
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
        self.tell()

    def tell(self) -> None:
        """Say so when it changed."""
        leads = self.leads()
        self._gauge.set(leads)
        if leads and not self._told:
            self._log.info(Event.LEADER_ELECTED)
        elif self._told and not leads:
            self._log.warning(Event.LEADER_LOST)
        self._told = leads

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
