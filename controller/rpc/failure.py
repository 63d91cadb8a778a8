"""A refusal as a gRPC status: the one place where reason codes become status codes.

Clients get the reason code in trailing metadata (`gpuwarden/wire/error_metadata.py`)
and in front of the message. Must not decide anything.
"""

from typing import NoReturn, Protocol

import grpc

from gpuwarden.reasons import STEP_OF, ReasonCode, Refusal
from gpuwarden.wire.error_metadata import FIELD_KEY, REASON_KEY

_LAST_IDENTITY_STEP = 4
_LAST_ROLE_STEP = 5
_LIMIT_STEP = 1

_STATUS: dict[ReasonCode, grpc.StatusCode] = {
    ReasonCode.ROLE_DENIED: grpc.StatusCode.PERMISSION_DENIED,
    ReasonCode.REQ_INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    ReasonCode.NODE_UNKNOWN: grpc.StatusCode.NOT_FOUND,
    ReasonCode.CLASS_UNKNOWN: grpc.StatusCode.NOT_FOUND,
    ReasonCode.POD_UNKNOWN: grpc.StatusCode.NOT_FOUND,
    ReasonCode.CONTROLLER_NOT_READY: grpc.StatusCode.UNAVAILABLE,
    ReasonCode.AUDIT_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ReasonCode.ENROLLMENT_STALE: grpc.StatusCode.UNAVAILABLE,
    ReasonCode.DIRECTORY_STALE: grpc.StatusCode.UNAVAILABLE,
    ReasonCode.STREAM_SUPERSEDED: grpc.StatusCode.ABORTED,
    ReasonCode.MSG_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ReasonCode.MSG_MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,
    ReasonCode.TYPE_UNEXPECTED: grpc.StatusCode.INVALID_ARGUMENT,
    ReasonCode.PROTOCOL_UNSUPPORTED: grpc.StatusCode.UNIMPLEMENTED,
}


class AbortableContext(Protocol):
    """What this module needs of a `grpc.aio.ServicerContext`."""

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: tuple[tuple[str, str], ...] = (),
    ) -> NoReturn:
        """End the call with a status."""


def status_of(code: ReasonCode) -> grpc.StatusCode:
    """The gRPC status that fits a reason code."""
    if code in _STATUS:
        return _STATUS[code]
    step = STEP_OF.get(code, 0)
    if step == _LIMIT_STEP:
        return grpc.StatusCode.RESOURCE_EXHAUSTED
    if _LIMIT_STEP < step <= _LAST_IDENTITY_STEP:
        return grpc.StatusCode.UNAUTHENTICATED
    if step == _LAST_ROLE_STEP:
        return grpc.StatusCode.PERMISSION_DENIED
    return grpc.StatusCode.FAILED_PRECONDITION


async def abort_with(context: AbortableContext, refusal: Refusal, *, field: str = "") -> NoReturn:
    """End the call with the status, message and metadata of `refusal`; never returns."""
    metadata: tuple[tuple[str, str], ...] = ((REASON_KEY, refusal.code.value),)
    if field:
        metadata = (*metadata, (FIELD_KEY, field))
    text = f"{refusal.code}: {refusal.detail}" if refusal.detail else refusal.code.value
    await context.abort(status_of(refusal.code), text, metadata)
