"""Documents.

Holds: record document, reservation document.
"""

from typing import Final

import msgspec

from controller.fleet.enrollment import EnrollmentRecord
from controller.ledger.record import GpuRecord
from controller.ledger.record import RecordInvalidError as ReservationDocumentRecordInvalidError

# --- record document
# An enrolment record as text and back. Pure; equal records have equal texts.
#
# The text is all that compare-and-set compares. A text that would not be written the
# same way again (a field of a newer version, an edit by hand) is refused, not repaired.

VERSION: Final = 1
"""Of this form; a new field is a new version, with a migration of what is stored."""

_NOTHING_LIFTED: Final = ',"lifted_ns":null}'
"""Left out, so that a record of a node that was never released reads as it always did."""
_ENCODER: Final = msgspec.json.Encoder(order="deterministic")
_DECODER_RECORD_DOCUMENT: Final = msgspec.json.Decoder(EnrollmentRecord, strict=True)


class RecordInvalidError(ValueError):
    """The text is no record of this version."""


def encode_record(record: EnrollmentRecord) -> str:
    """The one text of a record."""
    text = _ENCODER.encode(record).decode()
    return text if record.lifted_ns is not None else f"{text.removesuffix(_NOTHING_LIFTED)}}}"


def decode_record(text: str) -> EnrollmentRecord:
    """The record behind a text; raises RecordInvalidError for anything but `encode_record`'s."""
    try:
        record = _DECODER_RECORD_DOCUMENT.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        raise RecordInvalidError(f"no enrolment record of version {VERSION}: {error}") from None
    if encode_record(record) != text:
        raise RecordInvalidError(f"not in the form of version {VERSION}")
    return record


# --- reservation document
# A GPU's reservation record as text and back. Pure; equal records have equal texts.
#
# A text that would not be written the same way again (a field of a newer version, an edit by
# hand), or that holds what the ledger never makes, is refused, not repaired.

_DECODER_RESERVATION_DOCUMENT: Final = msgspec.json.Decoder(GpuRecord, strict=True)


def encode_reservation(record: GpuRecord) -> str:
    """The one text of a record."""
    return _ENCODER.encode(record).decode()


def decode_reservation(text: str) -> GpuRecord:
    """The record behind a text; raises TextInvalidError for anything but `encode`'s."""
    try:
        record = _DECODER_RESERVATION_DOCUMENT.decode(text)
        record.demand_valid()
    except (
        msgspec.MsgspecError,
        ReservationDocumentRecordInvalidError,
        UnicodeEncodeError,
        RecursionError,
    ) as error:
        raise RecordInvalidError(f"no reservation of version {VERSION}: {error}") from None
    if encode_reservation(record) != text:
        raise RecordInvalidError(f"not in the form of version {VERSION}")
    return record
