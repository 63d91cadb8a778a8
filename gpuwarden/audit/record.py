"""One line of the audit log: its fields, its limits, and decoding it strictly.

A line is RFC 8785 JSON without its LF. `v` names the format, so that a line is
recognised among others in a collected log. Kinds are no part of the format: a record of a kind that
only another version knows is a record, and nothing may be decided by it but that it is there. Pure:
no IO, no clock.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Self

import msgspec

from gpuwarden.evidence.canonical import canonical_json
from gpuwarden.evidence.strict_json import DecodeError, decode

FORMAT = "gpuwarden.dev/audit/v1"
"""Value of `v`."""
MAX_RECORD_BYTES = 4096
"""Upper bound of a line, without its LF."""
GENESIS = "0" * 64
"""`prev` of the first record of a log."""


class RecordKind(StrEnum):
    """The kinds of record that this version knows, with meanings; docs are made from here.

    What is renamed goes into FORMER_KINDS. `log.*` and `checkpoint` keep their names forever:
    whoever opens or verifies a log goes by them.
    """

    meaning: str
    written: bool
    """Whether this version writes it; what only a later one writes can be read already."""

    def __new__(cls, value: str, meaning: str, written: bool = True) -> Self:  # noqa: FBT001, FBT002 -- written beside its name below
        """Keep the meaning beside the string."""
        kind = str.__new__(cls, value)
        kind._value_ = value
        kind.meaning = meaning
        kind.written = written
        return kind

    EVIDENCE_ACCEPTED = "evidence.accepted", "first, changed or regained acceptance of a node"
    EVIDENCE_REFUSED = (
        "evidence.refused",
        "refused evidence; the same refusal again is counted instead",
    )
    EVIDENCE_REPEATED = (
        "evidence.repeated",
        "repeated acceptances or refusals of one node within an hour: `count`",
    )
    NODE_STATE = (
        "node.state",
        "a node became stale, revoked, quarantined; repeats of an hour: `count`",
    )
    NODE_QUARANTINE = (
        "node.quarantine",
        "change of a quarantine entry in the store: `exists`, `lifted`, or `lost` and rewritten",
    )
    NODE_ENROLLMENT = (
        "node.enrollment",
        "an enrolled GPU gained a fact that was unknown when it was enrolled: `completed`",
    )
    NODE_OPERATOR = "node.operator", "an operator's act, with its reason"
    SPIRE_STATUS = "spire.status", "what the SPIRE server reports of an agent changed"
    FILTER_DECISION = (
        "filter.decision",
        "an answer to the scheduler, counts per code; equal ones of an hour: `count`",
    )
    ADMISSION_DECISION = (
        "admission.decision",
        "a webhook accepted a pod, refused it, or would have; equal refusals of an hour: `count`",
    )
    BIND_DECISION = (
        "bind.decision",
        "an answer of the binding webhook; equal refusals of an hour: `count`",
    )
    API_FINALIZE = (
        "api.finalize",
        "a pod or operator said that a pod is bound; equal refusals of an hour: `count`",
    )
    RESERVATION_RESERVED = "reservation.reserved", "GPUs were reserved; durable before the answer"
    RESERVATION_CONFIRMED = (
        "reservation.confirmed",
        "the pod is bound under the reservation",
    )
    RESERVATION_RELEASING = (
        "reservation.releasing",
        "the pod has ended; its GPUs are kept until the node shows that nothing of it is left",
    )
    RESERVATION_OPERATOR = (
        "reservation.operator",
        "an operator releases a GPU of a silent node, or was refused; durable before it is done",
    )
    RESERVATION_RELEASED = (
        "reservation.released",
        "the GPU is free: by its node, which may be gone for good, or by the operator in `actor`",
    )
    RESERVATION_EXPIRED = "reservation.expired", "nobody came for the GPU"
    RESERVATION_REVOKED = "reservation.revoked", "a reservation was taken back"
    RESERVATION_RESTORED = (
        "reservation.restored",
        "the ledger had lost it: of a live pod (`restored`), or of one that may run (`kept`)",
    )
    RESERVATION_ENDED = (
        "reservation.ended",
        "another replica saw to the end of a reservation that this log has",
    )
    LEDGER_STATE = (
        "ledger.state",
        "the ledger is `unavailable`, `available` again, or older than it was (`rolled-back`)",
    )
    RESERVATION_ALLOCATED = (
        "reservation.allocated",
        "kubelet gave a GPU to a pod by its own choice; a record was made from signed evidence",
    )
    RESERVATION_MISMATCH = (
        "reservation.mismatch",
        "a node shows that a pod has another GPU than it should, or runs without a reservation",
    )
    RESERVATION_UNRESERVED = (
        "reservation.unreserved",
        "a node shows that a GPU is given or used, and no reservation explains it",
    )
    RESERVATION_EVICTED = (
        "reservation.evicted",
        "a pod was evicted because of a mismatch, or could not be",
    )
    USE_IDLE = (
        "use.idle",
        "a reserved GPU has not been used for long (`idle`), or is used or given back (`ended`)",
    )
    USE_ENDED = (
        "use.ended",
        "what a `reservation.mismatch` or `reservation.unreserved` reported is over",
    )
    USE_ACCOUNT = (
        "use.account",
        "GPU time of a namespace since the record before: reserved, and idle of it",
    )
    CONFIG_CHANGE = "config.change", "settings or policy in force, by digest"
    CERTIFICATE_CHANGE = (
        "certificate.change",
        "with managed certificates: an authority came, took over or went, or a leaf was issued",
    )
    EXPORT_REPLAY = (
        "export.replay",
        "somebody had records that could not be exported delivered again",
    )
    LOG_START = (
        "log.start",
        "the log was opened; `healed` is what a crash left, `unsigned` what no checkpoint covers",
    )
    LOG_ROTATE = (
        "log.rotate",
        "first record of a further file; `deleted` names files past retention",
    )
    LOG_STOP = "log.stop", "the log was closed in order"
    LOG_KEY = "log.key", "the key of checkpoints changed"
    LOG_GAP = "log.gap", "records were lost (`lost`), or an outage ended (`cause`)"
    LOG_ALARM = "log.alarm", "an agent accuses a log, with the two checkpoints that it saw"
    CHECKPOINT = "checkpoint", "a signed checkpoint over all records before it"


FORMER_KINDS: Final[Mapping[str, RecordKind]] = MappingProxyType(
    {
        "evidence.round": RecordKind.EVIDENCE_REPEATED,
        "node.denial": RecordKind.NODE_QUARANTINE,
        "reservation.adopted": RecordKind.RESERVATION_RESTORED,
        "reservation.offbook": RecordKind.RESERVATION_UNRESERVED,
        "reservation.settled": RecordKind.RESERVATION_ALLOCATED,
    }
)
"""What earlier versions called a kind. Records are never changed, so logs keep these."""

RESERVATION_BEGINS: Final = frozenset(
    {
        RecordKind.RESERVATION_RESERVED,
        RecordKind.RESERVATION_CONFIRMED,
        RecordKind.RESERVATION_RELEASING,
        RecordKind.RESERVATION_RESTORED,
        RecordKind.RESERVATION_ALLOCATED,
    }
)
"""Kinds that say of a reservation that it is there."""
RESERVATION_ENDS: Final = frozenset(
    {
        RecordKind.RESERVATION_RELEASED,
        RecordKind.RESERVATION_EXPIRED,
        RecordKind.RESERVATION_REVOKED,
        RecordKind.RESERVATION_ENDED,
    }
)
"""Kinds that say that a reservation has come to its end."""


class RecordError(Exception):
    """The line is not a record; the message is why."""


class LogRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record as it is in the log."""

    v: str
    seq: int
    ts: str
    """RFC 3339, UTC, milliseconds: the controller's wall clock when it happened."""
    boot: str
    """Boot id of the machine."""
    origin: str
    """Whose log this is: cluster/replica."""
    instance: str
    """Id of the process that wrote it."""
    kind: str
    actor: str
    subject: str
    decision: str
    codes: tuple[str, ...]
    refs: dict[str, Any]
    prev: str
    """SHA-256 of the line before, or GENESIS."""


