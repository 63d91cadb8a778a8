"""One line of the audit log: its fields, its limits, and decoding it strictly.

A line is RFC 8785 JSON without its LF. `v` names the format, so that a line is
recognised among others in a collected log. Pure: no IO, no clock.
"""

from enum import StrEnum

FORMAT = "gpuwarden.dev/audit/v1"
"""Value of `v`."""
MAX_RECORD_BYTES = 4096
"""Upper bound of a line, without its LF."""
GENESIS = "0" * 64
"""`prev` of the first record of a log."""


class RecordKind(StrEnum):
    """What a record is about; a closed set."""

    EVIDENCE_ACCEPTED = "evidence.accepted"
    EVIDENCE_REFUSED = "evidence.refused"
    EVIDENCE_ROUND = "evidence.round"
    """Unchanged accepted rounds, or repeated refusals, of one node within an hour, as a count."""
    NODE_STATE = "node.state"
    NODE_OPERATOR = "node.operator"
    SPIRE_STATUS = "spire.status"
    FILTER_DECISION = "filter.decision"
    BIND_DECISION = "bind.decision"
    RESERVATION_RESERVED = "reservation.reserved"
    RESERVATION_CONFIRMED = "reservation.confirmed"
    RESERVATION_RELEASED = "reservation.released"
    RESERVATION_EXPIRED = "reservation.expired"
    RESERVATION_REVOKED = "reservation.revoked"
    CONFIG_CHANGE = "config.change"
    LOG_START = "log.start"
    LOG_ROTATE = "log.rotate"
    LOG_STOP = "log.stop"
    LOG_KEY = "log.key"
    LOG_GAP = "log.gap"
    """How many records could not be kept since the record before."""
    CHECKPOINT = "checkpoint"
