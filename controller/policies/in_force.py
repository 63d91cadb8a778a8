"""The policy that decisions use now, and the task that takes a changed one into force.

It comes from a file or from the cluster. An invalid one is refused as a whole and the old policy
stays; before the first valid one nothing may be decided. Must not judge policies: `file` does.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from controller.policies.file import PolicyChange
from controller.policy import DEFAULT_POLICY, Policy
from controller.record import AuditLog, Record
from gpuwarden.audit.record import RecordKind
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

_SHOWN_FINDINGS: Final = 10


class PolicySource(Protocol):
    """Where the policy comes from: `PolicyFile` or `ClusterPolicy`."""

    @property
    def current(self) -> Policy | None:
        """The last valid one; None before the first."""

    async def poll(self) -> PolicyChange | None:
        """What has changed since the last poll, if anything has."""


class PolicyInForce:
    """One for the process. Without a source nothing is ever demanded."""

    def __init__(
        self,
        source: PolicySource | None,
        *,
        audit: AuditLog,
        instruments: Instruments,
        changed: Callable[[Policy], None],
    ) -> None:
        self._source = source
        self._audit = audit
        self._reloads = instruments.counter(names.POLICY_RELOADS)
        self._changed = changed
        self._log = logger("policy")
        self._fault = "not read yet"

    @property
    def current(self) -> Policy:
        """What counts now; the same object until it changes. Of no use while `unknown`."""
        found = None if self._source is None else self._source.current
        return DEFAULT_POLICY if found is None else found

    @property
    def unknown(self) -> str | None:
        """Why it is not known yet what counts; None once it is known."""
        is_known = self._source is None or self._source.current is not None
        return None if is_known else self._fault

    async def run(self, every_s: float) -> None:
        """Reload again and again; ends by cancellation only."""
        while True:
            await asyncio.sleep(every_s)
            await self.reload()

    async def reload(self) -> None:
        """Take a changed policy into force, or log what is wrong with it."""
        if self._source is None:
            return
        change = await self._source.poll()
        if change is not None:
            self._take(change)

    def _take(self, change: PolicyChange) -> None:
        if change.policy is None:
            findings = [str(finding) for finding in change.findings[:_SHOWN_FINDINGS]]
            self._fault = findings[0] if findings else self._fault
            self._reloads.labels("refused").inc()
            self._log.error(Event.POLICY_REFUSED, findings=findings)
            return
        self._reloads.labels("taken").inc()
        self._log.info(Event.POLICY_LOADED, digest=change.policy.digest)
        self._audit.note(policy_record(change.policy))
        self._changed(change.policy)


def policy_record(policy: Policy) -> Record:
    """A policy came into force."""
    return Record(
        RecordKind.CONFIG_CHANGE,
        actor="controller",
        subject="policy",
        decision="in-force",
        refs={"policy": policy.digest},
    )
