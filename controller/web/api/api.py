"""The HTTP API over aiohttp: who calls, may they, how often, and the answer as JSON.

Nothing of a request but its head is read before its caller is known and may call. Bodies,
rates and times are bounded. Failures tell the caller nothing but that there was one.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urlencode

import msgspec
from aiohttp import web

from controller.access import PeerUsage, Rate, TokenReviewUnavailableError
from controller.ledger.attempt import Confirmed
from controller.web.api.answers import (
    ProblemError,
    Reply,
    as_problems,
    good_response,
    problem_response,
    refused,
)
from controller.web.api.authentication import Authentication
from controller.web.api.documents import (
    Done,
    FinalizeRequest,
    Inventory,
    Page,
    PageRequest,
    Problem,
    device_page,
    node_page,
    reservation_page,
)
from controller.web.api.finalize import (
    Finalizer,
    FinalizeRequestError,
    FinalizeUnavailableError,
    read_finalize,
)
from controller.web.api.openapi import openapi_json
from controller.web.api.operations import (
    OPERATIONS,
    Access,
    ApiCaller,
    Operation,
    OperationSpec,
    QueryError,
    access_refusal,
    holder_refusal,
    read_query,
)
from controller.web.api.viewers import Viewer, Viewers
from controller.web.listener import ConnectionLimits
from controller.web.server import (
    HEALTH_PATHS,
    INSECURE_HEADER,
    BodyReceiver,
    BodyRefusedError,
    healthz,
    sent_traceparent,
)
from gpuwarden.moment import NS_PER_S
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.telemetry.names import Span
from gpuwarden.telemetry.tracing import span_below

T = TypeVar("T")
_Answer = Callable[[web.Request, ApiCaller | None], Awaitable[Reply]]
Routes = Callable[[web.Application], None]
"""Adds routes."""

_NO_LEDGER: Final = "this controller keeps no reservations"
_FOUR_CARDS_A_MINUTE: Final = Rate(1 / 15, 128)
"""A pod confirms each of its GPUs once, and perhaps again; each call may leave a record."""
TEN_A_SECOND: Final = Rate(10.0, 50)


class ApiSink(Protocol):
    """Takes measurements, and entries for log and audit log.

    The recorder that implements it is above this layer.
    """

    def answered(self, operation: Operation, status: int, seconds: float) -> None:
        """One answer."""

    def failed(self, operation: Operation, error: Exception) -> None:
        """No answer, because the controller failed."""

    def finalized(self, caller: str, request: FinalizeRequest, refusal: Refusal | None) -> None:
        """A call of `POST /finalize` was decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiLimits(ConnectionLimits):
    """Bounds on what callers can take."""

    idle_s: float = 60.0
    body_bytes: int = 16 << 10
    receive_s: float = 5.0
    answer_s: float = 15.0
    """For the whole of an answer but its body's receipt."""
    pages_at_once: int = 2
    pods: Rate = _FOUR_CARDS_A_MINUTE
    others: Rate = TEN_A_SECOND


