"""The policy that decisions use now, and the task that takes a changed file into force.

A wrong file is refused as a whole and the old policy stays. Must not judge policies
itself; `policy_file` does.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from controller.audit.log import AuditLog
from controller.audit.record import Record
from controller.policy import DEFAULT_POLICY, Policy
from controller.policy_file import PolicyChange, PolicyFile
from gpuwarden.audit.record import RecordKind
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

_SHOWN_FINDINGS: Final = 10


class PolicyInForce:
    """One for the process. Without a file nothing is demanded, for ever."""

    def __init__(
        self,
        file: PolicyFile | None,
        *,
        audit: AuditLog,
        instruments: Instruments,
        changed: Callable[[Policy], None],
    ) -> None:
        self._file = file
        self._audit = audit
        self._reloads = instruments.counter(names.POLICY_RELOADS)
        self._changed = changed
        self._log = logger("policy")

    @property
    def current(self) -> Policy:
        """What counts now; the same object until it changes."""
        return DEFAULT_POLICY if self._file is None else self._file.current

    async def follow(self, every_s: float) -> None:
        """Look at the file again and again, until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            await self.look()

    async def look(self) -> None:
        """Take a changed file into force, or say what is wrong with it."""
        if self._file is None:
            return
        change = await asyncio.to_thread(self._file.refresh)
        if change is not None:
            self._take(change)

    def _take(self, change: PolicyChange) -> None:
        if change.policy is None:
            findings = [str(finding) for finding in change.findings[:_SHOWN_FINDINGS]]
            self._reloads.labels("refused").inc()
            self._log.error(Event.POLICY_REFUSED, findings=findings)
            return
        self._reloads.labels("taken").inc()
        self._log.info(Event.POLICY_LOADED, digest=change.policy.digest)
        self._audit.note(policy_record(change.policy))
        self._changed(change.policy)


def policy_file(path: Path | None, *, opaque_hashes: bool) -> PolicyFile | None:
    """Read the file at start; raises PolicyInvalidError when it is no policy."""
    return None if path is None else PolicyFile(path, opaque_hashes=opaque_hashes)


def policy_record(policy: Policy) -> Record:
    """A policy came into force."""
    return Record(
        RecordKind.CONFIG_CHANGE,
        actor="controller",
        subject="policy",
        decision="in-force",
        refs={"policy": policy.digest},
    )
