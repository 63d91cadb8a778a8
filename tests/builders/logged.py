"""Records as they come back from an audit log."""

from controller.audit.sealing import LogIdentity, Sealer
from controller.record import Record
from gpuwarden.audit.chain import BEFORE_FIRST
from gpuwarden.audit.record import LogRecord, decode_record

_SEALER = Sealer(LogIdentity("lab/a", "boot", "instance"))


def logged(*records: Record) -> list[LogRecord]:
    """Each as it stands in a log."""
    return [decode_record(_SEALER.seal(x, 0, BEFORE_FIRST).line) for x in records]