def known_kind(record: LogRecord) -> RecordKind | None:
    """The kind by its name of now; None for one that only another version knows."""
    return _KINDS.get(record.kind)


def names_of(kind: RecordKind) -> tuple[str, ...]:
    """What records of a kind may have as theirs: its name, and those that it had before."""
    return tuple(name for name, now in _KINDS.items() if now is kind)


def last_refs(record: LogRecord) -> dict[str, Any] | None:
    """Of a record that counts many alike: the references of the last of them."""
    last = record.refs.get("last")
    return last if isinstance(last, dict) else None


_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}")
_KINDS: Final[Mapping[str, RecordKind]] = {**FORMER_KINDS, **{x.value: x for x in RecordKind}}
_KIND = re.compile(r"[a-z][a-z0-9-]*(?:\.[a-z][a-z0-9-]*)*")
MAX_KIND = 64


_DECODER = msgspec.json.Decoder(LogRecord)
_ENCODER = msgspec.json.Encoder(order="sorted")
_STRINGS = re.compile(rb'"[^"]*"')
_NOT_PLAIN = re.compile(rb"[0-9][.eE]|[0-9]{16}|-0")
_PLAIN_BRACKETS = 16


def decode_record(line: bytes) -> LogRecord:
    """Decode one line without its LF; raises RecordError unless it is exactly a record.

    It may be of any kind: see `known_kind`.
    """
    record = _decode_plain(line)
    if record is None:
        record = _decode_strictly(line)
    if record.v != FORMAT:
        raise RecordError(f"v must be {FORMAT!r}")
    if record.seq < 1:
        raise RecordError("seq must be at least 1")
    if not _TIMESTAMP.fullmatch(record.ts):
        raise RecordError("ts must be RFC 3339 in UTC with milliseconds")
    if len(record.kind) > MAX_KIND or not _KIND.fullmatch(record.kind):
        raise RecordError("kind must be lower-case words such as 'node.state'")
    if not _DIGEST.fullmatch(record.prev):
        raise RecordError("prev must be 64 lower-case hex digits")
    return record


def _decode_plain(line: bytes) -> LogRecord | None:
    """Decode a line in which nothing needs care, ten times as fast; None means look closely.

    In ASCII without escapes, floats, large integers and deep nesting, a line that
    msgspec writes back as it was is canonical: sorted, compact, no key twice.
    """
    if len(line) > MAX_RECORD_BYTES or b"\\" in line or not line.isascii():
        return None
    rest = _STRINGS.sub(b"", line)
    if rest.count(b"{") + rest.count(b"[") > _PLAIN_BRACKETS or _NOT_PLAIN.search(rest):
        return None
    try:
        record = _DECODER.decode(line)
    except msgspec.MsgspecError:
        return None
    return record if _ENCODER.encode(record) == line else None


def _decode_strictly(line: bytes) -> LogRecord:
    try:
        record = decode(line, LogRecord, max_bytes=MAX_RECORD_BYTES)
    except DecodeError as error:
        raise RecordError(str(error)) from None
    if canonical_json(record) != line:
        raise RecordError("not in canonical form (RFC 8785)")
    return record
