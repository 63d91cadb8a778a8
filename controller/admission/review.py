"""AdmissionReview on the wire (admission.k8s.io/v1, and v1beta1, which has the same shape).

An answer is well-formed whatever was decided, in the version of the question, with the request's
uid: the API server takes anything else for a failed call. Must not decide anything.
"""

import base64
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec

from controller.placement.refusals import message
from gpuwarden.policy.texts import shown
from gpuwarden.reasons import ReasonCode, Refusal

# --- JSON Patch (RFC 6902): the operations of a patch


class Verb(StrEnum):
    """`op`."""

    ADD = "add"
    """A new member or element; `-` appends; an object's member that exists is replaced."""
    REPLACE = "replace"
    REMOVE = "remove"


Value = str | int | bool | None | list["Value"] | dict[str, "Value"]
"""What a patch can hold."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation; `value` is not written for a removal."""

    op: Verb
    path: str
    """A JSON Pointer (RFC 6901)."""
    value: Value = None


END: Final = "-"
"""The place behind an array's last element."""


def pointer(*tokens: str | int) -> str:
    """A JSON Pointer: `~` and `/` inside a token are escaped."""
    return "".join(
        [f"/{token}" if isinstance(token, int) else f"/{_escaped(token)}" for token in tokens]
    )


def _escaped(token: str) -> str:
    return token.replace("~", "~0").replace("/", "~1")


def encode_patch(operations: Iterable[Operation]) -> bytes:
    """The patch as a JSON array."""
    return msgspec.json.encode([_document(each) for each in operations])


def _document(operation: Operation) -> dict[str, Value]:
    document: dict[str, Value] = {"op": operation.op.value, "path": operation.path}
    if operation.op is not Verb.REMOVE:
        document["value"] = operation.value
    return document


# --- AdmissionReview

Body = bytes | bytearray | memoryview

_VERSIONS: Final = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
_KIND: Final = "AdmissionReview"
_MAX_WARNING_CHARS: Final = 256
"""The API server cuts longer ones, and drops what exceeds 4 KiB in all."""
_MAX_WARNINGS: Final = 8
_MAX_MESSAGE_CHARS: Final = 2048
_BAD_REQUEST: Final = 400
_FORBIDDEN: Final = 403
_TOO_MANY: Final = 429
_FAILED: Final = 500
_UNAVAILABLE: Final = 503
NO_OBJECT: Final = msgspec.Raw(b"null")
_Name = Annotated[str, msgspec.Meta(max_length=1024)]


class ReviewError(ValueError):
    """The body is no AdmissionReview; the text quotes nothing of it but a version."""


