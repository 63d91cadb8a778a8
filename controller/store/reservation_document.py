"""A GPU's reservation record as text and back. Pure; equal records have equal texts.

A text that would not be written the same way again (a field of a newer version, an edit by
hand), or that holds what the ledger never makes, is refused, not repaired.
"""

from typing import Final

import msgspec

from controller.ledger.record import GpuRecord, RecordInvalidError
from controller.store.record_document import RecordInvalidError as TextInvalidError

VERSION: Final = 1
"""Of this form; a new field is a new version, with a migration of what is stored."""

_ENCODER: Final = msgspec.json.Encoder(order="deterministic")
_DECODER: Final = msgspec.json.Decoder(GpuRecord, strict=True)


def encode_reservation(record: GpuRecord) -> str:
    """The one text of a record."""
    return _ENCODER.encode(record).decode()


def decode_reservation(text: str) -> GpuRecord:
    """The record behind a text; raises TextInvalidError for anything but `encode`'s."""
    try:
        record = _DECODER.decode(text)
        record.demand_valid()
    except (
        msgspec.MsgspecError,
        RecordInvalidError,
        UnicodeEncodeError,
        RecursionError,
    ) as error:
        raise TextInvalidError(f"no reservation of version {VERSION}: {error}") from None
    if encode_reservation(record) != text:
        raise TextInvalidError(f"not in the form of version {VERSION}")
    return record
