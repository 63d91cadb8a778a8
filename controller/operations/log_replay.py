"""Reads what this replica's audit log holds from before its start, off the event loop."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from controller.binding.use_records import LOGGED_KINDS, RememberedUse, remembered_use
from controller.fleet.enrollment import QuarantineEntry
from controller.ledger.restore import Grants
from controller.operations.logged import (
    QUARANTINE_KINDS,
    RESERVATION,
    open_grants,
    quarantine_entries,
)
from gpuwarden.audit.reading import recent_records
from gpuwarden.audit.record import LogRecord
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.names import Event

T = TypeVar("T")


class LogReplay:
    """One per process. A log that cannot be read raises OSError, which is logged once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = logger("audit")
        self._reported = ""

    async def denials(self) -> Mapping[str, QuarantineEntry]:
        """Quarantine entries in force, by node."""
        return await self._read(QUARANTINE_KINDS, quarantine_entries)

    async def grants(self) -> Grants:
        """Reservations without an end."""
        return await self._read((RESERVATION,), open_grants)

    async def use(self) -> RememberedUse:
        """Idle GPUs, accounts of namespaces, mismatches and unreserved use."""
        return await self._read(LOGGED_KINDS, remembered_use)

    async def _read(self, prefixes: tuple[str, ...], fold: Callable[[Iterable[LogRecord]], T]) -> T:
        try:
            return await asyncio.to_thread(lambda: fold(recent_records(self._folder, prefixes)))
        except OSError as error:
            if str(error) != self._reported:
                self._log.error(Event.AUDIT_REPLAY_FAILED, reason=str(error))
            self._reported = str(error)
            raise