class _Object(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Parent of the structs below."""


class Requester(_Object, frozen=True, gc=False):
    """Who made the request to the API server.

    Names as long as whoever authenticates makes them: they are cut where they are written.
    """

    username: str = ""
    groups: tuple[str, ...] | None = None


class ResourceName(_Object, frozen=True, gc=False):
    """GroupVersionResource."""

    group: _Name = ""
    version: _Name = ""
    resource: _Name = ""


class AdmissionRequest(_Object, frozen=True, gc=False):
    """What the API server asks about."""

    uid: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    resource: ResourceName = ResourceName()
    sub_resource: _Name = ""
    name: _Name = ""
    """Empty at the creation of an object whose name is generated."""
    namespace: _Name = ""
    operation: _Name = ""
    user_info: Requester = Requester()
    object: msgspec.Raw = NO_OBJECT
    """As it is to be stored; not decoded here."""
    old_object: msgspec.Raw = NO_OBJECT
    dry_run: bool | None = None


class _Review(_Object, frozen=True, gc=False):
    api_version: _Name = ""
    kind: _Name = ""
    request: AdmissionRequest | None = None


@dataclass(frozen=True, slots=True)
class Review:
    """A request with the version in which it wants to be answered."""

    api_version: str
    request: AdmissionRequest


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one request; `refusals` refuse it, the first code first."""

    refusals: tuple[Refusal, ...] = ()
    patch: Sequence[Operation] = ()
    """Of a request that is admitted."""
    warnings: tuple[str, ...] = ()
    """Shown to whoever made the request."""
    result: str = "untouched"
    """A word for metrics: untouched, patched, admitted, refused, reported or failed."""


AdmissionHandler = Callable[[AdmissionRequest], Coroutine[Any, Any, Verdict]]
"""Decides about one kind of request.

It is cancelled at the deadline of the webhook. An exception refuses the request; it is logged,
and the caller does not learn what it was.
"""


_REVIEW = msgspec.json.Decoder(_Review)


def decode_review(body: Body) -> Review:
    """Decode an AdmissionReview; raises ReviewError."""
    try:
        review = _REVIEW.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        place = error if isinstance(error, msgspec.ValidationError) else "no JSON"
        raise ReviewError(f"not an AdmissionReview: {place}") from None
    if review.kind != _KIND or review.api_version not in _VERSIONS:
        version = shown(f"{review.api_version}/{review.kind}")
        expected = f"{_VERSIONS[0]}/{_KIND}"
        raise ReviewError(f"not an AdmissionReview: {version}, expected {expected}")
    if review.request is None:
        raise ReviewError("not an AdmissionReview: no request")
    return Review(review.api_version, review.request)


def encode_answer(review: Review, verdict: Verdict) -> bytes:
    """The AdmissionReview that answers it."""
    response: dict[str, object] = {
        "uid": review.request.uid,
        "allowed": not verdict.refusals,
    }
    if verdict.refusals:
        response["status"] = _status(verdict.refusals)
        response["auditAnnotations"] = {"codes": ",".join(codes_of(verdict.refusals))}
    elif verdict.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(encode_patch(verdict.patch)).decode()
    if verdict.warnings:
        cut = [text[:_MAX_WARNING_CHARS] for text in verdict.warnings[:_MAX_WARNINGS]]
        response["warnings"] = cut
    answer = {"apiVersion": review.api_version, "kind": _KIND, "response": response}
    return msgspec.json.encode(answer)


def encode_unread(code: int, text: str) -> bytes:
    """Encode the answer to a request in which no review could be read, so without its UID."""
    status = {"status": "Failure", "code": code, "message": text}
    response = {"uid": "", "allowed": False, "status": status}
    return msgspec.json.encode({"apiVersion": _VERSIONS[0], "kind": _KIND, "response": response})


def codes_of(refusals: Sequence[Refusal]) -> tuple[str, ...]:
    """Each code once, in order."""
    return tuple(dict.fromkeys(refusal.code.value for refusal in refusals))


_CODES: Final = {
    ReasonCode.REQ_INVALID: _BAD_REQUEST,
    ReasonCode.ADMISSION_FAILED: _FAILED,
    ReasonCode.GPU_BUSY: _TOO_MANY,
    ReasonCode.GPU_LOST: _TOO_MANY,
    ReasonCode.LEDGER_CONFLICT: _TOO_MANY,
    ReasonCode.RESERVATION_PENDING: _TOO_MANY,
    ReasonCode.CONTROLLER_NOT_READY: _UNAVAILABLE,
    ReasonCode.LEDGER_UNAVAILABLE: _UNAVAILABLE,
    ReasonCode.AUDIT_UNAVAILABLE: _UNAVAILABLE,
}
"""HTTP statuses that say more than that it is forbidden. Without a number of seconds: a client
would wait for those and try again by itself, in the middle of what it was doing."""
_REASONS: Final = {
    _BAD_REQUEST: "BadRequest",
    _FORBIDDEN: "Forbidden",
    _TOO_MANY: "TooManyRequests",
    _FAILED: "InternalError",
    _UNAVAILABLE: "ServiceUnavailable",
}


def _status(refusals: Sequence[Refusal]) -> dict[str, object]:
    code = _CODES.get(refusals[0].code, _FORBIDDEN)
    text = "; ".join(map(message, refusals))
    if len(text) > _MAX_MESSAGE_CHARS:
        text = text[: _MAX_MESSAGE_CHARS - 1] + "…"
    return {"status": "Failure", "code": code, "reason": _REASONS[code], "message": text}


def reported(refusals: tuple[Refusal, ...]) -> Verdict:
    """The verdict in report-only mode: what would be refused is admitted with warnings."""
    warnings = tuple(f"would be denied: {message(refusal)}" for refusal in refusals)
    return Verdict(warnings=warnings, result="reported")
