"""What the Kubernetes API refuses with, as values of ours. Pure.

Nothing of an answer is kept but the fields of a `Status` object, cut short and without
what looks like a secret: other bodies come from proxies and may hold anything.
"""

from http import HTTPStatus
from typing import Final

import msgspec

from gpuwarden.redaction import without_secrets

MAX_TEXT: Final = 256
MAX_RETRY_AFTER_S: Final = 60.0
_NO_ANSWER: Final = 0
_WAIT: Final = frozenset({_NO_ANSWER, 401, 403, 408, 429})


class ApiError(Exception):
    """A call failed; `status` is the HTTP status, 0 where there was no answer."""

    def __init__(
        self, text: str, status: int = _NO_ANSWER, reason: str = "", retry_after_s: float = 0.0
    ) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason
        """`Status.reason`, for example AlreadyExists; empty where the body was no Status."""
        self.retry_after_s = retry_after_s
        """How long the server wants us to stay away; 0 where it did not say."""

    @property
    def is_gone(self) -> bool:
        """The resourceVersion or the continue token is too old (410 Expired or Gone)."""
        return self.status == HTTPStatus.GONE

    @property
    def is_conflict(self) -> bool:
        """The object has another resourceVersion, or exists already (409)."""
        return self.status == HTTPStatus.CONFLICT

    @property
    def is_not_found(self) -> bool:
        """There is no such object (404)."""
        return self.status == HTTPStatus.NOT_FOUND

    @property
    def says_wait(self) -> bool:
        """The request was in order and the server could not take it: ask the same again."""
        return self.status in _WAIT or self.status >= HTTPStatus.INTERNAL_SERVER_ERROR


class AnswerTooLargeError(ApiError):
    """The answer is larger than anybody here would read; nothing of it counts."""


class _Details(msgspec.Struct, rename="camel", gc=False):
    retry_after_seconds: float | None = None


class Status(msgspec.Struct, gc=False):
    """meta/v1 Status, as far as it is used."""

    kind: str = ""
    code: int | None = None
    reason: str | None = None
    message: str | None = None
    details: _Details | None = None


_DECODER: Final = msgspec.json.Decoder(Status)


def error_from_answer(status: int, body: bytes, retry_after: str | None = None) -> ApiError:
    """The error behind an answer that is no success."""
    found = _status_in(body)
    wait = _seconds(retry_after)
    if found is None:
        return ApiError(f"the API server answered {status}", status, "", wait)
    if not wait and found.details is not None:
        wait = _bounded(found.details.retry_after_seconds or 0.0)
    return ApiError(
        f"the API server answered {status} {cleaned(found.reason or '')}:"
        f" {cleaned(found.message or '')}",
        status,
        cleaned(found.reason or ""),
        wait,
    )


def error_from_event(body: bytes) -> ApiError:
    """The error behind the object of an ERROR event of a watch."""
    found = _status_in(body)
    return error_from_answer((found.code if found else None) or 500, body)


def cleaned(text: str) -> str:
    """Printable ASCII without secrets, at most MAX_TEXT characters."""
    plain = without_secrets(text[: 4 * MAX_TEXT])
    return "".join(x if x.isascii() and x.isprintable() else "?" for x in plain)[:MAX_TEXT]


def _status_in(body: bytes) -> Status | None:
    try:
        found = _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found if found.kind == "Status" else None


def _seconds(text: str | None) -> float:
    """Of Retry-After; the API server sends whole seconds, a date is not looked at."""
    return _bounded(float(text)) if text and text.isascii() and text.isdigit() else 0.0


def _bounded(seconds: float) -> float:
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S)