class Endpoint:
    """HTTP around the operations."""

    def __init__(
        self,
        authentication: Authentication,
        inventory: Callable[[], Inventory],
        finalizer: Finalizer | None,
        *,
        viewers: Viewers,
        usage: PeerUsage,
        sink: ApiSink,
        boottime_ns: Callable[[], int],
        limits: ApiLimits,
        routes: Sequence[Routes] = (),
        insecure: tuple[str, ...] = (),
    ) -> None:
        """`inventory` gives the snapshots of now; `finalizer` is None without a ledger.

        `usage` counts requests of all but pods, here and behind `routes`, which are served beside.
        `insecure`: names of stand-ins, for a header of every answer.
        """
        self._authentication = authentication
        self._inventory = inventory
        self._finalizer = finalizer
        self._sink = sink
        self._boottime_ns = boottime_ns
        self._limits = limits
        self._insecure = ", ".join(insecure)
        self._bodies = BodyReceiver(
            limits.body_bytes, "no request is larger", receive_s=limits.receive_s
        )
        self._pods = PeerUsage(openings=limits.pods, messages=limits.pods)
        self._others = usage
        self._viewers = viewers
        self._routes = routes
        self._pages = asyncio.Semaphore(limits.pages_at_once)

    def application(self) -> web.Application:
        """The routes; other paths are 404, other methods 405."""
        app = web.Application(middlewares=[as_problems])
        if self._insecure:
            app.on_response_prepare.append(self._mark)
        answers: dict[Operation, _Answer] = {
            Operation.DEVICES: partial(self._answer_page, device_page),
            Operation.NODES: partial(self._answer_page, node_page, needs_ledger=False),
            Operation.RESERVATIONS: partial(self._answer_page, reservation_page),
            Operation.FINALIZE: self._finalize,
            Operation.OPENAPI: _openapi,
        }
        for operation, each in OPERATIONS.items():
            serve = partial(self._serve, operation, each, answers[operation])
            app.router.add_route(each.method, each.path, serve)
        for path in HEALTH_PATHS:
            app.router.add_get(path, healthz)
        for add in self._routes:
            add(app)
        return app

    async def _mark(self, _request: web.Request, response: web.StreamResponse) -> None:
        response.headers[INSECURE_HEADER] = self._insecure

    async def _serve(
        self,
        operation: Operation,
        described: OperationSpec,
        answer: _Answer,
        request: web.Request,
    ) -> web.Response:
        loop = asyncio.get_running_loop()
        start = loop.time()
        with span_below(Span.API, sent_traceparent(request)) as active:
            response = await self._respond(operation, described, answer, request)
            active.set_attribute("operation", operation.value)
            active.set_attribute("status", response.status)
            self._sink.answered(operation, response.status, loop.time() - start)
        return response

    async def _respond(
        self,
        operation: Operation,
        described: OperationSpec,
        answer: _Answer,
        request: web.Request,
    ) -> web.Response:
        try:
            async with asyncio.timeout(self._limits.answer_s + self._limits.receive_s):
                caller = await self._admit(described, request)
                reply = await answer(request, caller)
        except ProblemError as found:
            return problem_response(found.status, found.problem, retry_s=found.retry_s)
        except TimeoutError:
            return problem_response(HTTPStatus.SERVICE_UNAVAILABLE, Problem("no answer in time"))
        except Exception as error:  # noqa: BLE001 -- whatever it is, the caller learns nothing of it
            self._sink.failed(operation, error)
            text = "a fault of the controller; see its log"
            return problem_response(HTTPStatus.INTERNAL_SERVER_ERROR, Problem(text))
        return good_response(reply)

    async def _admit(self, described: OperationSpec, request: web.Request) -> ApiCaller | None:
        if described.access is Access.ANYBODY:
            return None
        try:
            caller = await self._caller(described.access, request)
        except TokenReviewUnavailableError as error:
            raise refused(Refusal(ReasonCode.TOKEN_REVIEW_UNAVAILABLE, str(error))) from None
        if isinstance(caller, Refusal):
            raise refused(caller, HTTPStatus.UNAUTHORIZED)
        usage = self._pods if caller.speaks_as_pod(described.access) else self._others
        limited = usage.message(caller.key, self._boottime_ns())
        denied = access_refusal(caller, described.access)
        if denied is not None:
            raise refused(denied)
        if limited is not None:
            raise refused(limited, retry_s=math.ceil(usage.wait_ns(caller.key) / NS_PER_S))
        return caller

    async def _caller(self, access: Access, request: web.Request) -> ApiCaller | Refusal:
        """People read too, and do nothing else here."""
        viewer = await self._viewers.proxied(request) if access is Access.READER else None
        if viewer is None:
            caller = await self._authentication.authenticate(request)
            if isinstance(caller, ApiCaller) or access is not Access.READER:
                return caller
            viewer = await self._viewers.otherwise(request) or caller
        return viewer.as_caller() if isinstance(viewer, Viewer) else viewer

    async def _answer_page(
        self,
        make: Callable[[Inventory, PageRequest], Page[Any]],
        request: web.Request,
        caller: ApiCaller | None,
        *,
        needs_ledger: bool = True,
    ) -> Reply:
        has_serials = caller is not None and caller.has_role
        try:
            asked = replace(read_query(request.query.items()), has_serials=has_serials)
        except QueryError as error:
            raise ProblemError(HTTPStatus.BAD_REQUEST, str(error)) from None
        async with self._pages:
            inventory = self._inventory()
            if needs_ledger and not inventory.is_ledger_known:
                text = "the ledger was not read, or too long ago"
                raise refused(Refusal(ReasonCode.LEDGER_UNAVAILABLE, text))
            page, body = await asyncio.to_thread(_make_page, make, inventory, asked)
        if page.next_after is None:
            return Reply(body)
        query = urlencode({"limit": asked.limit, "after": page.next_after})
        return Reply(body, {"Link": f'<{request.path}?{query}>; rel="next"'})

    async def _finalize(self, request: web.Request, caller: ApiCaller | None) -> Reply:
        if caller is None:
            raise refused(Refusal(ReasonCode.ROLE_DENIED))
        asked = await self._read_request(request)
        refusal = holder_refusal(caller, asked)
        if refusal is None:
            refusal = await self._confirm(asked, caller)
        self._sink.finalized(caller.name, asked, refusal)
        if refusal is not None:
            raise refused(refusal)
        return Reply(msgspec.json.encode(Done()))

    async def _read_request(self, request: web.Request) -> FinalizeRequest:
        try:
            return read_finalize(await self._bodies.receive(request))
        except BodyRefusedError as error:
            raise ProblemError(error.status, str(error)) from None
        except ConnectionError:  # the client is gone; the controller did not fail
            raise ProblemError(HTTPStatus.BAD_REQUEST, "the body ended early") from None
        except FinalizeRequestError as error:
            raise ProblemError(HTTPStatus.BAD_REQUEST, str(error)) from None

    async def _confirm(self, asked: FinalizeRequest, caller: ApiCaller) -> Refusal | None:
        finalizer = self._finalizer
        if finalizer is None:
            return Refusal(ReasonCode.LEDGER_UNAVAILABLE, _NO_LEDGER)
        cause = "an operator says that its pod is bound"
        if not caller.operates:
            cause = "its pod says that it is bound"
        try:
            async with asyncio.timeout(self._limits.answer_s):
                found = await finalizer.finalize(asked, cause)
        except (FinalizeUnavailableError, TimeoutError) as error:
            text = str(error) or "no answer in time"
            return Refusal(ReasonCode.LEDGER_UNAVAILABLE, text)
        return None if isinstance(found, Confirmed) else found


def _make_page(
    make: Callable[[Inventory, PageRequest], Page[T]], inventory: Inventory, asked: PageRequest
) -> tuple[Page[T], bytes]:
    page = make(inventory, asked)
    return page, msgspec.json.encode(page.items)


async def _openapi(_request: web.Request, _caller: ApiCaller | None) -> Reply:
    return Reply(openapi_json())
