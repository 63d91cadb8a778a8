"""Reads the body of `POST /finalize`. Pure; the body is bounded already."""

from typing import Any, Final

import msgspec

from controller.http_api.documents import FinalizeRequest
from gpuwarden.evidence.strict_json import quote

FIELDS: Final = tuple(x.encode_name for x in msgspec.structs.fields(FinalizeRequest))
"""In the order in which missing ones are named."""
_SHOWN: Final = 80
_AT: Final = " - at `$."


class FinalizeRequestError(ValueError):
    """The body is no request; names what is missing, or the field and what was expected."""


def read_finalize(body: bytes | bytearray | memoryview) -> FinalizeRequest:
    """The request in a body; raises FinalizeRequestError.

    What is no JSON object lacks every field. A field that is no text, or blank, is missing.
    Other fields are not looked at.
    """
    found = _object(body)
    missing = [x for x in FIELDS if not _is_text(found.get(x))]
    if missing:
        raise FinalizeRequestError(f"missing required fields: {', '.join(missing)}")
    try:
        return msgspec.convert(found, FinalizeRequest)
    except msgspec.ValidationError as error:
        raise FinalizeRequestError(_named(str(error), found)) from None


def _object(body: bytes | bytearray | memoryview) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _named(text: str, found: dict[str, Any]) -> str:
    """`Expected … - at `$.uid`` -> `uid: '…', expected …`."""
    expected, _, place = text.partition(_AT)
    field = place.rstrip("`")
    return f"{field}: {quote(found[field], _SHOWN)}, {expected[:1].lower()}{expected[1:]}"
