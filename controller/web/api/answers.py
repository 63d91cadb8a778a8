"""Answers of the HTTP API as JSON: what was asked for, or why there is none."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import web

from controller.web.api.documents import Problem
from controller.web.api.operations import RETRIED
from gpuwarden.reasons import ReasonCode, Refusal

_JSON: Final = "application/json"
_STATUS: Final = {
    ReasonCode.ROLE_DENIED: HTTPStatus.FORBIDDEN,
    ReasonCode.LIMIT_RATE: HTTPStatus.TOO_MANY_REQUESTS,
    ReasonCode.RESERVATION_UNKNOWN: HTTPStatus.NOT_FOUND,
    ReasonCode.RESERVATION_CONFLICT: HTTPStatus.CONFLICT,
    ReasonCode.RESERVATION_EXPIRED: HTTPStatus.CONFLICT,
    ReasonCode.LEDGER_UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    ReasonCode.TOKEN_REVIEW_UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    ReasonCode.ACCESS_REVIEW_UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    ReasonCode.AUDIT_UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    ReasonCode.ENROLLMENT_STALE: HTTPStatus.SERVICE_UNAVAILABLE,
    ReasonCode.ENROLLMENT_CONFLICT: HTTPStatus.CONFLICT,
    ReasonCode.NODE_UNKNOWN: HTTPStatus.NOT_FOUND,
    ReasonCode.POD_UNKNOWN: HTTPStatus.NOT_FOUND,
    ReasonCode.TOKEN_INVALID: HTTPStatus.UNAUTHORIZED,
}
_NOT_KEPT: Final = {"Cache-Control": "no-store"}
SOON_S: Final = 1
"""After which an undecided request may come again."""


@dataclass(frozen=True, slots=True)
class Reply:
    """JSON that answers a request."""

    body: bytes
    headers: dict[str, str] | None = None


class ProblemError(Exception):
    """Ends a request with a status and a Problem."""

    def __init__(self, status: int, text: str, code: str = "", *, retry_s: int = SOON_S) -> None:
        """`retry_s`: when the same again may fare better, of statuses where it may."""
        super().__init__(text)
        self.status = status
        self.problem = Problem(text, code)
        self.retry_s = retry_s


def refused(refusal: Refusal, status: int | None = None, *, retry_s: int = SOON_S) -> ProblemError:
    """Ends a request with what is against it; `status` in the place of its code's own."""
    text = f"{refusal.code}: {refusal.detail}"
    found = status or status_of(refusal.code)
    return ProblemError(found, text, refusal.code.value, retry_s=retry_s)


def status_of(code: ReasonCode) -> int:
    """The HTTP status of a refusal; what has no other one is a conflict with the present state."""
    return _STATUS.get(code, HTTPStatus.CONFLICT)


def problem_response(status: int, problem: Problem, *, retry_s: int = SOON_S) -> web.Response:
    """The answer that there is none."""
    headers = dict(_NOT_KEPT)
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    if status in RETRIED:
        headers["Retry-After"] = str(retry_s)
    body = msgspec.json.encode(problem)
    response = web.Response(body=body, status=status, content_type=_JSON, headers=headers)
    if status in {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE}:
        response.force_close()
    return response


@web.middleware
async def as_problems(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Unknown paths and methods in the form of everything else."""
    try:
        return await handler(request)
    except web.HTTPMethodNotAllowed as error:
        response = problem_response(error.status, Problem("no such method here"))
        response.headers["Allow"] = error.headers.get("Allow", "")
        return response
    except web.HTTPNotFound as error:
        return problem_response(error.status, Problem("no such path; see /openapi.json"))


def good_response(reply: Reply) -> web.Response:
    """The answer."""
    headers = {**_NOT_KEPT, **(reply.headers or {})}
    return web.Response(body=reply.body, content_type=_JSON, headers=headers)
