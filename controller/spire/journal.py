"""Tells log, metrics and audit about the SPIRE server: polls, changed agents, our rights.

Implements the poller's observer. Must not decide anything, and must return at once.
"""

from collections import Counter
from typing import Final

from controller.audit.log import AuditLog
from controller.audit.record import Record
from controller.spire.changes import ChangedAgent, changed_agents
from controller.spire.own_standing import ADMIN_WARNING
from controller.spire.server_client import SpireFailure
from controller.spire.snapshot import SpireSnapshot
from gpuwarden.audit.record import RecordKind
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

MAX_LISTED: Final = 8
"""Agents named per record and line; all are counted."""
_ACTOR: Final = "spire-server"


class SpireJournal:
    """One for the process; one event loop."""

    def __init__(self, instruments: Instruments, audit: AuditLog) -> None:
        self._polls = instruments.counter(names.SPIRE_POLLS)
        self._seconds = instruments.histogram(names.SPIRE_POLL_SECONDS)
        self._agents = instruments.gauge(names.SPIRE_AGENTS)
        self._available = instruments.gauge(names.SPIRE_AVAILABLE)
        self._audit = audit
        self._log = logger("spire")
        self._trouble = "not asked yet"

    def taken(self, before: SpireSnapshot | None, after: SpireSnapshot, seconds: float) -> None:
        """A whole snapshot was taken."""
        self._polls.labels("taken").inc()
        self._seconds.observe(seconds)
        self._available.set(1)
        banned = sum(x.banned for x in after.agents.values())
        self._agents.labels("banned").set(banned)
        self._agents.labels("attested").set(len(after.agents) - banned)
        if self._trouble:
            self._trouble = ""
            self._log.info(
                Event.SPIRE_AVAILABLE, agents=len(after.agents), entries=len(after.entries)
            )
        if before is not None:
            self._changed(tuple(changed_agents(before, after)))

    def failed(self, failure: SpireFailure, text: str) -> None:
        """A poll failed; each cause is told once."""
        self._polls.labels(failure.value).inc()
        self._available.set(0)
        if text != self._trouble:
            self._trouble = text
            self._log.error(Event.SPIRE_UNAVAILABLE, reason=text)

    def excessive(self) -> None:
        """The server lets us do more than read."""
        self._log.warning(Event.CONFIG_INSECURE, warning=ADMIN_WARNING)

    def _changed(self, changed: tuple[ChangedAgent, ...]) -> None:
        """One line and one record per kind of change, however many agents it met."""
        for kind, count in Counter(x.change for x in changed).items():
            agents = [x.agent_id for x in changed if x.change is kind][:MAX_LISTED]
            self._log.info(
                Event.SPIRE_AGENTS_CHANGED, change=kind.value, count=count, agents=agents
            )
            self._audit.note(
                Record(
                    RecordKind.SPIRE_STATUS,
                    actor=_ACTOR,
                    subject="spire-agents",
                    decision=kind.value,
                    refs={"count": count, "agents": tuple(agents)},
                )
            )
