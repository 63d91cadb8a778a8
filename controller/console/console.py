"""The console over aiohttp: who looks, which page, logins, and the acts of operators.

A page is answered as its twin below `/v1` is: with the same callers, rates, bounds and errors.
Acts and logins come from a form of this origin alone, whatever cookie they have.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl

from aiohttp import web

from controller.access import PeerUsage, TokenReviewUnavailableError
from controller.console.pages import Pages, address, as_of, part
from controller.explain.fleet_rows import CellState, Grouping
from controller.fleet.view import NodeState
from controller.operations.operator_service import Act, Done, OperatorService, Order
from controller.web.api.answers import ProblemError, refused, status_of
from controller.web.api.documents import PageRequest
from controller.web.api.operations import Operation, QueryError
from controller.web.api.reading import Asked, Reading
from controller.web.api.v1 import FAULT, NO_ANSWER, V1
from controller.web.api.v1_operations import V1_OPERATIONS, PodState, read_parameters
from controller.web.api.viewers import COOKIE, MAX_TOKEN, TOKEN, Viewer, Viewers
from controller.web.server import BodyReceiver, BodyRefusedError, sent_traceparent
from gpuwarden.clock import Clock
from gpuwarden.identity.spiffe_id import is_node_name
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.telemetry.names import Span
from gpuwarden.telemetry.tracing import span_below

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_ASSET_HEADERS: Final = {**HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}
MAX_REASON: Final = 500
_MAX_FORM: Final = 16 << 10
_PAGE: Final = "50"
"""Rows of a page."""
_ACTS: Final = {
    Act.ACCEPT: "accepted: its next evidence decides",
    Act.QUARANTINE: "quarantined",
    Act.RELEASE: "released: its next evidence decides",
}

_Handler = Callable[[web.Request], Awaitable[web.Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleBounds:
    """Bounds of time."""

    answer_s: float
    receive_s: float


class Console:
    """Used from one event loop."""

    def __init__(
        self,
        reading: Reading,
        viewers: Viewers,
        v1: V1,
        operators: OperatorService,
        *,
        usage: PeerUsage,
        clock: Clock,
        answered: Callable[[Operation, int, float], None],
        failed: Callable[[Operation, Exception], None],
        bounds: ConsoleBounds,
    ) -> None:
        self._reading = reading
        self._viewers = viewers
        self._v1 = v1
        self._operators = operators
        self._usage = usage
        self._clock = clock
        self._answered = answered
        self._failed = failed
        self._bounds = bounds
        self._pages = Pages()
        self._forms = BodyReceiver(_MAX_FORM, "no form is larger", receive_s=bounds.receive_s)

    def add_routes(self, app: web.Application) -> None:
        """Its routes."""
        pages: dict[str, _Handler] = {
            "/": self._fleet,
            "/ui/nodes/{name}": self._node,
            "/ui/gpus": self._gpus,
            "/ui/gpus/{id}": self._gpu,
            "/ui/pods": self._pods,
            "/ui/pods/{namespace}/{name}": self._pod,
            "/ui/audit": self._audit,
            "/ui/login": self._login_form,
        }
        for path, page in pages.items():
            app.router.add_get(path, partial(self._serve, Operation.CONSOLE, page))
        app.router.add_get("/ui/static/{digest}/{name}", self._asset)
        forms: dict[str, _Handler] = {
            "/ui/login": self._login,
            "/ui/logout": self._logout,
            "/ui/nodes/{name}/{act}": self._act,
        }
        for path, take in forms.items():
            app.router.add_post(path, partial(self._serve, Operation.CONSOLE_FORM, take))

    async def _serve(
        self, operation: Operation, make: _Handler, request: web.Request
    ) -> web.Response:
        loop = asyncio.get_running_loop()
        start = loop.time()
        with span_below(Span.API, sent_traceparent(request)) as active:
            response = await self._caught(operation, make, request)
            active.set_attribute("operation", operation.value)
            active.set_attribute("status", response.status)
        self._answered(operation, response.status, loop.time() - start)
        response.headers.update(HEADERS)
        return response

    async def _caught(
        self, operation: Operation, make: _Handler, request: web.Request
    ) -> web.Response:
        try:
            async with asyncio.timeout(self._bounds.answer_s + self._bounds.receive_s):
                return await make(request)
        except ProblemError as found:
            if found.status == HTTPStatus.UNAUTHORIZED and request.method == "GET":
                return _see_other(address("/ui/login", next=str(request.rel_url)))
            return self._problem(found.status, found.problem.error)
        except TimeoutError:
            return self._problem(HTTPStatus.SERVICE_UNAVAILABLE, NO_ANSWER)
        except Exception as error:  # noqa: BLE001 -- whatever it is, the caller learns nothing of it
            self._failed(operation, error)
            return self._problem(HTTPStatus.INTERNAL_SERVER_ERROR, FAULT)

    def _problem(self, status: int, text: str) -> web.Response:
        title = HTTPStatus(status).phrase
        return _html(self._pages.render("problem", title=title, text=text), status)

    # --- pages

    async def _ask(
        self,
        operation: Operation,
        viewer: Viewer,
        request: web.Request,
        *,
        only: frozenset[str] | None = None,
    ) -> tuple[Any, Asked]:
        """The read model of an operation; `only`: the parameters that are its own."""
        spec = V1_OPERATIONS[operation]
        pairs = [(x, y) for x, y in request.query.items() if y and x not in {"done", "group"}]
        if operation is Operation.V1_FLEET:
            pairs = [x for x in pairs if x[0] not in {"limit", "after"}]
            pairs += [("group", x) for x in (request.query.get("group"),) if x]
        if only is not None:
            pairs = [x for x in pairs if x[0] in only]
        if spec.is_paged and "limit" not in dict(pairs):
            pairs.append(("limit", _PAGE))
        try:
            query, page = read_parameters(spec, pairs, request.match_info)
        except QueryError as error:
            raise ProblemError(HTTPStatus.BAD_REQUEST, str(error)) from None
        asked = Asked(viewer, query, page)
        return await self._reading.answer(operation, asked), asked

    async def _show(
        self,
        template: str,
        viewer: Viewer,
        request: web.Request,
        *,
        twin: str,
        status: int = HTTPStatus.OK,
        **values: Any,  # noqa: ANN401 -- what a template names
    ) -> web.Response:
        here = Asked(viewer, {}, PageRequest(1))
        query = {x: y for x, y in request.query.items() if y and x != "done"}
        shown = {x: y for x, y in query.items() if x != "limit"}
        text = await asyncio.to_thread(
            self._pages.render,
            template,
            viewer=viewer,
            status=await self._reading.answer(Operation.V1_STATUS, here),
            as_of=as_of(self._clock.wall_ns()),
            path=request.path,
            query=shown,
            twin=address(twin, query),
            **values,
        )
        return _html(text, status)

    async def _fleet(self, request: web.Request) -> web.Response:
        viewer = await self._v1.demand(request)
        if not viewer.reads:
            return _see_other("/ui/pods")
        fleet, asked = await self._ask(Operation.V1_FLEET, viewer, request)
        nodes, _ = await self._ask(Operation.V1_NODES, viewer, request)
        return await self._show(
            "fleet",
            viewer,
            request,
            twin="/v1/fleet",
            fleet=fleet,
            nodes=nodes,
            group=asked.get("group"),
            groupings=[x.value for x in Grouping],
            cell_states=[x.value for x in CellState],
            node_states=[x.value for x in NodeState],
        )

    async def _gpus(self, request: web.Request) -> web.Response:
        viewer = await self._reader(request)
        gpus, _ = await self._ask(Operation.V1_GPUS, viewer, request)
        states = [x.value for x in CellState]
        return await self._show(
            "gpus", viewer, request, twin="/v1/gpus", gpus=gpus, cell_states=states
        )

    async def _gpu(self, request: web.Request) -> web.Response:
        viewer = await self._reader(request)
        found, asked = await self._ask(Operation.V1_GPU, viewer, request)
        twin = f"/v1/gpus/{part(asked.get('id'))}"
        return await self._show("gpu", viewer, request, twin=twin, gpu=found)

    async def _node(self, request: web.Request) -> web.Response:
        return await self._node_page(request, await self._reader(request))

    async def _node_page(
        self, request: web.Request, viewer: Viewer, refusal: Refusal | None = None
    ) -> web.Response:
        only = frozenset[str]()
        found, asked = await self._ask(Operation.V1_NODE, viewer, request, only=only)
        done = request.query.get("done", "")
        return await self._show(
            "node",
            viewer,
            request,
            twin=f"/v1/nodes/{part(asked.get('name'))}",
            status=HTTPStatus.OK if refusal is None else status_of(refusal.code),
            found=found,
            refusal=refusal,
            done=_ACTS[Act(done)] if done in set(Act) else "",
            max_reason=MAX_REASON,
        )

    async def _pods(self, request: web.Request) -> web.Response:
        viewer = await self._v1.demand(request)
        states = [x.value for x in PodState]
        pods = None
        if viewer.reads or request.query.get("namespace"):
            pods, _ = await self._ask(Operation.V1_PODS, viewer, request)
        return await self._show("pods", viewer, request, twin="/v1/pods", pods=pods, states=states)

    async def _pod(self, request: web.Request) -> web.Response:
        viewer = await self._v1.demand(request)
        only = frozenset[str]()
        found, asked = await self._ask(Operation.V1_POD, viewer, request, only=only)
        verdicts = None
        if viewer.reads and found.rejections:
            paging = frozenset({"limit", "after"})
            verdicts, _ = await self._ask(Operation.V1_VERDICTS, viewer, request, only=paging)
        twin = f"/v1/pods/{part(asked.get('namespace'))}/{part(asked.get('name'))}"
        return await self._show("pod", viewer, request, twin=twin, pod=found, verdicts=verdicts)

    async def _audit(self, request: web.Request) -> web.Response:
        viewer = await self._reader(request)
        found, _ = await self._ask(Operation.V1_AUDIT, viewer, request)
        return await self._show("audit", viewer, request, twin="/v1/audit", found=found)

    async def _reader(self, request: web.Request) -> Viewer:
        viewer = await self._v1.demand(request)
        if not viewer.reads:
            text = "the whole fleet is shown to readers: get the ClusterRole gpuwarden-inspector"
            raise refused(Refusal(ReasonCode.ROLE_DENIED, text))
        return viewer

    async def _asset(self, request: web.Request) -> web.Response:
        found = self._pages.assets.get(request.match_info["name"])
        if found is None or found.digest != request.match_info["digest"]:
            return self._problem(HTTPStatus.NOT_FOUND, "no such file")
        return web.Response(
            body=found.content, content_type=found.media, charset="utf-8", headers=_ASSET_HEADERS
        )

    # --- logins

    async def _login_form(self, request: web.Request) -> web.Response:
        return self._login_page(_inner(request.query.get("next", "")))

    def _login_page(
        self, following: str, error: str = "", status: int = HTTPStatus.OK
    ) -> web.Response:
        return _html(self._pages.render("login", following=following, error=error), status)

    async def _login(self, request: web.Request) -> web.Response:
        form = await self._form(request)
        following = _inner(form.get("next", ""))
        token = "".join(form.get("token", "").split())
        limited = self._usage.message(f"login {request.remote}", self._clock.boottime_ns())
        if limited is not None:
            raise refused(limited)
        if len(token) > MAX_TOKEN or not TOKEN.fullmatch(token):
            text = f"token: expected a bearer token of at most {MAX_TOKEN} characters"
            return self._login_page(following, text, HTTPStatus.BAD_REQUEST)
        try:
            viewer = await self._viewers.of_token(token, request.remote or "")
        except TokenReviewUnavailableError as error:
            raise refused(Refusal(ReasonCode.TOKEN_REVIEW_UNAVAILABLE, str(error))) from None
        if isinstance(viewer, Refusal):
            raise refused(viewer)
        if viewer is None:
            text = "the API server does not accept the token, or it names nobody"
            return self._login_page(following, text, HTTPStatus.UNAUTHORIZED)
        response = _see_other(following)
        response.set_cookie(
            COOKIE, token, path="/", secure=True, httponly=True, samesite="Strict"
        )  # fmt: skip
        return response

    async def _logout(self, request: web.Request) -> web.Response:
        await self._form(request)
        response = _see_other("/ui/login")
        response.del_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="Strict")
        return response

    # --- acts

    async def _act(self, request: web.Request) -> web.Response:
        form = await self._form(request)
        viewer = await self._reader(request)
        name, word = request.match_info["name"], request.match_info["act"]
        if word not in set(Act) or not is_node_name(name):
            raise ProblemError(HTTPStatus.NOT_FOUND, "no such act")
        if not viewer.operates:
            text = "acts are for operators: get the ClusterRole gpuwarden-operator"
            raise refused(Refusal(ReasonCode.ROLE_DENIED, text))
        reason, act = form.get("reason", "").strip(), Act(word)
        if not 0 < len(reason) <= MAX_REASON or not reason.isprintable():
            text = f"reason: expected 1 to {MAX_REASON} printable characters in one line"
            raise ProblemError(HTTPStatus.BAD_REQUEST, text)
        done = await self._carried_out(act, Order(name, reason, viewer.name), form)
        if isinstance(done, Refusal):
            return await self._node_page(request, viewer, done)
        return _see_other(address(f"/ui/nodes/{part(name)}", done=act.value))

    async def _carried_out(self, act: Act, order: Order, form: dict[str, str]) -> Done | Refusal:
        version = form.get("version", "")
        match act:
            case Act.ACCEPT:
                return await self._operators.accept(order, version)
            case Act.RELEASE:
                return await self._operators.release(order, version)
            case Act.QUARANTINE:
                return await self._operators.quarantine(order)

    async def _form(self, request: web.Request) -> dict[str, str]:
        """The fields of a form of this origin; raises ProblemError."""
        if not _is_of_this_origin(request):
            text = "the form is not of this origin: open the console again and send it from there"
            raise ProblemError(HTTPStatus.FORBIDDEN, text)
        if request.content_type != "application/x-www-form-urlencoded":
            raise ProblemError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected a form")
        try:
            body = bytes(await self._forms.receive(request)).decode()
            return dict(parse_qsl(body, keep_blank_values=True, max_num_fields=16))
        except BodyRefusedError as error:
            raise ProblemError(error.status, str(error)) from None
        except ValueError:
            raise ProblemError(HTTPStatus.BAD_REQUEST, "the form cannot be read") from None


def _is_of_this_origin(request: web.Request) -> bool:
    """As the browser says, which no page can change; who says nothing is refused."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    return request.headers.get("Origin") == f"https://{request.host}"


def _inner(path: str) -> str:
    """A path of this console, or its first page."""
    is_inner = path.startswith("/") and not path.startswith("//") and path.isprintable()
    return path if is_inner and "\\" not in path else "/"


def _html(text: str, status: int = HTTPStatus.OK) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/html")


def _see_other(path: str) -> web.Response:
    return web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": path})
