"""Puts the audit log of a replica together from its settings."""

from dataclasses import asdict
from functools import partial

from controller.audit.copies import Copies
from controller.audit.disk import Disk, SystemDisk
from controller.audit.durable_log import DurableLog
from controller.audit.file_store import FileStore
from controller.audit.record import Json
from controller.audit.reporting import Reporting
from controller.audit.reserve import Reserve
from controller.audit.sealing import LogIdentity
from controller.audit.writer import Opened
from gpuwarden.clock import Clock
from gpuwarden.settings.controller import AuditSettings
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

STANDARD_OUTPUT = 1


def audit_log(
    settings: AuditSettings,
    identity: LogIdentity,
    clock: Clock,
    instruments: Instruments,
    *,
    copies_to: int | None = STANDARD_OUTPUT,
) -> DurableLog:
    """Make the log, not yet opened; `copies_to` is the descriptor for the collector's copies."""
    copies = partial(Copies, copies_to) if copies_to is not None else None
    return DurableLog(
        partial(open_files, settings, identity.origin, clock, SystemDisk()),
        identity,
        clock,
        Reporting(instruments, copies),
        rotate_bytes=settings.rotate_bytes,
    )


def open_files(settings: AuditSettings, origin: str, clock: Clock, disk: Disk) -> Opened:
    """Open the folder's log; raises OSError, LogBrokenError."""
    store = FileStore(settings.dir, origin, disk)
    refs: dict[str, Json] = {"after": str(store.head), "file": store.file}
    if store.healed is not None:
        refs["healed"] = asdict(store.healed)
        logger("audit").warning(Event.AUDIT_HEALED, **asdict(store.healed))
    logger("audit").info(Event.AUDIT_OPENED, head=str(store.head), file=store.file)

    def expired(changed: float) -> bool:
        return changed < (clock.wall_ns() - settings.retention.ns) / 1e9

    return Opened(
        store,
        Reserve(settings.dir, settings.reserve, disk),
        refs,
        partial(store.delete_finished, expired),
    )
