"""The policy as custom resources: read from their caches, with the outcome in their status.

The last valid policy stays in force, whatever happens to the objects and however long the API
server is away. Must not judge: `policy_objects` does, by the file's parser.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

from controller.kube.api.cache import DEFAULT_PACE, ListWatch, Pace
from controller.kube.api.client import ApiClient
from controller.kube.api.resources import ATTESTATION_CLASSES, ATTESTATION_POLICIES, ApiError
from controller.kube.objects.policy_objects import (
    CLASS_KIND,
    POLICY_KIND,
    Edition,
    PolicyObject,
    PolicyObjects,
    status_patch,
    verdict,
)
from controller.policies.file import PolicyChange
from controller.policy import Policy
from gpuwarden.clock import Clock
from gpuwarden.finding import Finding
from gpuwarden.policy.document import PolicyInvalidError
from gpuwarden.policy.objects import POLICY, ObjectKey
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

STATUS_SECONDS: Final = 1.0


class ClusterPolicy:
    """Implements PolicySource; one for the process, used from one event loop."""

    def __init__(
        self,
        api: ApiClient,
        *,
        clock: Clock,
        instruments: Instruments,
        leads: Callable[[], bool],
        jitter: Callable[[], float],
        pace: Pace = DEFAULT_PACE,
        opaque_hashes: bool = False,
    ) -> None:
        """`leads`: whether this replica writes the status of the objects."""
        self._api = api
        self._clock = clock
        self._leads = leads
        self._opaque_hashes = opaque_hashes
        self.current: Policy | None = None
        """The last valid one."""
        self._policies, self._classes = (
            ListWatch(api, kind, clock=clock, instruments=instruments, jitter=jitter, pace=pace)
            for kind in (POLICY_KIND, CLASS_KIND)
        )
        self.watchers: Mapping[str, ListWatch[PolicyObject]] = {
            ATTESTATION_POLICIES.plural: self._policies,
            ATTESTATION_CLASSES.plural: self._classes,
        }
        self._seen: Mapping[ObjectKey, Edition] | None = None
        self._in_force: Mapping[ObjectKey, Edition] = {}
        self._findings: tuple[Finding, ...] = ()
        self._log = logger("policy")
        self._is_failing = False

    async def poll(self) -> PolicyChange | None:
        """What has changed since the last poll; None before both caches are filled."""
        if not all(x.synced.is_set() for x in self.watchers.values()):
            return None
        objects = self._objects()
        editions = objects.editions()
        if editions == self._seen:
            return None
        try:
            policy = await asyncio.to_thread(objects.policy, opaque_hashes=self._opaque_hashes)
        except PolicyInvalidError as error:
            self._seen, self._findings = editions, error.findings
            return PolicyChange(None, error.findings)
        self._seen, self._findings, self._in_force = editions, (), editions
        self.current = policy
        return PolicyChange(policy, ())

    async def run(self, seconds: float = STATUS_SECONDS) -> NoReturn:
        """Write the status of the objects again and again; ends by cancellation only."""
        while True:
            await asyncio.sleep(seconds)
            await self.write_status()

    async def write_status(self) -> None:
        """Write each status that has changed, until a write fails."""
        if self._seen is None or not self._leads():
            return
        for key, entry in self._objects():
            edition = Edition(entry.uid, entry.value.generation)
            if self._seen.get(key) != edition:
                continue  # not judged yet
            wanted = verdict(
                key,
                edition,
                in_force=self._in_force,
                findings=self._findings,
                digest="" if self.current is None else self.current.digest,
            )
            patch = status_patch(wanted, entry.value.said, self._clock.wall_ns())
            if patch is not None and not await self._write(key, patch):
                return

    async def _write(self, key: ObjectKey, patch: dict[str, object]) -> bool:
        resource = ATTESTATION_POLICIES if key.kind == POLICY else ATTESTATION_CLASSES
        try:
            await self._api.patch(resource, key.name, patch, subresource="status")
        except ApiError as error:
            if error.is_not_found:
                return True
            if not self._is_failing:
                self._log.warning(Event.KUBE_STATUS_FAILED, object=str(key), reason=str(error))
            self._is_failing = True
            return False
        self._is_failing = False
        return True

    def _objects(self) -> PolicyObjects:
        return PolicyObjects(self._policies.cache.objects, self._classes.cache.objects)
