"""Where the parts of a support bundle come from; all of it answers from memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from controller.audit.durable_log import Condition
from controller.audit.notary import Published
from controller.conditions import Conditions
from controller.fleet.view import FleetSnapshot
from controller.support.recent_refusals import RecentRefusal
from gpuwarden.settings.loader import Loaded


class Streams(Protocol):
    """Open attestation streams."""

    def counts(self) -> Mapping[str, int]:
        """How many of each node."""


class Refusals(Protocol):
    """What was refused lately."""

    def newest_first(self) -> tuple[RecentRefusal, ...]:
        """All that is known."""


class AuditState(Protocol):
    """How the audit log is doing."""

    @property
    def condition(self) -> Condition:
        """Whether it can be written."""

    @property
    def waiting(self) -> int:
        """Records that wait to be written."""

    @property
    def published(self) -> Published | None:
        """The last checkpoint."""


class Alarms(Protocol):
    """What agents say against audit logs."""

    def accusing(self) -> Mapping[str, tuple[str, ...]]:
        """Node -> codes of its alarms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportPorts:
    """One for the process."""

    loaded: Loaded[Any]
    conditions: Conditions
    fleet: Callable[[], FleetSnapshot]
    """The fleet with what only the directory knows."""
    streams: Streams
    refusals: Refusals
    alarms: Alarms
    audit: AuditState
    store_facts: Callable[[], Mapping[str, str | int | bool]]
    metrics: Callable[[], bytes]
